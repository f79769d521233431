package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

const limit = 4 << 20

var background = context.Background()

// The scenarios, as far as the client's API goes; the clients in other languages have the same names and facts.
var scenarios = map[string]func(*run){
	"normal": normal, "bodies": bodies, "batch_receive": batchReceive, "early_receive": earlyReceive,
	"subscriptions": subscriptions, "empty_poll": emptyPoll, "fifo_simple": fifoSimple,
	"fifo_push": fifoPush, "delay": delay, "recall": recall, "transaction": transaction,
	"transaction_check": transactionCheck, "tags": tags, "sql92": sql92,
	"change_invisible": changeInvisible, "nack": nack, "push_consumer": pushConsumer, "push_shared": pushShared,
	"push_retry": pushRetry, "dead_letter": deadLetter,
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
	must(hasty.GracefulStop())
	r.sent(producer, message(topic, "at last"), nil)
	waiting.Wait()
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
	transaction := producer.BeginTransaction()
	receipts, err := producer.SendWithTransaction(background, m, transaction)
	must(err)
	r.sentAs(m, receipts[0], nil)
	return transaction
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

func transactionCheck(r *run) {
	topic := r.params["topic"]
	var bad atomic.Bool
	producer := r.producer(func(m *rocketmq.MessageView) rocketmq.TransactionResolution {
		body := string(m.GetBody())
		r.say("checked", data{"id": m.GetMessageId(), "body": body, "tag": textOf(m.GetTag())})
		if body == "bad" {
			bad.Store(true)
			return rocketmq.ROLLBACK
		}
		return rocketmq.COMMIT
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
		broken, err := rocketmq.NewSimpleConsumer(r.config(r.params["group2"]),
			rocketmq.WithSimpleAwaitDuration(time.Second), rocketmq.WithSimpleSubscriptionExpressions(sql("price >")))
		must(err)
		if err := broken.Start(); err != nil {
			return err
		}
		r.closing = append(r.closing, func() { _ = broken.GracefulStop() })
		_, err = r.received(broken, 16, hold, "")
		return err
	})
}

func (r *run) changed(consumer rocketmq.SimpleConsumer, m *rocketmq.MessageView, seconds int) {
	must(consumer.ChangeInvisibleDuration(m, time.Duration(seconds)*time.Second))
	r.say("changed", data{"id": m.GetMessageId(), "seconds": seconds})
}

func changeInvisible(r *run) {
	topic := r.params["topic"]
	producer := r.producer(nil, topic)
	consumer := r.simple(r.params["group"], all(topic), time.Second)
	for _, body := range []string{"longer", "shorter"} {
		r.sent(producer, message(topic, body), nil)
	}
	held := map[string]*rocketmq.MessageView{}
	for _, m := range r.receiveUntil(consumer, 2, 16, time.Minute, false, "") {
		held[string(m.GetBody())] = m
	}
	begin := time.Now()
	r.changed(consumer, held["longer"], 300)
	r.changed(consumer, held["shorter"], 1)
	r.takeAll(consumer, 1, "early")
	r.quiet(consumer, begin.Add(61*time.Second))
	r.acked(consumer, held["longer"])
	r.quiet(consumer, time.Now())
}

func nack(r *run) {
	topic := r.params["topic"]
	producer := r.producer(nil, topic)
	consumer := r.simple(r.params["group"], all(topic), 3*time.Second)
	r.sent(producer, message(topic, "no"), nil)
	for range 3 {
		for _, m := range r.receiveUntil(consumer, 1, 16, hold, false, "") {
			r.changed(consumer, m, 1)
		}
	}
	r.takeAll(consumer, 1, "")
	r.quiet(consumer, time.Now())
}

// seenBy counts different messages.
type seenBy struct {
	lock sync.Mutex
	ids  map[string]int
}

func (s *seenBy) add(m *rocketmq.MessageView) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.ids == nil {
		s.ids = map[string]int{}
	}
	s.ids[m.GetMessageId()]++
}

func (s *seenBy) atLeast(count int) func() bool {
	return func() bool {
		s.lock.Lock()
		defer s.lock.Unlock()
		return len(s.ids) >= count
	}
}

func pushConsumer(r *run) {
	topic := r.params["topic"]
	wanted := filters{topic: rocketmq.NewFilterExpression("wanted")}
	var seen seenBy
	r.push(r.params["group"], wanted, func(m *rocketmq.MessageView) bool {
		r.saw(m, "", nil)
		seen.add(m)
		return true
	})
	producer := r.producer(nil, topic)
	for n := range 50 {
		r.sent(producer, message(topic, fmt.Sprintf("m%d", n), tagged("wanted")), nil)
		r.sent(producer, message(topic, fmt.Sprintf("other%d", n), tagged("other")), nil)
	}
	r.waitFor(seen.atLeast(50))
	r.quiet(r.simple(r.params["group"], wanted, 3*time.Second), time.Now())
}

func pushShared(r *run) {
	topic := r.params["topic"]
	var seen seenBy
	for _, by := range []string{"one", "two"} {
		r.push(r.params["group"], all(topic), func(m *rocketmq.MessageView) bool {
			r.saw(m, by, nil)
			seen.add(m)
			return true
		})
	}
	producer := r.producer(nil, topic)
	for n := range 100 {
		r.sent(producer, message(topic, fmt.Sprintf("m%d", n)), nil)
	}
	r.waitFor(seen.atLeast(100))
}

func pushRetry(r *run) {
	topic := r.params["topic"]
	var consumed atomic.Bool
	r.push(r.params["group"], all(topic), func(m *rocketmq.MessageView) bool {
		good := m.GetDeliveryAttempt() >= 3
		r.saw(m, "", data{"consumed": good})
		if good {
			consumed.Store(true)
		}
		return good
	})
	producer := r.producer(nil, topic)
	r.sent(producer, message(topic, "third time lucky"), nil)
	r.waitFor(consumed.Load)
	r.quiet(r.simple(r.params["group"], all(topic), 3*time.Second), time.Now())
}

func deadLetter(r *run) {
	topic := r.params["topic"]
	var attempts atomic.Int32
	r.push(r.params["group"], all(topic), func(m *rocketmq.MessageView) bool {
		r.saw(m, "", nil)
		attempts.Add(1)
		return false
	})
	producer := r.producer(nil, topic)
	poison := message(topic, "poison", tagged("t"), keyed("k"), having(map[string]string{"p": "v"}))
	r.sent(producer, poison, nil)
	r.waitFor(func() bool { return attempts.Load() >= 2 })
	dead, found := "%DLQ%"+r.params["group"], 0
	r.waitFor(func() bool { // the topic exists when the first message is in it
		consumer, err := rocketmq.NewSimpleConsumer(r.config(r.params["group2"]),
			rocketmq.WithSimpleAwaitDuration(time.Second), rocketmq.WithSimpleSubscriptionExpressions(all(dead)))
		must(err)
		if err := consumer.Start(); err != nil {
			r.say("no dead letters yet", data{"error": errorFacts(err)})
			time.Sleep(200 * time.Millisecond)
			return false
		}
		defer func() { _ = consumer.GracefulStop() }()
		messages, err := r.received(consumer, 16, hold, "dead")
		if err != nil {
			r.say("no dead letters yet", data{"error": errorFacts(err)})
		}
		for _, m := range messages {
			r.acked(consumer, m)
			found++
		}
		return found >= 1
	})
	r.quiet(r.simple(r.params["group"], all(topic), time.Second), time.Now())
}
