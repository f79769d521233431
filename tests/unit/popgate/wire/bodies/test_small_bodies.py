"""Texts: what RocketMQ 5.5.0 itself wrote."""

from collections.abc import Callable

import pytest

from popgate.errors import LocalWireError, PeerWireError
from popgate.wire.bodies.small_bodies import (
    Assignment,
    AssignmentQuery,
    BatchAck,
    MessageQueue,
    QueueLocks,
    TopicList,
    decode_assignments,
    decode_batch_acks,
    decode_consumer_list,
    decode_group_list,
    decode_kv_table,
    decode_locked,
    encode_assignments,
    encode_batch_acks,
    encode_consumer_list,
    encode_group_list,
    encode_kv_table,
    encode_locked,
)

QUEUE = MessageQueue("T", "broker-a", 1)
ACK = BatchAck("g", "T", 0, 100, 2, 3, 1_700_000_000_000, 60_000, (100, 102))


@pytest.mark.parametrize(
    ("decode", "encode", "value", "text"),
    [
        (
            QueueLocks.decode,
            QueueLocks.encode,
            QueueLocks("g", "c", (QUEUE,)),
            (
                '{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"broker-a","queueId":1,"topic":"T"}],'
                '"onlyThisBroker":false}'
            ),
        ),
        (
            decode_locked,
            encode_locked,
            (QUEUE,),
            '{"lockOKMQSet":[{"brokerName":"broker-a","queueId":1,"topic":"T"}]}',
        ),
        (decode_consumer_list, encode_consumer_list, ("c1", "c2"), '{"consumerIdList":["c1","c2"]}'),
        (decode_group_list, encode_group_list, ("g",), '{"groupList":["g"]}'),
        (TopicList.decode, TopicList.encode, TopicList(("T",)), '{"topicList":["T"]}'),
        (decode_kv_table, encode_kv_table, {"a": "1"}, '{"table":{"a":"1"}}'),
        (
            decode_assignments,
            encode_assignments,
            (Assignment(MessageQueue("T", "broker-a", 0), "POP"),),
            (
                '{"messageQueueAssignments":[{"messageQueue":{"brokerName":"broker-a","queueId":0,"topic":"T"},'
                '"mode":"POP"}]}'
            ),
        ),
        (
            decode_batch_acks,
            lambda told: encode_batch_acks(*told),
            ("broker-a", (ACK,)),
            (
                '{"acks":[{"b":"BQ==","c":"g","it":60000,"pt":1700000000000,"q":2,"r":"0","rq":3,"so":100,"t":"T"}],'
                '"brokerName":"broker-a"}'
            ),
        ),
        (
            AssignmentQuery.decode,
            AssignmentQuery.encode,
            AssignmentQuery("T", "g", "c", "AVG", "BROADCASTING"),
            '{"clientId":"c","consumerGroup":"g","messageModel":"BROADCASTING","strategyName":"AVG","topic":"T"}',
        ),
    ],
)
def test_bodies_are_those_of_java(
    decode: Callable[[bytes], object], encode: Callable[[object], bytes], value: object, text: str
) -> None:
    assert decode(text.encode()) == value
    assert encode(value) == text.encode()
    with pytest.raises(PeerWireError):
        decode(b"[]")


def test_the_long_names_of_a_batch_acknowledgement_are_understood() -> None:
    body = (
        b'{"brokerName":"b","acks":[{"consumerGroup":"g","topic":"T","retry":"2","startOffset":5,"queueId":0,'
        b'"reviveQueueId":1,"popTime":7,"invisibleTime":8,"bitSet":"AQ=="}]}'
    )
    assert decode_batch_acks(body) == ("b", (BatchAck("g", "T", 2, 5, 0, 1, 7, 8, (5,)),))


@pytest.mark.parametrize("ack", ['{"r":"3"}', '{"so":-1}', '{"b":"?"}', '{"b":1}', '{"q":"x"}', "1"])
def test_a_damaged_acknowledgement_is_refused(ack: str) -> None:
    with pytest.raises(PeerWireError):
        decode_batch_acks(f'{{"acks":[{ack}]}}'.encode())


def test_offsets_that_are_too_far_apart_are_our_bug() -> None:
    with pytest.raises(LocalWireError):
        encode_batch_acks("b", [BatchAck("g", "T", 0, 100, 2, 3, 1, 1, (99,))])


def test_a_list_of_topics_may_tell_its_broker_and_an_assignment_its_attachments() -> None:
    topics = TopicList(("A", "B"), "10.0.0.1:10911")
    assert TopicList.decode(topics.encode()) == topics
    assignment = Assignment(QUEUE, "PULL", {"a": "b"})
    assert decode_assignments(encode_assignments([assignment])) == (assignment,)


def test_a_queue_is_told_by_the_key_of_an_object() -> None:
    assert MessageQueue.of_key((("brokerName", "broker-a"), ("queueId", 1), ("topic", "T"))) == QUEUE
    for key in ("T", (("queueId", "x"),)):
        with pytest.raises(PeerWireError):
            MessageQueue.of_key(key)


@pytest.mark.parametrize("key", [(1, 2), ((1, 2, 3),), (("a", 1), "x")])
def test_a_key_of_another_form_is_refused(key: object) -> None:
    with pytest.raises(PeerWireError):
        MessageQueue.of_key(key)
