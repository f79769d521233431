package main

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

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

// broadcast: two consumers of a broadcast group, each there before the first message.
func broadcast(r *run) {
	topic := r.params["topic"]
	consumers := map[string]rocketmq.SimpleConsumer{}
	for _, by := range []string{"one", "two"} {
		consumers[by] = r.simple(r.params["group"], all(topic), time.Second)
		_, err := r.received(consumers[by], 16, hold, by)
		must(err)
	}
	producer := r.producer(nil, topic)
	for n := range 20 {
		r.sent(producer, message(topic, fmt.Sprintf("m%d", n)), nil)
	}
	for by, consumer := range consumers {
		r.takeAll(consumer, 20, by)
		r.quiet(consumer, time.Now())
	}
}

// manyReceives: a receive for each message (demand 40).
func manyReceives(r *run) {
	topic := r.params["topic"]
	seen := make(chan struct{}, enough)
	r.push(r.params["group"], all(topic), func(*rocketmq.MessageView) bool {
		seen <- struct{}{}
		return true
	})
	producer := r.producer(nil, topic)
	count := 0
	for late := false; count < enough && !late; {
		_, err := producer.Send(background, message(topic, fmt.Sprintf("m%d", count)))
		must(err)
		select {
		case <-seen:
			count++
		case <-time.After(patience):
			late = true
		}
	}
	r.say("counted", data{"count": count})
}

// deadLetters reads the group's dead-letter topic, which exists when the first message is in it.
func (r *run) deadLetters(count int) {
	found := 0
	r.waitFor(func() bool {
		consumer, err := r.startedSimple(r.params["group2"], all("%DLQ%"+r.params["group"]), time.Second)
		if err != nil {
			r.say("no dead letters yet", data{"error": errorFacts(err)})
			time.Sleep(200 * time.Millisecond)
			return false
		}
		defer r.close(consumer)
		messages, err := r.received(consumer, 16, hold, "dead")
		if err != nil {
			r.say("no dead letters yet", data{"error": errorFacts(err)})
		}
		for _, m := range messages {
			r.acked(consumer, m)
			found++
		}
		return found >= count
	})
}

// deadLetterFifo: an ordered consumer uses up the attempts by itself and asks for the dead-letter topic.
func deadLetterFifo(r *run) {
	topic := r.params["topic"]
	producer := r.producer(nil, topic)
	for _, body := range []string{"before", "poison", "after"} {
		r.sent(producer, message(topic, body, grouped("a")), nil)
	}
	var consumed seenBy
	r.push(r.params["group"], all(topic), func(m *rocketmq.MessageView) bool {
		good := string(m.GetBody()) != "poison"
		r.saw(m, "", data{"consumed": good})
		if good {
			consumed.add(m)
		}
		return good
	})
	r.waitFor(consumed.atLeast(2))
	r.deadLetters(1)
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
	r.deadLetters(1)
	r.quiet(r.simple(r.params["group"], all(topic), time.Second), time.Now())
}
