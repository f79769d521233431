package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// plain posts the request of a send, over HTTP/2 without TLS, to a server that knows nothing of gRPC, and
// wants 200: what a request costs there is a floor for what it costs a gateway.
func (l *load) plain() error {
	request := sendRequest(l.topic, l.body, []string{"01000000000000000000000000000000000000"}, time.Now().UnixMilli())
	var all sync.WaitGroup
	l.started = time.Now()
	for range l.connections {
		transport := &http2.Transport{AllowHTTP: true, StrictMaxConcurrentStreams: true,
			DialTLSContext: func(_ context.Context, network, address string, _ *tls.Config) (net.Conn, error) {
				return net.Dial(network, address)
			}}
		for range l.calls {
			all.Go(func() {
				took := map[string][]time.Duration{}
				for {
					_, count, from := l.claim()
					if count <= 0 {
						break
					}
					if err := l.post(transport, request); err != nil {
						if !l.failed(err) {
							break
						}
						continue
					}
					took["call"] = append(took["call"], time.Since(from))
					l.done.Add(count)
				}
				l.note(took)
			})
		}
	}
	all.Wait()
	return nil
}

func (l *load) post(transport *http2.Transport, body []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), callMost)
	defer cancel()
	url := "http://" + l.target + service + "SendMessage"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header = http.Header{
		"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "X-Mq-Client-Id": {"load@1@1"},
		"X-Mq-Language": {"GO"}, "X-Mq-Client-Version": {"5.0.0"}, "X-Mq-Protocol": {"v2"},
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("POST: %s", answer.Status)
	}
	return nil
}
