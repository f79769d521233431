// Command driver runs named scenarios with the official Go client and prints what it saw, one JSON line per fact.
//
// Arguments: the endpoint. Standard input: lines of `run ID SCENARIO key=value …` and `go ID`; its end ends the
// process. Every line that is printed is an object with `run` (the ID), `fact` and its data; the last one of a run
// is `end`, or `crash` if the scenario itself failed. The client speaks TLS by default; here it does in the runs
// of a process that all have the parameter `tls`, because it is a setting of the process.
package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc/status"
)

const (
	patience   = 240 * time.Second
	hold       = 600 * time.Second // longer than any scenario
	request    = 45 * time.Second  // the client repeats a send that is not answered in time (as shipped 3 s)
	sideBySide = 12
	longBody   = 200
)

type data map[string]any

var out sync.Mutex

// A run is one run of one scenario: its parameters, its clients, its output.
type run struct {
	id, endpoint string
	params       map[string]string
	wake         chan struct{}
	clients      []client
}

type client interface {
	Start() error
	GracefulStop() error
	SetRequestTimeout(time.Duration)
}

func (r *run) say(fact string, about data) {
	line := data{"run": r.id, "fact": fact, "at": time.Now().UnixMilli()}
	for name, value := range about {
		line[name] = value
	}
	encoded, err := json.Marshal(line)
	must(err)
	out.Lock()
	defer out.Unlock()
	fmt.Println(string(encoded))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func errorFacts(err error) data {
	code := ""
	if refusal, ok := rocketmq.AsErrRpcStatus(err); ok {
		code = v2.Code_name[refusal.GetCode()]
	} else if broken, ok := status.FromError(err); ok {
		code = "GRPC_" + broken.Code().String()
	}
	return data{"type": fmt.Sprintf("%T", err), "code": code, "text": err.Error()}
}

// tryTo tells `done`, or `refused` with the error.
func (r *run) tryTo(step string, action func() error) {
	if err := action(); err != nil {
		r.say("refused", data{"step": step, "error": errorFacts(err)})
		return
	}
	r.say("done", data{"step": step})
}

func contents(body []byte) data {
	sum := sha256.Sum256(body)
	text := ""
	if len(body) <= longBody {
		text = string(body)
	}
	return data{"size": len(body), "sha256": hex.EncodeToString(sum[:]), "body": text}
}

func with(parts ...data) data {
	all := data{}
	for _, part := range parts {
		for name, value := range part {
			all[name] = value
		}
	}
	return all
}

func textOf(value *string) string {
	if value == nil {
		return ""
	}
	return *value
}

func (r *run) saw(message *rocketmq.MessageView, by string, more data) {
	keys := append([]string{}, message.GetKeys()...)
	sort.Strings(keys)
	properties := map[string]string{}
	for name, value := range message.GetProperties() {
		properties[name] = value
	}
	r.say("received", with(contents(message.GetBody()), data{
		"by": by, "id": message.GetMessageId(), "topic": message.GetTopic(), "tag": textOf(message.GetTag()),
		"keys": keys, "properties": properties, "group": textOf(message.GetMessageGroup()),
		"attempt": message.GetDeliveryAttempt(), "corrupted": false,
	}, more))
}

func (r *run) config(group string) *rocketmq.Config {
	return &rocketmq.Config{Endpoint: r.endpoint, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

func (r *run) start(made client) error {
	made.SetRequestTimeout(request)
	if err := made.Start(); err != nil {
		return err
	}
	r.clients = append(r.clients, made)
	return nil
}

func (r *run) close(made client) {
	r.clients = slices.DeleteFunc(r.clients, func(other client) bool { return other == made })
	must(made.GracefulStop())
}

type checker = func(*rocketmq.MessageView) rocketmq.TransactionResolution

func (r *run) producer(check checker, topics ...string) rocketmq.Producer {
	producer, err := r.startedProducer(check, topics...)
	must(err)
	return producer
}

func (r *run) startedProducer(check checker, topics ...string) (rocketmq.Producer, error) {
	options := []rocketmq.ProducerOption{rocketmq.WithTopics(topics...)}
	if check != nil {
		options = append(options, rocketmq.WithTransactionChecker(&rocketmq.TransactionChecker{Check: check}))
	}
	for tries := 1; ; tries++ {
		producer, err := rocketmq.NewProducer(r.config(""), options...)
		must(err)
		err = r.start(producer)
		if err == nil || tries == 3 || !strings.Contains(err.Error(), clientsRace) {
			return producer, err
		}
	}
}

// A producer of several topics sends its settings for the second while it takes those that the gateway answered
// to the first into the same message, which protobuf may notice. It has not started then. Source: producerSettings.
const clientsRace = "error while marshaling: marshaling apache.rocketmq.v2.TelemetryCommand: size mismatch"

type filters = map[string]*rocketmq.FilterExpression

func all(topic string) filters { return filters{topic: rocketmq.SUB_ALL} }

func (r *run) simple(group string, subscribed filters, await time.Duration) rocketmq.SimpleConsumer {
	consumer, err := r.startedSimple(group, subscribed, await)
	must(err)
	return consumer
}

func (r *run) startedSimple(group string, subscribed filters, await time.Duration) (rocketmq.SimpleConsumer, error) {
	consumer, err := rocketmq.NewSimpleConsumer(
		r.config(group),
		rocketmq.WithSimpleAwaitDuration(await),
		rocketmq.WithSimpleSubscriptionExpressions(subscribed),
	)
	must(err)
	return consumer, r.start(consumer)
}

func (r *run) push(group string, subscribed filters, consume func(*rocketmq.MessageView) bool) {
	consumer, err := rocketmq.NewPushConsumer(
		r.config(group),
		rocketmq.WithPushAwaitDuration(5*time.Second),
		rocketmq.WithPushSubscriptionExpressions(subscribed),
		rocketmq.WithPushMessageListener(listener(consume)),
	)
	must(err)
	must(r.start(consumer))
}

func (r *run) lite(group, topic string, consume func(*rocketmq.MessageView) bool) rocketmq.LitePushConsumer {
	consumer, err := rocketmq.NewLitePushConsumer(
		r.config(group),
		rocketmq.NewLitePushConsumerConfig(topic, time.Minute),
		rocketmq.WithPushAwaitDuration(5*time.Second),
		rocketmq.WithPushMessageListener(listener(consume)),
	)
	must(err)
	must(r.start(consumer))
	return consumer
}

func listener(consume func(*rocketmq.MessageView) bool) *rocketmq.FuncMessageListener {
	return &rocketmq.FuncMessageListener{Consume: func(message *rocketmq.MessageView) rocketmq.ConsumerResult {
		if consume(message) {
			return rocketmq.SUCCESS
		}
		return rocketmq.FAILURE
	}}
}

// received is one receive; the client reports an empty answer as an error.
func (r *run) received(consumer rocketmq.SimpleConsumer, most int32, invisible time.Duration, by string) ([]*rocketmq.MessageView, error) {
	messages, err := consumer.Receive(background, most, invisible)
	if status, ok := rocketmq.AsErrRpcStatus(err); ok && status.GetCode() == int32(v2.Code_MESSAGE_NOT_FOUND) {
		messages, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	r.say("batch", data{"by": by, "count": len(messages)})
	for _, message := range messages {
		r.saw(message, by, nil)
	}
	return messages, nil
}

func (r *run) acked(consumer rocketmq.SimpleConsumer, message *rocketmq.MessageView) {
	must(r.ack(consumer, message))
}

func (r *run) ack(consumer rocketmq.SimpleConsumer, message *rocketmq.MessageView) error {
	err := consumer.Ack(background, message)
	if err == nil {
		r.say("acked", data{"id": message.GetMessageId(), "attempt": message.GetDeliveryAttempt()})
	}
	return err
}

// receiveUntil receives so many messages; fewer when the patience ends.
func (r *run) receiveUntil(consumer rocketmq.SimpleConsumer, count int, most int32, invisible time.Duration, ack bool, by string) []*rocketmq.MessageView {
	var found []*rocketmq.MessageView
	for until := time.Now().Add(patience); len(found) < count && time.Now().Before(until); {
		messages, err := r.received(consumer, most, invisible, by)
		must(err)
		for _, message := range messages {
			found = append(found, message)
			if ack {
				r.acked(consumer, message)
			}
		}
	}
	return found
}

func (r *run) takeAll(consumer rocketmq.SimpleConsumer, count int, by string) {
	r.receiveUntil(consumer, count, 16, hold, true, by)
}

// quiet receives once more, and on until a time: what arrives should not.
func (r *run) quiet(consumer rocketmq.SimpleConsumer, until time.Time) {
	for {
		messages, err := r.received(consumer, 16, hold, "quiet")
		must(err)
		for _, message := range messages {
			r.acked(consumer, message)
		}
		if !time.Now().Before(until) {
			return
		}
	}
}

func (r *run) waitFor(condition func() bool) {
	for until := time.Now().Add(patience); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			r.say("gave up waiting", nil)
			return
		}
	}
}

func (r *run) perform(scenario func(*run)) {
	defer func() {
		if cause := recover(); cause != nil {
			r.say("crash", data{"error": fmt.Sprint(cause), "trace": string(debug.Stack())})
		}
	}()
	scenario(r)
	r.say("finished", nil)
	for _, made := range r.clients {
		_ = made.GracefulStop() // one that a scenario stopped itself says so
	}
	r.say("end", nil)
}

func main() {
	rocketmq.ResetLogger()
	endpoint := os.Args[1]
	places := make(chan struct{}, sideBySide)
	runs := map[string]*run{}
	var going sync.WaitGroup
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) == 2 && words[0] == "go" {
			runs[words[1]].wake <- struct{}{}
			continue
		}
		if len(words) < 3 || words[0] != "run" {
			continue
		}
		one := &run{id: words[1], endpoint: endpoint, params: map[string]string{}, wake: make(chan struct{}, 8)}
		runs[one.id] = one
		for _, pair := range words[3:] {
			name, value, _ := strings.Cut(pair, "=")
			one.params[name] = value
		}
		rocketmq.EnableSsl = one.params["tls"] != ""
		scenario, known := scenarios[words[2]]
		if !known {
			one.say("crash", data{"error": "no scenario " + words[2]})
			continue
		}
		going.Add(1)
		go func() {
			defer going.Done()
			places <- struct{}{}
			defer func() { <-places }()
			one.perform(scenario)
		}()
	}
	going.Wait()
}
