package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	service  = "/apache.rocketmq.v2.MessagingService/"
	callMost = 30 * time.Second
	dryMost  = 20 * time.Second // without any message a receiving run has failed
	lateFrom = 5 * time.Millisecond
)

// asItIs carries bytes: requests are encoded by hand.
type asItIs struct{}

func (asItIs) Marshal(value any) ([]byte, error) { return value.([]byte), nil }

func (asItIs) Unmarshal(data []byte, value any) error {
	*value.(*[]byte) = slices.Clone(data)
	return nil
}

func (asItIs) Name() string { return "proto" }

var _ encoding.Codec = asItIs{}

type client struct {
	*load
	topic, group string
	connection   *grpc.ClientConn
	headers      context.Context
	telemetry    grpc.ClientStream
	took         map[string][]time.Duration
}

// dial opens a connection of its own and has the client's settings answered.
func (l *load) dial(number int, topic, group string, consumer bool) (*client, error) {
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
	if err := stream.SendMsg(settings(topic, group, consumer)); err != nil {
		return nil, err
	}
	var answer []byte
	if err := stream.RecvMsg(&answer); err != nil {
		return nil, err
	}
	return &client{l, topic, group, connection, headers, stream, nil}, nil
}

func (c *client) call(name string, request []byte, inEntry protowire.Number) error {
	ctx, cancel := context.WithTimeout(c.headers, callMost)
	defer cancel()
	var answer []byte
	if err := c.connection.Invoke(ctx, service+name, request, &answer); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return answered(name, answer, inEntry)
}

// claim takes the next messages of the run and, when there is a rate, waits until they are on. Latencies
// count from that moment, so that a stall is seen by all calls that it held up. None: the run is over.
func (l *load) claim() (first, count int64, from time.Time) {
	first = l.begun.Add(int64(l.perCall)) - int64(l.perCall)
	count = min(int64(l.perCall), l.messages-first)
	from = time.Now()
	if l.rate > 0 {
		from = l.started.Add(time.Duration(float64(first) / l.rate * float64(time.Second)))
	}
	if l.over(from) {
		return first, 0, from
	}
	if count > 0 && l.rate > 0 {
		time.Sleep(time.Until(from))
		if time.Since(from) > lateFrom {
			l.behind.Add(1)
		}
	}
	return first, count, from
}

// over says whether the run's time is over, or will be at a call's turn.
func (l *load) over(turn time.Time) bool {
	return l.atMost > 0 && max(turn.Sub(l.started), time.Since(l.started)) > l.atMost
}

func (c *client) noted(name string, from time.Time) {
	c.took[name] = append(c.took[name], time.Since(from))
}

func (c *client) sending(worker int) {
	ids := make([]string, 0, c.perCall)
	for {
		first, count, from := c.claim()
		if count <= 0 {
			return
		}
		ids = ids[:0]
		for n := range count {
			ids = append(ids, fmt.Sprintf("01%012X%08X%012X", worker, os.Getpid(), first+n))
		}
		request := sendRequest(c.topic, c.body, ids, time.Now().UnixMilli())
		if err := c.call("SendMessage", request, 1); err != nil {
			if !c.failed(err) {
				return
			}
			continue
		}
		c.noted("call", from)
		c.done.Add(count)
	}
}

func (c *client) routing() {
	host, service, _ := net.SplitHostPort(c.target)
	port, _ := strconv.Atoi(service)
	request := routeRequest(c.topic, host, port)
	for {
		_, count, from := c.claim()
		if count <= 0 {
			return
		}
		if err := c.call("QueryRoute", request, 0); err != nil {
			if !c.failed(err) {
				return
			}
			continue
		}
		c.noted("call", from)
		c.done.Add(count)
	}
}

// receiving takes and acknowledges. A receive is timed from its turn, an acknowledgement from its begin, and
// both together from the turn on.
func (c *client) receiving() {
	request := receiveRequest(c.topic, c.group, c.perCall, c.wait)
	for {
		_, count, turn := c.claim()
		if c.over(turn) || c.rate > 0 && count <= 0 || c.done.Load() >= c.messages {
			return
		}
		if time.Since(time.Unix(0, c.lastMessage.Load())) > dryMost {
			c.failed(fmt.Errorf("no message for %s", dryMost))
			return
		}
		messages, err := c.poll(request)
		if err != nil {
			if !c.failed(err) {
				return
			}
			continue
		}
		if len(messages) == 0 {
			c.empty.Add(1)
			continue
		}
		c.noted("receive", turn)
		c.lastMessage.Store(time.Now().UnixNano())
		from := time.Now()
		if err := c.call("AckMessage", ackRequest(c.topic, c.group, messages), 3); err != nil {
			if !c.failed(err) {
				return
			}
			continue
		}
		c.noted("ack", from)
		c.noted("call", turn)
		c.done.Add(int64(len(messages)))
	}
}

func (c *client) poll(request []byte) ([]delivered, error) {
	ctx, cancel := context.WithTimeout(c.headers, time.Duration(c.wait)*time.Second+callMost)
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
	seen := false
	for {
		var answer []byte
		if err := stream.RecvMsg(&answer); errors.Is(err, io.EOF) {
			if !seen {
				return nil, errors.New("ReceiveMessage: an answer without a status")
			}
			return messages, nil
		} else if err != nil {
			return nil, fmt.Errorf("ReceiveMessage: %w", err)
		}
		message, code, sentence, err := received(answer)
		switch {
		case err != nil:
			return nil, err
		case message != nil:
			messages = append(messages, *message)
		case code != 0:
			seen = true
			if code != codeOK && code != codeNoMessage {
				return nil, fmt.Errorf("ReceiveMessage: %d %s", code, sentence)
			}
		}
	}
}

// run has every connection do the work with as many callers as there are calls in flight.
func (l *load) run() error {
	clients := make([]*client, l.connections)
	for n := range clients {
		var err error
		if clients[n], err = l.dial(n, l.topic, l.group, l.work == "receive"); err != nil {
			return err
		}
	}
	l.started = time.Now()
	l.lastMessage.Store(l.started.UnixNano())
	var all sync.WaitGroup
	for n, c := range clients {
		for w := range l.calls {
			all.Go(func() {
				caller := *c
				caller.took = map[string][]time.Duration{}
				switch l.work {
				case "receive":
					caller.receiving()
				case "route":
					caller.routing()
				default:
					caller.sending(n*l.calls + w)
				}
				l.note(caller.took)
			})
		}
	}
	all.Wait()
	return nil
}
