package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/pkg/utils"
)

const (
	limit  = 4 << 20
	enough = 1200
)

var background = context.Background()

// The scenarios, as far as the client's API goes; the clients in other languages have the same names and facts.
var scenarios = map[string]func(*run){
	"normal":                normal,
	"bodies":                bodies,
	"batch_receive":         batchReceive,
	"early_receive":         earlyReceive,
	"subscriptions":         subscriptions,
	"by_name":               dialling,
	"by_address":            dialling,
	"by_ipv6":               dialling,
	"first_use":             firstUse,
	"empty_poll":            emptyPoll,
	"idle":                  idle,
	"fifo_simple":           fifoSimple,
	"fifo_held":             fifoHeld,
	"fifo_push":             fifoPush,
	"lite":                  lite,
	"delay":                 delay,
	"recall":                recall,
	"transaction":           transaction,
	"transaction_twice":     transactionTwice,
	"transaction_check":     transactionCheck,
	"transaction_abandon":   transactionAbandon,
	"transaction_successor": transactionSuccessor,
	"tags":                  tags,
	"sql92":                 sql92,
	"change_invisible":      changeInvisible,
	"nack":                  nack,
	"push_consumer":         pushConsumer,
	"push_shared":           pushShared,
	"push_retry":            pushRetry,
	"dead_letter":           deadLetter,
	"dead_letter_fifo":      deadLetterFifo,
	"many_receives":         manyReceives,
	"broadcast":             broadcast,
	"wrong_type":            wrongType,
	"unknown_group":         unknownGroup,
	"illegal_names":         illegalNames,
	"illegal_messages":      illegalMessages,
	"illegal_receives":      illegalReceives,
	"interrupted":           interrupted,
	"drained":               drained,
}

func message(topic, body string, change ...func(*rocketmq.Message)) *rocketmq.Message {
	made := &rocketmq.Message{Topic: topic, Body: []byte(body)}
	for _, each := range change {
		each(made)
	}
	return made
}

func tagged(tag string) func(*rocketmq.Message) {
	return func(m *rocketmq.Message) {
		if tag != "" {
			m.SetTag(tag)
		}
	}
}

func keyed(keys ...string) func(*rocketmq.Message) {
	return func(m *rocketmq.Message) { m.SetKeys(keys...) }
}

func having(properties map[string]string) func(*rocketmq.Message) {
	return func(m *rocketmq.Message) {
		for name, value := range properties {
			m.AddProperty(name, value)
		}
	}
}

func grouped(group string) func(*rocketmq.Message) {
	return func(m *rocketmq.Message) { m.SetMessageGroup(group) }
}

func due(at time.Time) func(*rocketmq.Message) {
	return func(m *rocketmq.Message) { m.SetDelayTimestamp(at) }
}

func (r *run) sentAs(m *rocketmq.Message, receipt *rocketmq.SendReceipt, more data) {
	r.say("sent", with(contents(m.Body), data{
		"id": receipt.MessageID, "group": textOf(m.GetMessageGroup()), "recall": receipt.RecallHandle,
	}, more))
}

func (r *run) sent(producer rocketmq.Producer, m *rocketmq.Message, more data) *rocketmq.SendReceipt {
	receipts, err := producer.Send(background, m)
	must(err)
	r.sentAs(m, receipts[0], more)
	return receipts[0]
}

func normal(r *run) {
	topic := r.params["topic"]
	producer := r.producer(nil, topic)
	consumer := r.simple(r.params["group"], all(topic), 3*time.Second)
	properties := map[string]string{
		"colour": "blue", "größe": "übergroß 🐇", "spaced key": " a b ",
		string(bytes.Repeat([]byte("k"), 200)): string(bytes.Repeat([]byte("v"), 2000)),
	}
	r.sent(producer, message(topic, "hello", tagged("TagA"), keyed("k1", "k2"), having(properties)), data{"label": "full"})
	later := message(topic, "grüße, 世界 🌍", tagged("标签"), keyed("schlüssel"))
	arrived := make(chan error, 1)
	producer.SendAsync(background, later, func(_ context.Context, receipts []*rocketmq.SendReceipt, err error) {
		if err == nil {
			r.sentAs(later, receipts[0], data{"label": "async"})
		}
		arrived <- err
	})
	must(<-arrived)
	r.sent(producer, message(topic, "bare"), data{"label": "bare"})
	r.takeAll(consumer, 3, "")
	r.quiet(consumer, time.Now())
}

func bodies(r *run) {
	topic := r.params["topic"]
	producer := r.producer(nil, topic)
	consumer := r.simple(r.params["group"], all(topic), 3*time.Second)
	pattern := func(size int) string {
		body := make([]byte, size)
		for at := range body {
			body[at] = byte(at % 251)
		}
		return string(body)
	}
	for _, size := range []int{1, 65_536, limit} {
		r.sent(producer, message(topic, pattern(size)), nil)
	}
	r.tryTo("one byte over", func() error {
		_, err := producer.Send(background, message(topic, pattern(limit+1)))
		return err
	})
	r.receiveUntil(consumer, 3, 1, hold, true, "")
	r.quiet(consumer, time.Now())
}

func batchReceive(r *run) {
	topic := r.params["topic"]
	producer := r.producer(nil, topic)
	consumer := r.simple(r.params["group"], all(topic), 3*time.Second)
	for n := range 80 {
		r.sent(producer, message(topic, fmt.Sprintf("m%d", n)), nil)
	}
	r.receiveUntil(consumer, 80, 100, hold, true, "")
	r.quiet(consumer, time.Now())
}

func earlyReceive(r *run) {
	topic := r.params["topic"]
	producer := r.producer(nil, topic)
	for n := range 8 {
		r.sent(producer, message(topic, fmt.Sprintf("m%d", n)), nil)
		r.takeAll(r.simple(r.params["group"], all(topic), 3*time.Second), 1, "")
	}
}

func subscriptions(r *run) {
	one, two := r.params["topic"], r.params["topic2"]
	producer := r.producer(nil, one, two)
	consumer := r.simple(r.params["group"], all(one), time.Second)
	must(consumer.Subscribe(two, rocketmq.NewFilterExpression("wanted")))
	for _, topic := range []string{one, two} {
		r.sent(producer, message(topic, topic+" wanted", tagged("wanted")), nil)
		r.sent(producer, message(topic, topic+" other", tagged("other")), nil)
	}
	r.takeAll(consumer, 3, "")
	must(consumer.Unsubscribe(one))
	r.say("unsubscribed", nil)
	for _, topic := range []string{one, two} {
		r.sent(producer, message(topic, topic+" again", tagged("wanted")), nil)
	}
	r.takeAll(consumer, 1, "")
	r.quiet(consumer, time.Now())
}

// dialling connects to `dial`; every address that the client is told must be that one.
func dialling(r *run) {
	topic, dialled := r.params["topic"], r.params["dial"]
	r.endpoint = dialled
	producer := r.producer(nil, topic)
	consumer := r.simple(r.params["group"], all(topic), 3*time.Second)
	receipt := r.sent(producer, message(topic, "by name"), nil)
	r.takeAll(consumer, 1, "")
	r.say("told", data{"facade": utils.EndpointsToString(receipt.Endpoints), "dialled": dialled})
}

// firstUse: topic and group exist for nobody yet; the group is made after the message was sent.
func firstUse(r *run) {
	topic := r.params["topic"]
	producer := r.producer(nil, topic)
	r.sent(producer, message(topic, "first"), nil)
	consumer := r.simple(r.params["group"], all(topic), 3*time.Second)
	r.takeAll(consumer, 1, "")
	r.quiet(consumer, time.Now())
}

func emptyPoll(r *run) {
	topic := r.params["topic"]
	producer := r.producer(nil, topic)
	patient := r.simple(r.params["group"], all(topic), 20*time.Second)
	hasty := r.simple(r.params["group"], all(topic), time.Second)
	var waiting sync.WaitGroup
	waiting.Add(1)
	go func() {
		defer waiting.Done()
		r.takeAll(patient, 1, "patient")
	}()
	for range 2 {
		_, err := r.received(hasty, 16, hold, "hasty")
		must(err)
	}
	r.close(hasty)
	r.sent(producer, message(topic, "at last"), nil)
	waiting.Wait()
}

// idle: consumers of both kinds wait longer than one poll on an empty topic, then a message comes.
func idle(r *run) {
	topic, pushed := r.params["topic"], r.params["topic2"]
	var seen seenBy
	producer := r.producer(nil, topic, pushed)
	simple := r.simple(r.params["group"], all(topic), 20*time.Second)
	r.push(r.params["group2"], all(pushed), func(m *rocketmq.MessageView) bool {
		r.saw(m, "push", nil)
		seen.add(m)
		return true
	})
	_, err := r.received(simple, 16, hold, "empty")
	must(err)
	for _, where := range []string{topic, pushed} {
		r.sent(producer, message(where, "at last"), nil)
	}
	r.takeAll(simple, 1, "simple")
	r.waitFor(seen.atLeast(1))
}

func inOrder(groups string, count int, each func(group, body string)) {
	for n := range count {
		for _, group := range groups {
			each(string(group), fmt.Sprintf("%c%d", group, n))
		}
	}
}

func fifoSimple(r *run) {
	topic := r.params["topic"]
	producer := r.producer(nil, topic)
	consumer := r.simple(r.params["group"], all(topic), 3*time.Second)
	inOrder("abcde", 8, func(group, body string) {
		r.sent(producer, message(topic, body, grouped(group)), nil)
	})
	r.takeAll(consumer, 40, "")
	r.quiet(consumer, time.Now())
}

// fifoHeld: a held message holds up its own message group and no other; when it comes back, order goes on.
func fifoHeld(r *run) {
	topic := r.params["topic"]
	producer := r.producer(nil, topic)
	consumer := r.simple(r.params["group"], all(topic), time.Second)
	r.sent(producer, message(topic, "a0", grouped("a")), nil)
	r.receiveUntil(consumer, 1, 16, time.Minute, false, "first")
	for _, body := range []string{"a1", "b0", "b1"} {
		r.sent(producer, message(topic, body, grouped(body[:1])), nil)
	}
	r.takeAll(consumer, 2, "meanwhile")
	r.takeAll(consumer, 2, "afterwards")
	r.quiet(consumer, time.Now())
}

func fifoPush(r *run) {
	topic := r.params["topic"]
	var lock sync.Mutex
	failed, finished := map[string]bool{}, 0
	r.push(r.params["group"], all(topic), func(m *rocketmq.MessageView) bool {
		lock.Lock()
		defer lock.Unlock()
		body := string(m.GetBody())
		good := (body != "a2" && body != "c0") || failed[body]
		r.saw(m, "", data{"consumed": good})
		if good {
			finished++
		} else {
			failed[body] = true
		}
		return good
	})
	producer := r.producer(nil, topic)
	inOrder("abcd", 8, func(group, body string) {
		r.sent(producer, message(topic, body, grouped(group)), nil)
	})
	r.waitFor(func() bool {
		lock.Lock()
		defer lock.Unlock()
		return finished >= 32
	})
}

// lite: a client gets the lite topics that it subscribes to, each in its order, and no others.
func lite(r *run) {
	topic := r.params["topic"]
	var lock sync.Mutex
	failed, finished := false, 0
	consumer := r.lite(r.params["group"], topic, func(m *rocketmq.MessageView) bool {
		lock.Lock()
		defer lock.Unlock()
		good := string(m.GetBody()) != "room-1 2" || failed
		r.saw(m, "", data{"consumed": good, "lite": m.GetLiteTopic()})
		if good {
			finished++
		} else {
			failed = true
		}
		return good
	})
	finishedAll := func(count int) func() bool {
		return func() bool {
			lock.Lock()
			defer lock.Unlock()
			return finished >= count
		}
	}
	producer := r.producer(nil, topic)
	r.tryTo("an illegal name", func() error { return consumer.SubscribeLite("no good") })
	send := func(from, to int, rooms ...string) {
		for n := from; n < to; n++ {
			for _, room := range rooms {
				in := func(m *rocketmq.Message) { m.SetLiteTopic(room) }
				r.sent(producer, message(topic, fmt.Sprintf("%s %d", room, n), in), data{"lite": room})
			}
		}
	}
	must(consumer.SubscribeLite("room-1"))
	must(consumer.SubscribeLite("room-2"))
	send(0, 5, "room-1", "room-2", "room-3")
	r.waitFor(finishedAll(10))
	r.say("two rooms", nil)
	must(consumer.UnSubscribeLite("room-2"))
	send(5, 7, "room-1", "room-2")
	r.waitFor(finishedAll(12))
	must(consumer.SubscribeLite("room-3"))
	r.waitFor(finishedAll(17))
}

func delay(r *run) {
	topic := r.params["topic"]
	producer := r.producer(nil, topic)
	consumer := r.simple(r.params["group"], all(topic), 3*time.Second)
	base := time.Now().Truncate(time.Second)
	for _, each := range []struct {
		body string
		at   time.Time
	}{{"later", base.Add(4 * time.Second)}, {"soon", base.Add(2 * time.Second)}, {"past", base.Add(-time.Minute)}} {
		r.sent(producer, message(topic, each.body, due(each.at)), data{"due": each.at.UnixMilli()})
	}
	r.takeAll(consumer, 3, "")
	r.quiet(consumer, time.Now())
}

func recall(r *run) {
	topic := r.params["topic"]
	producer := r.producer(nil, topic)
	consumer := r.simple(r.params["group"], all(topic), time.Second)
	at := time.Now().Truncate(time.Second).Add(40 * time.Second)
	doomed := r.sent(producer, message(topic, "doomed", due(at)), nil)
	spared := r.sent(producer, message(topic, "spared", due(at)), nil)
	recalled, err := producer.Recall(background, topic, doomed.RecallHandle)
	must(err)
	r.say("recalled", data{"id": recalled})
	r.takeAll(consumer, 1, "")
	r.quiet(consumer, at.Add(2*time.Second))
	for step, handle := range map[string]string{
		"recall again": doomed.RecallHandle, "recall delivered": spared.RecallHandle, "recall nonsense": "nonsense",
	} {
		r.tryTo(step, func() error {
			_, err := producer.Recall(background, topic, handle)
			return err
		})
	}
}

func unknown(*rocketmq.MessageView) rocketmq.TransactionResolution { return rocketmq.UNKNOWN }

func (r *run) half(producer rocketmq.Producer, m *rocketmq.Message) rocketmq.Transaction {
	transaction, _ := r.halfWith(producer, m)
	return transaction
}

func (r *run) halfWith(producer rocketmq.Producer, m *rocketmq.Message) (rocketmq.Transaction, *rocketmq.SendReceipt) {
	transaction := producer.BeginTransaction()
	receipts, err := producer.SendWithTransaction(background, m, transaction)
	must(err)
	r.sentAs(m, receipts[0], nil)
	return transaction, receipts[0]
}

// toldCheck commits what it is asked about, but for the bad one.
func (r *run) toldCheck(m *rocketmq.MessageView) rocketmq.TransactionResolution {
	body := string(m.GetBody())
	r.say("checked", data{"id": m.GetMessageId(), "body": body, "tag": textOf(m.GetTag())})
	if body == "bad" {
		return rocketmq.ROLLBACK
	}
	return rocketmq.COMMIT
}

func transaction(r *run) {
	topic := r.params["topic"]
	producer := r.producer(unknown, topic)
	consumer := r.simple(r.params["group"], all(topic), 3*time.Second)
	committed := r.half(producer, message(topic, "committed", tagged("t"), keyed("k")))
	rolledBack := r.half(producer, message(topic, "rolled back", tagged("t"), keyed("k")))
	messages, err := r.received(consumer, 16, hold, "too early")
	must(err)
	if len(messages) > 0 {
		panic(errors.New("a half message was visible"))
	}
	must(rolledBack.RollBack())
	must(committed.Commit())
	r.say("ended", nil)
	r.takeAll(consumer, 1, "")
	r.quiet(consumer, time.Now().Add(4*time.Second))
}

// transactionTwice: the same end again is answered OK, the other end and an unknown id are refused.
func transactionTwice(r *run) {
	topic := r.params["topic"]
	producer := r.producer(unknown, topic)
	consumer := r.simple(r.params["group"], all(topic), 3*time.Second)
	end, receipt := r.halfWith(producer, message(topic, "once"))
	r.tryTo("commit", end.Commit)
	r.tryTo("commit again", end.Commit)
	r.tryTo("roll back after commit", end.RollBack)
	r.takeAll(consumer, 1, "")
	r.quiet(consumer, time.Now())
	receipt.TransactionId = "nonsense" // it is the receipt by which the transaction ends
	r.tryTo("unknown id", end.Commit)
}

// transactionAbandon sends a half message and dies at once, the whole process of it.
func transactionAbandon(r *run) {
	topic := r.params["topic"]
	r.half(r.producer(r.toldCheck, topic), message(topic, "orphan"))
	os.Exit(9)
}

// transactionSuccessor: another instance of the producer is asked about what a dead one left.
func transactionSuccessor(r *run) {
	topic := r.params["topic"]
	r.producer(r.toldCheck, topic)
	r.takeAll(r.simple(r.params["group"], all(topic), 3*time.Second), 1, "")
}

func transactionCheck(r *run) {
	topic := r.params["topic"]
	var bad atomic.Bool
	producer := r.producer(func(m *rocketmq.MessageView) rocketmq.TransactionResolution {
		resolution := r.toldCheck(m)
		if resolution == rocketmq.ROLLBACK {
			bad.Store(true)
		}
		return resolution
	}, topic)
	consumer := r.simple(r.params["group"], all(topic), 3*time.Second)
	for _, body := range []string{"good", "bad"} {
		r.half(producer, message(topic, body, tagged("t")))
	}
	r.takeAll(consumer, 1, "")
	r.waitFor(bad.Load)
	r.quiet(consumer, time.Now().Add(10*time.Second))
}

func tags(r *run) {
	topic := r.params["topic"]
	producer := r.producer(nil, topic)
	some := r.simple(r.params["group"], filters{topic: rocketmq.NewFilterExpression("a || c || AaAa")}, 3*time.Second)
	every := r.simple(r.params["group2"], all(topic), 3*time.Second)
	for _, tag := range []string{"a", "b", "c", "BBBB", ""} { // BBBB has the Java hash of AaAa
		body := tag
		if body == "" {
			body = "none"
		}
		r.sent(producer, message(topic, body, tagged(tag)), nil)
	}
	r.takeAll(some, 2, "some")
	r.takeAll(every, 5, "every")
	r.quiet(some, time.Now())
}

func sql92(r *run) {
	topic := r.params["topic"]
	producer := r.producer(nil, topic)
	sql := func(expression string) filters {
		return filters{topic: rocketmq.NewFilterExpressionWithType(expression, rocketmq.SQL92)}
	}
	consumer := r.simple(r.params["group"], sql(
		"(price BETWEEN 10 AND 20 AND colour IN ('red', 'grün')) OR TAGS = 'vip' OR weight IS NOT NULL"), 3*time.Second)
	for _, each := range []struct {
		body, tag  string
		properties map[string]string
	}{
		{"yes: red 10", "", map[string]string{"price": "10", "colour": "red"}},
		{"yes: grün 20", "", map[string]string{"price": "20", "colour": "grün"}},
		{"no: red 21", "", map[string]string{"price": "21", "colour": "red"}},
		{"no: blue 15", "", map[string]string{"price": "15", "colour": "blue"}},
		{"no: red", "", map[string]string{"colour": "red"}},
		{"yes: vip", "vip", nil},
		{"yes: weight", "", map[string]string{"weight": "1"}},
	} {
		r.sent(producer, message(topic, each.body, tagged(each.tag), having(each.properties)), nil)
	}
	r.takeAll(consumer, 4, "")
	r.quiet(consumer, time.Now())
	r.tryTo("illegal expression", func() error {
		return r.receiveOnce(r.params["group2"], sql("price >"))
	})
}
