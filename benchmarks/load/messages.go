package main

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// The few messages of apache.rocketmq.v2 that the load needs, field by field: numbers are those of
// proto/apache/rocketmq/v2. Nothing generated, so the generator costs little beside what it measures.

const (
	codeOK        = 20000
	codeNoMessage = 40401
)

var errMalformed = errors.New("an answer that is no such message")

func field(to []byte, number protowire.Number, value []byte) []byte {
	to = protowire.AppendTag(to, number, protowire.BytesType)
	return protowire.AppendBytes(to, value)
}

func text(to []byte, number protowire.Number, value string) []byte {
	to = protowire.AppendTag(to, number, protowire.BytesType)
	return protowire.AppendString(to, value)
}

func number(to []byte, at protowire.Number, value uint64) []byte {
	to = protowire.AppendTag(to, at, protowire.VarintType)
	return protowire.AppendVarint(to, value)
}

func resource(name string) []byte { return text(nil, 2, name) }

func seconds(s int) []byte { return number(nil, 1, uint64(s)) }

// sendRequest is a SendMessageRequest of messages with these ids: one tag, one key, one property each.
func sendRequest(topic string, body []byte, ids []string, nowMs int64) []byte {
	var request, message, system []byte
	stamp := number(number(nil, 1, uint64(nowMs/1000)), 2, uint64(nowMs%1000)*1_000_000)
	property := text(text(nil, 1, "shard"), 2, "7")
	for _, id := range ids {
		system = text(system[:0], 1, "TagA")
		system = text(system, 2, "key-1")
		system = text(system, 3, id)
		system = number(system, 5, 1) // IDENTITY
		system = number(system, 6, 1) // NORMAL
		system = field(system, 7, stamp)
		message = field(message[:0], 1, resource(topic))
		message = field(message, 2, property)
		message = field(message, 3, system)
		message = field(message, 4, body)
		request = field(request, 1, message)
	}
	return request
}

func receiveRequest(topic, group string, batch, waitSeconds int) []byte {
	queue := number(field(nil, 1, resource(topic)), 3, 3)
	queue = field(queue, 4, text(nil, 1, ""))
	request := field(nil, 1, resource(group))
	request = field(request, 2, queue)
	request = field(request, 3, text(number(nil, 1, 1), 2, "*"))
	request = number(request, 4, uint64(batch))
	request = field(request, 5, seconds(60))
	return field(request, 7, seconds(waitSeconds))
}

// routeRequest is a QueryRouteRequest of a client that dialled an address.
func routeRequest(topic, host string, port int) []byte {
	address := number(text(nil, 1, host), 2, uint64(port))
	endpoints := field(number(nil, 1, 1), 2, address) // IPv4
	return field(field(nil, 1, resource(topic)), 2, endpoints)
}

// A delivered message, as far as an acknowledgement needs it.
type delivered struct{ id, receipt string }

func ackRequest(topic, group string, messages []delivered) []byte {
	request := field(nil, 1, resource(group))
	request = field(request, 2, resource(topic))
	for _, m := range messages {
		request = field(request, 3, text(text(nil, 1, m.id), 2, m.receipt))
	}
	return request
}

// settings of a simple consumer or a producer: the Java proxy serves no receive before it has them.
func settings(topic, group string, consumer bool) []byte {
	agent := text(number(nil, 1, 4), 2, "5.0.0") // GOLANG
	if consumer {
		subscription := field(nil, 1, resource(group))
		entry := field(field(nil, 1, resource(topic)), 2, text(number(nil, 1, 1), 2, "*"))
		subscription = field(subscription, 2, entry)
		subscription = field(subscription, 5, seconds(20))
		return field(nil, 2, field(field(number(nil, 1, 3), 6, subscription), 7, agent))
	}
	publishing := field(nil, 1, resource(topic))
	return field(nil, 2, field(field(number(nil, 1, 1), 5, publishing), 7, agent))
}

// each calls with every field of a message: numbers as value, the rest as content.
func each(message []byte, with func(at protowire.Number, value uint64, content []byte)) error {
	for len(message) > 0 {
		at, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return errMalformed
		}
		message = message[n:]
		switch kind {
		case protowire.VarintType:
			value, n := protowire.ConsumeVarint(message)
			if n < 0 {
				return errMalformed
			}
			with(at, value, nil)
			message = message[n:]
		case protowire.BytesType:
			content, n := protowire.ConsumeBytes(message)
			if n < 0 {
				return errMalformed
			}
			with(at, 0, content)
			message = message[n:]
		default:
			n := protowire.ConsumeFieldValue(at, kind, message)
			if n < 0 {
				return errMalformed
			}
			message = message[n:]
		}
	}
	return nil
}

// statusOf reads the code and the sentence of a Status.
func statusOf(content []byte) (code uint64, sentence string, err error) {
	err = each(content, func(at protowire.Number, value uint64, inner []byte) {
		switch at {
		case 1:
			code = value
		case 2:
			sentence = string(inner)
		}
	})
	return code, sentence, err
}

// answered checks an answer whose first field is its status, and the statuses of its entries (field 2),
// which are field `inEntry` of each; 0: it has no entries with one. Anything but OK is an error.
func answered(what string, answer []byte, inEntry protowire.Number) error {
	var wrong error
	seen := false
	judge := func(content []byte) {
		code, sentence, err := statusOf(content)
		switch {
		case wrong != nil:
		case err != nil:
			wrong = err
		case code != codeOK:
			wrong = fmt.Errorf("%s: %d %s", what, code, sentence)
		}
	}
	err := each(answer, func(at protowire.Number, _ uint64, content []byte) {
		switch {
		case at == 1:
			seen = true
			judge(content)
		case at == 2 && inEntry != 0:
			if err := each(content, func(at protowire.Number, _ uint64, inner []byte) {
				if at == inEntry {
					judge(inner)
				}
			}); err != nil {
				wrong = err
			}
		}
	})
	switch {
	case err != nil:
		return err
	case !seen:
		return fmt.Errorf("%s: an answer without a status", what)
	}
	return wrong
}

// received reads one element of the stream of a receive: a message, or the status in code.
func received(answer []byte) (message *delivered, code uint64, sentence string, err error) {
	var inner error
	err = each(answer, func(at protowire.Number, _ uint64, content []byte) {
		switch at {
		case 1:
			code, sentence, inner = statusOf(content)
		case 2:
			message = &delivered{}
			inner = each(content, func(at protowire.Number, _ uint64, system []byte) {
				if at != 3 {
					return
				}
				_ = each(system, func(at protowire.Number, _ uint64, value []byte) {
					switch at {
					case 3:
						message.id = string(value)
					case 12:
						message.receipt = string(value)
					}
				})
			})
		}
	})
	return message, code, sentence, errors.Join(err, inner)
}
