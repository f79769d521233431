"""Plain receives and acknowledgements are read as the library reads them; all others are left to it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popgate.context import Context
from popgate.model import FilterKind
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from protocols.grpc.codec.convert import receive_in
from protocols.grpc.codec.errors import OK
from protocols.grpc.codec.handles import marked, receipts_of
from protocols.grpc.codec.plain_consume import (
    MOST_ENTRIES,
    PlainAck,
    PlainReceive,
    encode_acked,
    read_ack,
    read_receive,
)
from protocols.grpc.codec.request_reader import reader_of
from protocols.grpc.rpcs.dispatcher import names_of

CONTEXT = Context(peer="127.0.0.1:5000", door="grpc")
NAMES: Any = {"group": pb.Resource(name="readers"), "topic": pb.Resource(name="orders")}
ATTEMPT = "0b7a5a8e-0001-4000-8000-0123456789ab"


def entry(number: int = 1, **fields: Any) -> rpc.AckMessageEntry:
    message_id = f"01ABCDEF{number:024X}"
    handle = marked(f"0 1700000000000 60000 1 0 broker-a 3 {number} 77".encode(), message_id.encode())
    return rpc.AckMessageEntry(**{"message_id": message_id, "receipt_handle": handle.decode(), **fields})


def ack(*entries: rpc.AckMessageEntry, **fields: Any) -> bytes:
    return rpc.AckMessageRequest(**{**NAMES, "entries": entries, **fields}).SerializeToString()


def receive(**fields: Any) -> bytes:
    usual: dict[str, Any] = {
        "group": NAMES["group"],
        "message_queue": pb.MessageQueue(
            topic=NAMES["topic"],
            id=3,
            broker=pb.Broker(
                name="broker-a",
                endpoints=pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="10.0.0.1", port=8081)]),
            ),
        ),
        "filter_expression": pb.FilterExpression(type=pb.TAG, expression="*"),
        "batch_size": 32,
        "invisible_duration": Duration(seconds=60),
        "long_polling_timeout": Duration(seconds=5),
    }
    return rpc.ReceiveMessageRequest(**{**usual, **fields}).SerializeToString()


def acks_agree(data: bytes) -> bool:
    """Whether the bytes are a plain acknowledgement; then the library reads and answers the same."""
    plain = read_ack(data)
    if plain is None:
        return False
    parsed = rpc.AckMessageRequest.FromString(data)
    assert plain.parse() == parsed
    assert plain.ByteSize() == len(data)
    assert names_of(plain) == names_of(parsed) == (plain.topic, plain.group)
    assert parsed.group.resource_namespace == parsed.topic.resource_namespace == ""
    handles = [entry.receipt_handle for entry in parsed.entries]
    ids = [entry.message_id for entry in parsed.entries]
    assert (plain.handles, plain.message_ids) == (handles, ids)
    receipts = plain.receipts()
    if receipts is not None:
        assert receipts_of(parsed.entries, handles, ids, CONTEXT) == (receipts, {})
    answer = rpc.AckMessageResponse(status=OK)
    for message_id, handle in zip(ids, handles, strict=True):
        answer.entries.add(message_id=message_id, receipt_handle=handle, status=OK)
    assert rpc.AckMessageResponse.FromString(encode_acked(plain.entries)) == answer
    return True


def receives_agree(data: bytes) -> bool:
    """Whether a receive is plain; then it says what the library reads."""
    plain = read_receive(data)
    if plain is None:
        return False
    parsed = rpc.ReceiveMessageRequest.FromString(data)
    assert plain.parse() == parsed
    assert plain.ByteSize() == len(data)
    assert names_of(plain) == names_of(parsed)
    assert plain.receive == receive_in(parsed)
    assert parsed.group.resource_namespace == parsed.message_queue.topic.resource_namespace == ""
    return True


@pytest.mark.parametrize("count", [1, 2, 32, MOST_ENTRIES])
def test_plain_acks_are_read_and_answered_as_by_the_library(count: int) -> None:
    data = ack(*map(entry, range(count)))
    assert acks_agree(data)
    plain = read_ack(data)
    assert plain is not None
    assert plain.receipts() == [f"0 1700000000000 60000 1 0 broker-a 3 {n} 77" for n in range(count)]


@pytest.mark.parametrize(
    "handle", ["0 1 2 3 0 b 3 4 5", "0 1 2 3 0 b 3 4 5 1c291ca3", "x", entry(2).receipt_handle + "0"]
)
def test_a_handle_without_the_mark_of_its_id_has_no_plain_receipt(handle: str) -> None:
    data = ack(entry(), entry(receipt_handle=handle))
    assert acks_agree(data)
    plain = read_ack(data)
    assert plain is not None
    assert plain.receipts() is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        ack(),
        ack(entry(), group=pb.Resource()),
        ack(entry(), topic=None),
        ack(entry(), topic=pb.Resource(name="ü")),
        ack(entry(), topic=pb.Resource(resource_namespace="n", name="t")),
        ack(entry(), group=pb.Resource(resource_namespace="n", name="g")),
        ack(entry(), entry(message_id="")),
        ack(entry(), entry(receipt_handle="")),
        ack(entry(), entry(message_id="ü")),
        ack(entry(), entry(receipt_handle="ü")),
        ack(entry(), entry(lite_topic="l")),
        ack(entry(), entry(lite_topic="")),
        ack(*map(entry, range(MOST_ENTRIES + 1))),
        ack(entry()) + ack(),
        ack(entry()) + b"\x1a\x00",
        ack(entry()) + b"\x20\x01",
        ack(entry()) + b"\x1a",
        ack(entry()) + b"\x1a\x05\x0a\x01i\x12\x00",
        ack(entry()) + b"\x1a\x06\x12\x01h\x0a\x01i",
        ack(entry()) + b"\x1a\x09\x0a\x01i\x12\x01h\x12\x01g",
        ack(entry()) + b"\x1a\x06\x0a\x01i\x12\x02h",
        ack(entry()) + b"\x1a\x06\x0a\x01\xff\x12\x01h",
        ack(entry())[:-1],
        b"\x0a\x05\x12\x01g\x12\x01" + ack(entry(), group=None),
    ],
    ids=lambda data: data[-40:].hex(),
)
def test_other_acks_are_left_to_the_library(data: bytes) -> None:
    assert read_ack(data) is None


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"attempt_id": ATTEMPT},
        {"attempt_id": "short"},
        {"attempt_id": "ü" * 18},
        {"attempt_id": "x" * 37},
        {"invisible_duration": None, "long_polling_timeout": None, "auto_renew": True},
        {"filter_expression": pb.FilterExpression(type=pb.SQL, expression="a = 'ü'")},
        {"filter_expression": None, "batch_size": -1},
        {"group": None, "message_queue": None},
        {"filter_expression": pb.FilterExpression(expression="a" * 100 + "B$" + "b" * 36)},
    ],
    ids=str,
)
def test_receives_are_read_as_the_library_reads_them(fields: dict[str, Any]) -> None:
    data = receive(**fields)
    for _ in range(2):  # the second time it is remembered
        assert receives_agree(data)


def test_a_text_that_looks_like_an_attempt_id_is_none() -> None:
    """The last field has the bytes of one in it: what is before them is no receive."""
    request = rpc.ReceiveMessageRequest(
        group=NAMES["group"],
        filter_expression=pb.FilterExpression(type=pb.TAG, expression="tag B$" + "b" * 36),
    )
    data = request.SerializeToString()
    assert data[-38:-36] == b"\x42\x24"
    assert not receives_agree(data)
    assert reader_of(rpc.ReceiveMessageRequest)(data) == request


def test_the_last_of_two_attempt_ids_counts() -> None:
    data = receive(attempt_id="first") + rpc.ReceiveMessageRequest(attempt_id=ATTEMPT).SerializeToString()
    assert receives_agree(data)
    plain = read_receive(data)
    assert plain is not None
    assert plain.receive.attempt_id == ATTEMPT


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        receive()[:-1],
        receive(attempt_id=ATTEMPT)[:-1],
        receive(group=pb.Resource(name="readers", resource_namespace="n")),
        receive(message_queue=pb.MessageQueue(topic=pb.Resource(name="t", resource_namespace="n"))),
        receive(filter_expression=pb.FilterExpression(type=9, expression="*")),  # type: ignore[arg-type]
        receive(filter_expression=pb.FilterExpression(expression="x" * 512)),
        receive(group=pb.Resource(name="g")) + b"\x0a\x03\x12\x01\xff",
    ],
    ids=lambda data: data[-40:].hex(),
)
def test_other_receives_are_left_to_the_library(data: bytes) -> None:
    for _ in range(2):
        assert read_receive(data) is None


def test_a_receive_that_was_read_may_be_changed() -> None:
    """Those who serve one write into it: the next like it begins anew."""
    first = read_receive(receive(long_polling_timeout=None))
    assert first is not None
    first.receive.wait_s = 3.0
    first.receive.filter_kind = FilterKind.SQL92
    assert receives_agree(receive(long_polling_timeout=None))


def test_readers_read_what_is_plain_where_they_are_to() -> None:
    one, data = ack(entry()), receive()
    assert isinstance(reader_of(rpc.AckMessageRequest, plain=True)(one), PlainAck)
    assert isinstance(reader_of(rpc.AckMessageRequest, plain=False)(one), rpc.AckMessageRequest)
    lite = ack(entry(lite_topic="l"))
    assert isinstance(reader_of(rpc.AckMessageRequest, plain=True)(lite), rpc.AckMessageRequest)
    for plain in (True, False):
        assert isinstance(reader_of(rpc.ReceiveMessageRequest, plain=plain)(data), PlainReceive)
        assert isinstance(reader_of(rpc.PullMessageRequest, plain=plain)(b""), rpc.PullMessageRequest)


names = st.builds(
    pb.Resource,
    resource_namespace=st.sampled_from(["", "", "", "n"]),
    name=st.sampled_from(["t", "", "ü", "a b", "%x"]),
)
texts = st.one_of(st.text(max_size=4), st.just(ATTEMPT), st.text("aB$", min_size=34, max_size=40))
durations = st.none() | st.builds(
    Duration, seconds=st.integers(-5, 1 << 40), nanos=st.integers(-999_999_999, 999_999_999)
)


@settings(max_examples=300, deadline=None)
@given(
    st.builds(
        rpc.ReceiveMessageRequest,
        group=names,
        message_queue=st.builds(pb.MessageQueue, topic=names, broker=st.builds(pb.Broker, name=texts)),
        filter_expression=st.builds(pb.FilterExpression, type=st.integers(0, 3), expression=texts),
        batch_size=st.integers(-2, 100),
        invisible_duration=durations,
        auto_renew=st.booleans(),
        long_polling_timeout=durations,
        attempt_id=st.none() | texts,
    )
)
def test_whatever_is_read_of_a_receive_is_what_the_library_reads(request: rpc.ReceiveMessageRequest) -> None:
    receives_agree(request.SerializeToString())


@settings(max_examples=300, deadline=None)
@given(
    st.builds(
        rpc.AckMessageRequest,
        group=names,
        topic=names,
        entries=st.lists(
            st.builds(
                rpc.AckMessageEntry,
                message_id=texts,
                receipt_handle=texts,
                lite_topic=st.none() | st.just(""),
            ),
            max_size=3,
        ),
    )
)
def test_whatever_is_read_of_an_ack_is_what_the_library_reads(request: rpc.AckMessageRequest) -> None:
    acks_agree(request.SerializeToString())
