// Load for a RocketMQ 5 proxy over gRPC: sends, or receives and acknowledges, from several connections
// with several calls in flight on each, and prints one line of JSON with the rate and the latencies.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
)

const service = "/apache.rocketmq.v2.MessagingService/"

// asItIs carries bytes: requests are encoded by hand.
type asItIs struct{}

func (asItIs) Marshal(value any) ([]byte, error) { return value.([]byte), nil }

func (asItIs) Unmarshal(data []byte, value any) error {
	*value.(*[]byte) = slices.Clone(data)
	return nil
}

func (asItIs) Name() string { return "proto" }

var _ encoding.Codec = asItIs{}

type load struct {
	target, topic, group string
	perCall, calls       int
	messages             int64
	rate                 float64
	body                 []byte

	begun, done atomic.Int64
	started     time.Time
	mutex       sync.Mutex
	sends       []time.Duration
	receives    []time.Duration
	acks        []time.Duration
	lastMessage atomic.Int64
}

type client struct {
	*load
	connection *grpc.ClientConn
	headers    context.Context
	telemetry  grpc.ClientStream
}

func (l *load) dial(number int, consumer bool) (*client, error) {
	connection, err := grpc.NewClient(l.target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(asItIs{}), grpc.MaxCallRecvMsgSize(128<<20)),
		grpc.WithDisableServiceConfig())
	if err != nil {
		return nil, err
	}
	headers := metadata.NewOutgoingContext(context.Background(), metadata.Pairs(
		"x-mq-client-id", fmt.Sprintf("load@%d@%d", os.Getpid(), number),
		"x-mq-language", "GO", "x-mq-client-version", "5.0.0", "x-mq-protocol", "v2"))
	stream, err := connection.NewStream(headers,
		&grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, service+"Telemetry")
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(settings(l.topic, l.group, consumer)); err != nil {
		return nil, err
	}
	var answer []byte
	if err := stream.RecvMsg(&answer); err != nil {
		return nil, err
	}
	return &client{l, connection, headers, stream}, nil
}

func (c *client) call(ctx context.Context, name string, request []byte) ([]byte, error) {
	var answer []byte
	err := c.connection.Invoke(ctx, service+name, request, &answer)
	return answer, err
}

// turn waits until the next call is on when there is a rate; its latency counts from that moment, so that
// a stall is seen by all calls that it held up.
func (l *load) turn(first int64) time.Time {
	if l.rate <= 0 {
		return time.Now()
	}
	at := l.started.Add(time.Duration(float64(first) / l.rate * float64(time.Second)))
	time.Sleep(time.Until(at))
	return at
}

// claim takes the next messages of the run; none are left when the first is not below the number of messages.
func (l *load) claim() (first, count int64) {
	first = l.begun.Add(int64(l.perCall)) - int64(l.perCall)
	return first, min(int64(l.perCall), l.messages-first)
}

func (c *client) send(worker int) ([]time.Duration, error) {
	took := make([]time.Duration, 0, c.messages/int64(c.perCall)+1)
	ids := make([]string, 0, c.perCall)
	for {
		first, count := c.claim()
		if count <= 0 {
			return took, nil
		}
		from := c.turn(first)
		ids = ids[:0]
		for n := range count {
			ids = append(ids, fmt.Sprintf("01%012X%08X%012X", worker, os.Getpid(), first+n))
		}
		ctx, cancel := context.WithTimeout(c.headers, 30*time.Second)
		answer, err := c.call(ctx, "SendMessage", sendRequest(c.topic, c.body, ids, time.Now().UnixMilli()))
		cancel()
		if err == nil {
			err = answered("send", answer)
		}
		if err != nil {
			return took, err
		}
		took = append(took, time.Since(from))
		c.done.Add(count)
	}
}

func (c *client) receive() (received, acked []time.Duration, err error) {
	request := receiveRequest(c.topic, c.group, c.perCall, 5)
	for c.done.Load() < c.messages {
		idle := time.Since(time.Unix(0, c.lastMessage.Load()))
		if idle > 30*time.Second {
			return received, acked, errors.New("no message for 30 s")
		}
		from := time.Now()
		messages, err := c.poll(request)
		if err != nil {
			return received, acked, err
		}
		if len(messages) == 0 {
			continue
		}
		received = append(received, time.Since(from))
		c.lastMessage.Store(time.Now().UnixNano())
		from = time.Now()
		ctx, cancel := context.WithTimeout(c.headers, 30*time.Second)
		answer, err := c.call(ctx, "AckMessage", ackRequest(c.topic, c.group, messages))
		cancel()
		if err == nil {
			err = answered("ack", answer)
		}
		if err != nil {
			return received, acked, err
		}
		acked = append(acked, time.Since(from))
		c.done.Add(int64(len(messages)))
	}
	return received, acked, nil
}

func (c *client) poll(request []byte) ([]delivered, error) {
	ctx, cancel := context.WithTimeout(c.headers, 15*time.Second)
	defer cancel()
	stream, err := c.connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, service+"ReceiveMessage")
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(request); err != nil {
		return nil, err
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	var messages []delivered
	for {
		var answer []byte
		if err := stream.RecvMsg(&answer); errors.Is(err, io.EOF) {
			return messages, nil
		} else if err != nil {
			return nil, err
		}
		message, code, sentence, err := received(answer)
		switch {
		case err != nil:
			return nil, err
		case message != nil:
			messages = append(messages, *message)
		case code != 0 && code != codeOK && code != codeNoMessage:
			return nil, fmt.Errorf("receive: %d %s", code, sentence)
		}
	}
}

func (l *load) run(connections int, work string) error {
	clients := make([]*client, connections)
	for n := range clients {
		var err error
		if clients[n], err = l.dial(n, work == "receive"); err != nil {
			return err
		}
	}
	l.started = time.Now()
	l.lastMessage.Store(l.started.UnixNano())
	failures := make(chan error, connections*l.calls)
	for n, c := range clients {
		for w := range l.calls {
			go func() {
				var sends, receives, acks []time.Duration
				var err error
				if work == "receive" {
					receives, acks, err = c.receive()
				} else {
					sends, err = c.send(n*l.calls + w)
				}
				l.mutex.Lock()
				l.sends = append(l.sends, sends...)
				l.receives = append(l.receives, receives...)
				l.acks = append(l.acks, acks...)
				l.mutex.Unlock()
				failures <- err
			}()
		}
	}
	var wrong error
	for range connections * l.calls {
		if err := <-failures; err != nil && wrong == nil {
			wrong = err
		}
	}
	return wrong
}

// spread tells percentiles in milliseconds.
func spread(took []time.Duration) map[string]float64 {
	if len(took) == 0 {
		return nil
	}
	slices.Sort(took)
	told := map[string]float64{}
	for name, share := range map[string]float64{"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1} {
		at := min(int(float64(len(took))*share), len(took)-1)
		told[name] = float64(took[at].Microseconds()) / 1000
	}
	return told
}

func main() {
	l := &load{}
	work := flag.String("work", "send", "send, or receive (with acknowledgements)")
	size := flag.Int("body", 100, "bytes of each message")
	connections := flag.Int("connections", 4, "connections, each a client of its own")
	flag.StringVar(&l.target, "target", "127.0.0.1:8081", "host:port of the gateway")
	flag.StringVar(&l.topic, "topic", "load", "the topic")
	flag.StringVar(&l.group, "group", "load-group", "the consumer group")
	flag.IntVar(&l.perCall, "per-call", 1, "messages in a call")
	flag.IntVar(&l.calls, "calls", 32, "calls in flight on each connection")
	flag.Int64Var(&l.messages, "messages", 100_000, "messages in all")
	flag.Float64Var(&l.rate, "rate", 0, "messages per second to begin; 0: as fast as answers come")
	flag.Parse()
	l.body = make([]byte, *size)
	for at := range l.body {
		l.body[at] = 'a' + byte(at%26)
	}
	err := l.run(*connections, *work)
	took := time.Since(l.started).Seconds()
	told := map[string]any{
		"messages": l.done.Load(), "seconds": took, "rate": float64(l.done.Load()) / took,
		"send_ms": spread(l.sends), "receive_ms": spread(l.receives), "ack_ms": spread(l.acks),
	}
	if err != nil {
		told["error"] = err.Error()
	}
	_ = json.NewEncoder(os.Stdout).Encode(told)
	if err != nil {
		os.Exit(1)
	}
}
