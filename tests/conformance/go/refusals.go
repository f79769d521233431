package main

import (
	"fmt"
	"strings"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

// receiveOnce starts a consumer and receives: whichever is refused tells.
func (r *run) receiveOnce(group string, subscribed filters) error {
	consumer, err := r.startedSimple(group, subscribed, time.Second)
	if err != nil {
		return err
	}
	_, err = r.received(consumer, 16, hold, "")
	return err
}

func wrongType(r *run) {
	plain, ordered, several := r.params["topic"], r.params["topic2"], r.params["topic3"]
	rollBack := func(*rocketmq.MessageView) rocketmq.TransactionResolution { return rocketmq.ROLLBACK }
	producer := r.producer(rollBack, plain, ordered, several)
	soon := due(time.Now().Add(time.Second))
	send := func(step, topic string, change ...func(*rocketmq.Message)) {
		r.tryTo(step, func() error {
			_, err := producer.Send(background, message(topic, "x", change...))
			return err
		})
	}
	half := func(step, topic string) {
		r.tryTo(step, func() error {
			transaction := producer.BeginTransaction()
			if _, err := producer.SendWithTransaction(background, message(topic, "x"), transaction); err != nil {
				return err
			}
			return transaction.RollBack()
		})
	}
	send("FIFO to NORMAL", plain, grouped("g"))
	send("DELAY to NORMAL", plain, soon)
	half("TRANSACTION to NORMAL", plain)
	send("NORMAL to FIFO", ordered)
	send("NORMAL to several", several)
	send("FIFO to several", several, grouped("g"))
	send("DELAY to several", several, soon)
	half("TRANSACTION to several", several)
}

// unknownGroup: creation is off; the topic exists, the group does not.
func unknownGroup(r *run) {
	r.tryTo("receive", func() error { return r.receiveOnce(r.params["group"], all(r.params["topic"])) })
}

func illegalNames(r *run) {
	topic := r.params["topic"]
	producer := r.producer(nil, topic)
	for step, name := range map[string]string{
		"topic with a space": "a b", "topic too long": strings.Repeat("t", 128),
	} {
		r.tryTo(step, func() error {
			_, err := producer.Send(background, message(name, "x"))
			return err
		})
	}
	for step, name := range map[string]string{
		"group with a space": "a b", "group too long": strings.Repeat("g", 256),
	} {
		r.tryTo(step, func() error { return r.receiveOnce(name, all(topic)) })
	}
}

func illegalMessages(r *run) {
	topic, ordered, delayed := r.params["topic"], r.params["topic2"], r.params["topic3"]
	producer := r.producer(nil, topic, ordered, delayed)
	send := func(step, where, body string, change func(*rocketmq.Message)) {
		r.tryTo(step, func() error {
			_, err := producer.Send(background, message(where, body, change))
			return err
		})
	}
	many := func(count int) func(*rocketmq.Message) {
		properties := map[string]string{}
		for n := range count {
			properties[fmt.Sprintf("p%d", n)] = "v"
		}
		return having(properties)
	}
	property := func(name, value string) func(*rocketmq.Message) {
		return having(map[string]string{name: value})
	}
	send("129 properties", topic, "x", many(129))
	send("128 properties", topic, "x", many(128))
	send("properties of 16385 bytes", topic, "x", property("p", strings.Repeat("v", 16_384)))
	send("properties of 16384 bytes", topic, "x", property("p", strings.Repeat("v", 16_383)))
	send("reserved property", topic, "x", property("UNIQ_KEY", "v"))
	send("control character in a property", topic, "x", property("p", "a\x01b"))
	send("control character in the tag", topic, "x", tagged("a\x02b"))
	send("control character in a key", topic, "x", keyed("a\x02b"))
	send("blank key", topic, "x", keyed(" "))
	send("tag with a bar", topic, "x", tagged("a|b"))
	send("message group of 64 bytes", ordered, "x", grouped(strings.Repeat("g", 64)))
	send("message group of 63 bytes", ordered, "x", grouped(strings.Repeat("g", 63)))
	send("delay of 25 hours", delayed, "x", due(time.Now().Add(25*time.Hour)))
	send("empty body", topic, "", tagged(""))
}

func illegalReceives(r *run) {
	topic := r.params["topic"]
	producer := r.producer(nil, topic)
	r.sent(producer, message(topic, "x"), nil)
	consumer := r.simple(r.params["group"], all(topic), time.Second)
	receive := func(step string, most int32, invisible time.Duration) {
		r.tryTo(step, func() error {
			_, err := r.received(consumer, most, invisible, "")
			return err
		})
	}
	receive("invisible for 9 s", 16, 9*time.Second)
	receive("invisible for 13 h", 16, 13*time.Hour)
	receive("no messages asked", 0, hold)
	held := r.receiveUntil(consumer, 1, 16, hold, false, "")[0]
	r.tryTo("change to 13 h", func() error { return consumer.ChangeInvisibleDuration(held, 13*time.Hour) })
	r.tryTo("ack after a refused change", func() error { return consumer.Ack(background, held) })
	r.tryTo("tag expression of bars", func() error {
		return r.receiveOnce(r.params["group2"], filters{topic: rocketmq.NewFilterExpression("||")})
	})
}
