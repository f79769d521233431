// A driver of RocketMQ's classic client for Go: one scenario, told line by line as JSON on standard output.
//
//	driver SCENARIO NAMESERVER TOPIC GROUP
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const patience = 90 * time.Second

// What comes twice comes within this time after everything has come once.
const quiet = 3 * time.Second

type facts map[string]any

type run struct {
	server, topic, group string
	lock                 sync.Mutex
	seen                 map[string]int
}

func (r *run) say(fact string, more facts) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if more == nil {
		more = facts{}
	}
	more["fact"] = fact
	line, _ := json.Marshal(more)
	fmt.Println(string(line))
}

func (r *run) saw(by string, message *primitive.MessageExt) {
	r.say("received", facts{
		"by": by, "body": string(message.Body), "tag": message.GetTags(), "keys": message.GetKeys(),
		"color": message.GetProperty("color"), "id": message.MsgId, "attempt": message.ReconsumeTimes,
		"queue": message.Queue.QueueId, "offset": message.QueueOffset, "order": message.GetShardingKey(),
	})
	r.lock.Lock()
	r.seen[by+"/"+string(message.Body)]++
	r.lock.Unlock()
}

// until waits for all of these, and then for what may come twice.
func (r *run) until(by string, bodies ...string) {
	end := time.Now().Add(patience)
	for time.Now().Before(end) {
		missing := false
		r.lock.Lock()
		for _, body := range bodies {
			missing = missing || r.seen[by+"/"+body] == 0
		}
		r.lock.Unlock()
		if !missing {
			time.Sleep(quiet)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (r *run) servers() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{r.server})
}

// must ends the scenario with this error, if it is one.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (r *run) producer(more ...producer.Option) rocketmq.Producer {
	options := append([]producer.Option{
		producer.WithNsResolver(r.servers()), producer.WithGroupName("producers"), producer.WithSendMsgTimeout(20 * time.Second),
	}, more...)
	made, err := rocketmq.NewProducer(options...)
	must(err)
	must(made.Start())
	return made
}

type handler func(*primitive.MessageExt) consumer.ConsumeResult

func (r *run) consumer(selector consumer.MessageSelector, handle handler, more ...consumer.Option) rocketmq.PushConsumer {
	options := append([]consumer.Option{
		consumer.WithNsResolver(r.servers()), consumer.WithGroupName(r.group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, more...)
	made, err := rocketmq.NewPushConsumer(options...)
	must(err)
	must(made.Subscribe(r.topic, selector, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			if result := handle(message); result != consumer.ConsumeSuccess {
				return result, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(made.Start())
	return made
}

func (r *run) all(by string) handler {
	return func(message *primitive.MessageExt) consumer.ConsumeResult {
		r.saw(by, message)
		return consumer.ConsumeSuccess
	}
}

func (r *run) message(body string) *primitive.Message {
	return primitive.NewMessage(r.topic, []byte(body))
}

func (r *run) sent(result *primitive.SendResult, bodies ...string) {
	r.say("sent", facts{"bodies": bodies, "status": result.Status, "id": result.MsgID, "queue": result.MessageQueue.QueueId, "offset": result.QueueOffset})
}

func (r *run) send(from rocketmq.Producer, message *primitive.Message) {
	result, err := from.SendSync(context.Background(), message)
	must(err)
	r.sent(result, string(message.Body))
}

func concurrent(r *run) {
	from := r.producer()
	defer from.Shutdown()
	to := r.consumer(consumer.MessageSelector{}, r.all("one"))
	defer to.Shutdown()
	long := strings.Repeat("long ", 2000)
	plain := r.message("plain").WithTag("t").WithKeys([]string{"k", "l"})
	plain.WithProperty("color", "red")
	for _, message := range []*primitive.Message{plain, r.message(long), r.message("late").WithDelayTimeLevel(1)} {
		r.send(from, message)
	}
	answered := make(chan error, 1)
	must(from.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
		if err == nil {
			r.sent(result, "async")
		}
		answered <- err
	}, r.message("async")))
	must(<-answered)
	must(from.SendOneWay(context.Background(), r.message("one way")))
	result, err := from.SendSync(context.Background(), r.message("batch 0"), r.message("batch 1"), r.message("batch 2"))
	must(err)
	r.sent(result, "batch 0", "batch 1", "batch 2")
	r.until("one", "plain", long, "late", "async", "one way", "batch 0", "batch 1", "batch 2")
}

func filtered(r *run) {
	from := r.producer()
	defer from.Shutdown()
	tags := r.consumer(consumer.MessageSelector{Type: consumer.TAG, Expression: "a || b"}, r.all("tags"))
	defer tags.Shutdown()
	r.group += "-sql"
	sql := r.consumer(consumer.MessageSelector{Type: consumer.SQL92, Expression: "color = 'red'"}, r.all("sql"), consumer.WithInstance("sql"))
	defer sql.Shutdown()
	for _, each := range []string{"a red", "b blue", "c red", "d blue"} {
		message := r.message(each).WithTag(each[:1])
		message.WithProperty("color", each[2:])
		r.send(from, message)
	}
	r.until("tags", "a red", "b blue")
	r.until("sql", "a red", "c red")
}

func retried(r *run) {
	from := r.producer()
	defer from.Shutdown()
	to := r.consumer(consumer.MessageSelector{}, func(message *primitive.MessageExt) consumer.ConsumeResult {
		if message.ReconsumeTimes == 0 {
			r.saw("first", message)
			return consumer.ConsumeRetryLater
		}
		r.saw("again", message)
		return consumer.ConsumeSuccess
	})
	defer to.Shutdown()
	for _, body := range []string{"one", "two"} {
		r.send(from, r.message(body))
	}
	r.until("again", "one", "two")
}

func ordered(r *run) {
	from := r.producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	defer from.Shutdown()
	var wanted []string
	for number := range 30 {
		body := fmt.Sprintf("%d-%d", number%3, number/3)
		wanted = append(wanted, body)
		r.send(from, r.message(body).WithShardingKey(fmt.Sprint(number%3)))
	}
	to := r.consumer(consumer.MessageSelector{}, r.all("one"), consumer.WithConsumerOrder(true))
	defer to.Shutdown()
	r.until("one", wanted...)
}

type listener struct{ run *run }

func (l listener) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch string(message.Body) {
	case "yes":
		return primitive.CommitMessageState
	case "no":
		return primitive.RollbackMessageState
	}
	return primitive.UnkonwnState
}

func (l listener) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	l.run.saw("check", message)
	if string(message.Body) == "asked yes" {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func transactions(r *run) {
	from, err := rocketmq.NewTransactionProducer(listener{r}, producer.WithNsResolver(r.servers()), producer.WithGroupName(r.group+"-producers"), producer.WithSendMsgTimeout(20*time.Second))
	must(err)
	must(from.Start())
	defer from.Shutdown()
	to := r.consumer(consumer.MessageSelector{}, r.all("one"))
	defer to.Shutdown()
	for _, body := range []string{"yes", "no", "asked yes", "asked no"} {
		result, err := from.SendMessageInTransaction(context.Background(), r.message(body))
		must(err)
		r.sent(result.SendResult, body)
	}
	r.until("check", "asked yes", "asked no")
	r.until("one", "yes", "asked yes")
}

func pulled(r *run) {
	from := r.producer()
	defer from.Shutdown()
	for number := range 8 {
		r.send(from, r.message(fmt.Sprint(number)))
	}
	to, err := rocketmq.NewPullConsumer(consumer.WithNsResolver(r.servers()), consumer.WithGroupName(r.group))
	must(err)
	must(to.Subscribe(r.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}))
	must(to.Start())
	defer to.Shutdown()
	queues, err := to.GetTopicRouteInfo(r.topic)
	must(err)
	for _, queue := range queues {
		found, err := to.PullFrom(context.Background(), queue, 0, 32)
		must(err)
		for _, message := range found.GetMessageExts() {
			r.saw("pulled", message)
		}
	}
}

func broadcast(r *run) {
	from := r.producer()
	defer from.Shutdown()
	for _, name := range []string{"one", "two"} {
		to := r.consumer(consumer.MessageSelector{}, r.all(name), consumer.WithConsumerModel(consumer.BroadCasting), consumer.WithInstance(name))
		defer to.Shutdown()
	}
	for _, body := range []string{"a", "b"} {
		r.send(from, r.message(body))
	}
	r.until("one", "a", "b")
	r.until("two", "a", "b")
}

func requested(r *run) {
	from := r.producer()
	defer from.Shutdown()
	replies := r.producer(producer.WithGroupName("repliers"), producer.WithInstanceName("repliers"))
	defer replies.Shutdown()
	to := r.consumer(consumer.MessageSelector{}, func(message *primitive.MessageExt) consumer.ConsumeResult {
		r.saw("asked", message)
		// The client that waits is known by its next heartbeat, which may come after its request.
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
			reply, err := consumer.CreateReplyMessage(message, nil)
			must(err)
			// It forgets the body that it is given, and RocketMQ refuses a reply without one.
			reply.Body = []byte("answer to " + string(message.Body))
			if _, err = replies.SendSync(context.Background(), reply); err == nil {
				break
			}
		}
		return consumer.ConsumeSuccess
	}, consumer.WithInstance("repliers"))
	defer to.Shutdown()
	answer, err := from.Request(context.Background(), patience, r.message("question"))
	must(err)
	r.say("answered", facts{"body": string(answer.Body)})
}

// play runs a scenario, and reports the error that ended it.
func (r *run) play(scenario func(*run)) (err error) {
	defer func() {
		if ended := recover(); ended != nil {
			err = fmt.Errorf("%v", ended)
		}
	}()
	scenario(r)
	return nil
}

func main() {
	rlog.SetLogLevel("fatal")
	scenarios := map[string]func(*run){
		"concurrent": concurrent, "filtered": filtered, "retried": retried, "ordered": ordered,
		"transactions": transactions, "pulled": pulled, "broadcast": broadcast, "requested": requested,
	}
	r := &run{server: os.Args[2], topic: os.Args[3], group: os.Args[4], seen: map[string]int{}}
	if err := r.play(scenarios[os.Args[1]]); err != nil {
		r.say("failed", facts{"why": err.Error()})
		os.Exit(1)
	}
	r.say("done", nil)
}
