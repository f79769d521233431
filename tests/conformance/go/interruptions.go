package main

import (
	"fmt"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

const (
	longHold = 300 * time.Second // of what is acknowledged after an interruption, however long that takes,
	giveBack = 30 * time.Second  // and of what comes again after it
)

// patiently does something as an application does it: again, until the gateway is back and there is enough.
func (r *run) patiently(action func() (bool, error)) {
	r.waitFor(func() bool {
		enough, err := action()
		if err != nil {
			r.say("unanswered", data{"error": errorFacts(err)})
			time.Sleep(100 * time.Millisecond)
		}
		return err == nil && enough
	})
}

// A steady producer sends all the time, whether or not anybody answers.
type steady struct {
	stopped, over chan struct{}
	lock          sync.Mutex
	answered      map[string]bool
}

func (r *run) sendSteadily(producer rocketmq.Producer, topic string) *steady {
	s := &steady{stopped: make(chan struct{}), over: make(chan struct{}), answered: map[string]bool{}}
	go func() {
		defer close(s.over)
		for number := 1; ; number++ {
			select {
			case <-s.stopped:
				return
			case <-time.After(20 * time.Millisecond):
			}
			m := message(topic, fmt.Sprintf("m%d", number))
			receipts, err := producer.Send(background, m)
			if err != nil {
				r.say("unanswered", data{"error": errorFacts(err)})
				continue
			}
			r.sentAs(m, receipts[0], data{"by": "steady"})
			s.lock.Lock()
			s.answered[receipts[0].MessageID] = true
			s.lock.Unlock()
		}
	}()
	return s
}

func (s *steady) count() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return len(s.answered)
}

func (s *steady) answeredMore() func() bool {
	goal := s.count() + 10
	return func() bool { return s.count() >= goal }
}

// stop returns when nothing is sent any more.
func (s *steady) stop() {
	close(s.stopped)
	<-s.over
}

func (s *steady) allIn(seen *seenBy) func() bool {
	return func() bool {
		s.lock.Lock()
		defer s.lock.Unlock()
		seen.lock.Lock()
		defer seen.lock.Unlock()
		for id := range s.answered {
			if seen.ids[id] == 0 {
				return false
			}
		}
		return true
	}
}

// interrupted: the gateway is stopped and started twice while this goes on; `go` tells each return.
func interrupted(r *run) {
	topic, heldTopic := r.params["topic"], r.params["topic2"]
	var seen seenBy
	producer := r.producer(nil, topic, heldTopic, r.params["topic3"])
	r.push(r.params["group"], all(topic), func(m *rocketmq.MessageView) bool {
		r.saw(m, "background", nil)
		seen.add(m)
		return true
	})
	simple := r.simple(r.params["group2"], all(heldTopic), time.Second)
	sending := r.sendSteadily(producer, topic)
	for _, name := range []string{"one", "two"} {
		r.interruption(name, producer, simple, sending)
	}
	sending.stop()
	r.waitFor(sending.allIn(&seen))
	r.quiet(simple, time.Now())
}

// drained: the gateway begins to drain at `ready`; another one is there at `go`, and the first one drains on.
func drained(r *run) {
	topic := r.params["topic"]
	var seen seenBy
	producer := r.producer(nil, topic)
	r.push(r.params["group"], all(topic), func(m *rocketmq.MessageView) bool {
		r.saw(m, "", nil)
		seen.add(m)
		return true
	})
	sending := r.sendSteadily(producer, topic)
	r.waitFor(sending.answeredMore())
	r.waitFor(seen.atLeast(1))
	r.say("ready", nil)
	<-r.wake
	r.waitFor(sending.answeredMore())
	sending.stop()
	r.waitFor(sending.allIn(&seen))
}

func (r *run) interruption(name string, producer rocketmq.Producer, simple rocketmq.SimpleConsumer, sending *steady) {
	heldTopic, delayedTopic, halfTopic := r.params["topic2"], r.params["topic3"], r.params["topic4"]
	delayed := r.simple(r.params["group2"], all(delayedTopic), time.Second)
	halves := r.simple(r.params["group2"], all(halfTopic), time.Second)
	gather := func(consumer rocketmq.SimpleConsumer, count int, invisible time.Duration, ack bool, by string) []*rocketmq.MessageView {
		var found []*rocketmq.MessageView
		r.patiently(func() (bool, error) {
			messages, err := r.received(consumer, 1, invisible, by)
			if err != nil {
				return false, err
			}
			for _, m := range messages {
				found = append(found, m)
				if ack {
					if err := r.ack(consumer, m); err != nil {
						return false, err
					}
				}
			}
			return len(found) >= count, nil
		})
		return found
	}
	for n := range 6 {
		r.sent(producer, message(heldTopic, fmt.Sprintf("%s %d", name, n)), data{"by": "held"})
	}
	held := gather(simple, 3, longHold, false, name)
	gather(simple, 3, giveBack, false, name)
	for _, m := range held[:2] {
		r.acked(simple, m)
	}
	at := time.Now().Truncate(time.Second).Add(6 * time.Second)
	r.sent(producer, message(delayedTopic, name+" delayed", due(at)), data{"due": at.UnixMilli()})
	r.half(r.producer(r.toldCheck, halfTopic), message(halfTopic, name+" half"))
	r.waitFor(sending.answeredMore())
	r.say("ready", nil)
	<-r.wake
	r.patiently(func() (bool, error) { return true, r.ack(simple, held[2]) })
	r.patiently(func() (bool, error) {
		_, err := r.startedProducer(r.toldCheck, halfTopic)
		return true, err
	})
	gather(simple, 3, giveBack, true, name+" again")
	gather(delayed, 1, giveBack, true, name+" delayed")
	gather(halves, 1, giveBack, true, name+" half")
	r.waitFor(sending.answeredMore())
	r.close(delayed)
	r.close(halves)
}
