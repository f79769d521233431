// Command gogrpc carries calls to a server over grpc-go, connected as RocketMQ's official Go client connects unless
// it is told otherwise: TLS, whose certificate nobody verifies (golang/conn.go and conn_options.go of rocketmq-clients).
//
// Usage: gogrpc HOST:PORT. A line of input is a call, a line of output its end, both JSON; messages are bytes in base64.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

type call struct {
	Method   string
	Metadata map[string]string
	Request  []byte
	TimeoutS float64
}

type ended struct {
	Responses [][]byte
	Code      string
	Text      string
}

// raw hands messages on as they are.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }

func (raw) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func perform(connection *grpc.ClientConn, one call) ended {
	timeout := time.Duration(one.TimeoutS * float64(time.Second))
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	ctx = metadata.NewOutgoingContext(ctx, metadata.New(one.Metadata))
	var found ended
	stream, err := connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, one.Method)
	if err == nil {
		if err = stream.SendMsg(&one.Request); err == nil {
			err = stream.CloseSend()
		}
	}
	for err == nil {
		var response []byte
		if err = stream.RecvMsg(&response); err == nil {
			found.Responses = append(found.Responses, response)
		}
	}
	if !errors.Is(err, io.EOF) {
		found.Code, found.Text = status.Code(err).String(), err.Error()
	}
	return found
}

func main() {
	secure := credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
	connection, err := grpc.NewClient(
		"passthrough:///"+os.Args[1],
		grpc.WithTransportCredentials(secure),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})),
	)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	input, output := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for {
		var one call
		if err := input.Decode(&one); err != nil {
			return
		}
		if err := output.Encode(perform(connection, one)); err != nil {
			return
		}
	}
}
