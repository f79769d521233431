// Load for a RocketMQ 5 proxy over gRPC. Prints lines of JSON: what was done, how fast, with which
// latencies, and every error: each answer's status is looked at.
//
//	send, receive (and acknowledge), route   calls from several connections, several in flight on each
//	plain                                    POST requests to any HTTP/2 server, for its cost
//	idle, polls                              hold connections or long polls until standard input ends
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	errorsToldMost = 5
	errorsMost     = 100 // then the run ends
)

type load struct {
	work                 string
	target, topic, group string
	connections, calls   int
	perCall              int
	messages             int64
	rate                 float64
	atMost               time.Duration
	wait                 int
	topics               int
	body                 []byte

	begun, done, empty, behind atomic.Int64
	started                    time.Time
	lastMessage                atomic.Int64

	mutex  sync.Mutex
	errors int
	said   []string
	took   map[string][]time.Duration
}

// failed notes an error; false when there were so many that the run ends.
func (l *load) failed(err error) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.errors++
	if len(l.said) < errorsToldMost {
		l.said = append(l.said, err.Error())
	}
	return l.errors < errorsMost
}

func (l *load) note(took map[string][]time.Duration) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for name, durations := range took {
		l.took[name] = append(l.took[name], durations...)
	}
}

// spread tells percentiles in milliseconds.
func spread(took []time.Duration) map[string]float64 {
	slices.Sort(took)
	told := map[string]float64{}
	for name, share := range map[string]float64{"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1} {
		at := min(int(float64(len(took))*share), len(took)-1)
		told[name] = float64(took[at].Microseconds()) / 1000
	}
	return told
}

func (l *load) report() map[string]any {
	seconds := time.Since(l.started).Seconds()
	l.mutex.Lock()
	defer l.mutex.Unlock()
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	told := map[string]any{
		"messages": l.done.Load(), "seconds": seconds, "rate": float64(l.done.Load()) / seconds,
		"empty": l.empty.Load(), "behind": l.behind.Load(), "errors": l.errors, "said": l.said,
		"own_cpu_s": float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9,
	}
	for name, took := range l.took {
		if len(took) > 0 {
			told[name+"_ms"] = spread(took)
		}
	}
	return told
}

func say(told map[string]any) { _ = json.NewEncoder(os.Stdout).Encode(told) }

func main() {
	l := &load{took: map[string][]time.Duration{}}
	size := flag.Int("body", 100, "bytes of each message")
	seconds := flag.Float64("seconds", 0, "end after so long; 0: when all messages are done")
	flag.StringVar(&l.work, "work", "send", "send, receive, route, plain, idle or polls")
	flag.IntVar(&l.connections, "connections", 4, "connections, each a client of its own")
	flag.StringVar(&l.target, "target", "127.0.0.1:8081", "host:port of the gateway")
	flag.StringVar(&l.topic, "topic", "load", "the topic; of polls its beginning")
	flag.StringVar(&l.group, "group", "load-group", "the consumer group; of polls its beginning")
	flag.IntVar(&l.perCall, "per-call", 1, "messages in a call")
	flag.IntVar(&l.calls, "calls", 32, "calls in flight on each connection")
	flag.Int64Var(&l.messages, "messages", 100_000, "messages in all")
	flag.Float64Var(&l.rate, "rate", 0, "messages per second to begin; 0: as fast as answers come")
	flag.IntVar(&l.wait, "wait", 5, "seconds that a receive waits for a message")
	flag.IntVar(&l.topics, "topics", 1, "how many topics, each with a group, are polled")
	flag.Parse()
	l.atMost = time.Duration(*seconds * float64(time.Second))
	l.body = make([]byte, *size)
	for at := range l.body {
		l.body[at] = 'a' + byte(at%26)
	}
	works := map[string]func() error{
		"send": l.run, "receive": l.run, "route": l.run, "plain": l.plain, "idle": l.idle, "polls": l.polls,
	}
	work, known := works[l.work]
	if !known {
		fmt.Fprintf(os.Stderr, "no such work: %s\n", l.work)
		os.Exit(2)
	}
	l.started = time.Now()
	if err := work(); err != nil {
		l.failed(err)
	}
	say(l.report())
	if l.errors > 0 {
		os.Exit(1)
	}
}
