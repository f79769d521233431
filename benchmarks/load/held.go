package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	openingMost   = 64    // connections that are being opened at a time
	fromOneSource = 2_000 // connections from one address, lest its ports run out
)

// untilInputEnds waits for whoever started this program to close its standard input.
func untilInputEnds() { _, _ = io.Copy(io.Discard, os.Stdin) }

// A quiet connection: HTTP/2 settings, one QueryRoute, and nothing more; pings are answered.
type quiet struct {
	net.Conn
	framer  *http2.Framer
	headers bytes.Buffer
	body    []byte
	status  string
}

func (l *load) open(n int, host string, port int) (*quiet, error) {
	dialer := net.Dialer{Timeout: callMost}
	if host == "127.0.0.1" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+n/fromOneSource))}
	}
	connection, err := dialer.Dial("tcp", l.target)
	if err != nil {
		return nil, err
	}
	q := &quiet{Conn: connection}
	var first bytes.Buffer // all of the request in one write
	q.framer = http2.NewFramer(&first, connection)
	q.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	first.WriteString(http2.ClientPreface)
	encoder := hpack.NewEncoder(&q.headers)
	for _, each := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", service + "QueryRoute"}, {":authority", l.target},
		{"content-type", "application/grpc"}, {"user-agent", "grpc-go/1.85.0"}, {"te", "trailers"},
		{"grpc-timeout", "30S"}, {"x-mq-client-id", fmt.Sprintf("idle@%d@%d", os.Getpid(), n)},
		{"x-mq-language", "GO"}, {"x-mq-client-version", "5.0.0"}, {"x-mq-protocol", "v2"},
	} {
		_ = encoder.WriteField(hpack.HeaderField{Name: each[0], Value: each[1]})
	}
	request := routeRequest(l.topic, host, port)
	message := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(request)))
	err = errors.Join(
		q.framer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0}),
		q.framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: 1, BlockFragment: q.headers.Bytes(), EndHeaders: true,
		}),
		q.framer.WriteData(1, true, append(message, request...)),
	)
	if err == nil {
		_, err = connection.Write(first.Bytes())
	}
	if err == nil {
		_ = connection.SetDeadline(time.Now().Add(callMost))
		for done := false; err == nil && !done; {
			done, err = q.step(&first)
		}
		_ = connection.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = connection.Close()
		return nil, err
	}
	return q, nil
}

// step reads one frame and answers it if it must be; true when the call has ended well.
func (q *quiet) step(out *bytes.Buffer) (bool, error) {
	frame, err := q.framer.ReadFrame()
	if err != nil {
		return false, err
	}
	out.Reset()
	ended := false
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			err = q.framer.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			err = q.framer.WritePing(true, f.Data)
		}
	case *http2.DataFrame:
		q.body = append(q.body, f.Data()...)
	case *http2.MetaHeadersFrame:
		for _, field := range f.Fields {
			if field.Name == "grpc-status" {
				q.status = field.Value
			}
		}
		ended = f.StreamEnded()
	case *http2.RSTStreamFrame:
		return false, fmt.Errorf("the call was reset: %s", f.ErrCode)
	case *http2.GoAwayFrame:
		return false, fmt.Errorf("the server goes away: %s %s", f.ErrCode, f.DebugData())
	}
	if err == nil && out.Len() > 0 {
		_, err = q.Write(out.Bytes())
	}
	if err != nil || !ended {
		return false, err
	}
	if q.status != "0" || len(q.body) < 5 {
		return false, fmt.Errorf("QueryRoute: grpc-status %q", q.status)
	}
	err = answered("QueryRoute", q.body[5:], 0)
	q.body = nil
	return err == nil, err
}

// idle opens connections, tells how many are held, and again at the end.
func (l *load) idle() error {
	host, service, err := net.SplitHostPort(l.target)
	if err != nil {
		return err
	}
	port, _ := strconv.Atoi(service)
	var held, closing atomic.Int64
	var opened sync.WaitGroup
	turns := make(chan struct{}, openingMost)
	for n := range l.connections {
		turns <- struct{}{}
		opened.Go(func() {
			defer func() { <-turns }()
			q, err := l.open(n, host, port)
			if err != nil {
				l.failed(err)
				return
			}
			held.Add(1)
			go func() {
				var out bytes.Buffer
				q.framer = http2.NewFramer(&out, q)
				for err == nil {
					_, err = q.step(&out)
				}
				held.Add(-1)
				if closing.Load() == 0 {
					l.failed(fmt.Errorf("a held connection ended: %w", err))
				}
			}()
		})
	}
	opened.Wait()
	say(map[string]any{"held": held.Load(), "seconds": time.Since(l.started).Seconds()})
	untilInputEnds()
	l.done.Store(held.Load())
	closing.Store(1)
	return nil
}

// polls keeps every call of every connection waiting for a message; an empty answer is followed by the next
// poll. Tells when all wait, and at the end how many messages came, for which it waits if it knows how many.
func (l *load) polls() error {
	var waiting, closing atomic.Int64
	l.perCall = 32
	for n := range l.connections {
		kind := n % l.topics
		c, err := l.dial(n, fmt.Sprintf("%s-%d", l.topic, kind), fmt.Sprintf("%s-%d", l.group, kind), true)
		if err != nil {
			return err
		}
		request := receiveRequest(c.topic, c.group, l.perCall, l.wait)
		for range l.calls {
			l.begun.Add(1)
			go func() {
				for {
					waiting.Add(1)
					messages, err := c.poll(request)
					waiting.Add(-1)
					switch {
					case closing.Load() != 0:
						return
					case err != nil && !l.failed(err):
						return
					case err == nil && len(messages) == 0:
						l.empty.Add(1)
					case err == nil:
						l.done.Add(int64(len(messages)))
					}
				}
			}()
		}
	}
	for waiting.Load() < l.begun.Load() && time.Since(l.started) < callMost {
		time.Sleep(10 * time.Millisecond)
	}
	say(map[string]any{"held": waiting.Load(), "seconds": time.Since(l.started).Seconds()})
	untilInputEnds()
	for end := time.Now().Add(callMost); l.done.Load() < l.messages && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	closing.Store(1)
	return nil
}
