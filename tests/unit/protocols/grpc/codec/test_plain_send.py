"""Plain sends: what is read without the library is what the library reads, and all else is left to it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popgate.context import Context
from popgate.messages.packed_messages import PackedMessages
from popgate.pb import service_pb2 as rpc
from popgate.pb.timestamp_pb2 import Timestamp
from popgate.wire.messages.properties import LONGEST_IN_BATCH, decode_properties
from processors.limits import Limits
from protocols.grpc.codec.packer import Packer
from protocols.grpc.codec.plain_send import (
    MOST_MESSAGES,
    MOST_TEXT_BYTES,
    MOST_TEXTS,
    PlainSend,
    read_plain,
)
from protocols.grpc.codec.request_reader import reader_of
from protocols.grpc.rpcs.dispatcher import names_of
from tests.unit.protocols.grpc.codec.test_packer import (
    LIMITS,
    ODD_TIMES,
    OTHERS,
    PLAIN,
    TOO_MUCH,
    messages,
    named,
    plain,
    request,
)

CONTEXT = Context(peer="127.0.0.1:5000", door="grpc")
NOW_MS = 1_700_000_000_000
PACKER = Packer(LIMITS)
WIDE = Packer(Limits(max_body_bytes=0, refuse_empty_bodies=False, max_properties_bytes=1 << 20))
"""Takes whatever is plain."""


def facts(packed: PackedMessages | None) -> tuple[object, ...] | None:
    if packed is None:
        return None
    # In which order several properties are told means nothing: the library gives them in one of its own.
    blocks = [(len(block), decode_properties(block)) for block in packed.properties]
    return (
        *(packed.topic, list(packed.message_ids), list(packed.bodies), blocks, list(packed.origins)),
        *(packed.producer_group, packed.sys_flag, list(packed.flags), [tuple(keys) for keys in packed.keys]),
    )


def agree(data: bytes) -> bool:
    """Whether the bytes are a plain send; then the library reads them, too, and packs the same of them."""
    send = read_plain(data)
    if send is None:
        return False
    parsed = rpc.SendMessageRequest.FromString(data)
    assert send.parse() == parsed
    assert send.ByteSize() == len(data)
    for packer in (PACKER, WIDE):
        packed = packer.pack(send, CONTEXT.peer, NOW_MS)
        known = packer.pack(parsed, CONTEXT.peer, NOW_MS)
        assert facts(packed) == facts(known)
        if packed is not None and known is not None:
            for own, block, message in zip(packed.properties, known.properties, parsed.messages, strict=True):
                assert len(message.user_properties) > 1 or own == block
    return True


@pytest.mark.parametrize(
    "message",
    [
        *PLAIN,
        *TOO_MUCH,
        plain(tag="", keys=["k" * 90], queue_id=1 << 30),
        plain(body=b"x" * 20_000),
        plain("%RETRY%g"),
        plain(born_timestamp=Timestamp(nanos=1)),
        plain(born_timestamp=Timestamp(seconds=253_402_300_799, nanos=999_999_999)),
        plain(born_host="h" * LONGEST_IN_BATCH),
    ],
    ids=named,
)
def test_plain_messages_are_read_as_the_library_reads_them(message):
    assert agree(request(message))
    assert agree(request(message, plain(message.topic.name), message))


@pytest.mark.parametrize(
    "message",
    [
        *OTHERS,
        *ODD_TIMES,
        plain(message_type=300),
        plain(priority=0),
        plain(queue_id=-1),
        plain(store_host="h"),
        plain(born_timestamp=Timestamp(seconds=253_402_300_801)),
        plain(born_timestamp=Timestamp(seconds=1, nanos=1_000_000_000)),
        plain(born_host="\x01\x02"),
        plain(keys=["a", "a\x7fb"]),
        plain(user={"k": "v\x02x\x01w"}),
        plain(""),
    ],
    ids=named,
)
def test_all_others_are_left_to_the_library(message):
    assert read_plain(request(message)) is None
    assert read_plain(request(plain(), message)) is None
    assert read_plain(request(message, plain())) is None


MESSAGE = plain(tag="A", user={"k": "v"})
ENCODED = MESSAGE.SerializeToString()


def with_message(message: bytes) -> bytes:
    """A request with one message of less than 128 bytes."""
    return b"\x0a" + bytes((len(message),)) + message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x0a\x00",
        request(plain("T"), plain("U")),
        request(*[plain()] * (MOST_MESSAGES + 1)),
        request(plain()) + b"\x10\x01",
        request(plain()) + b"\x0a",
        request(plain())[:-1],
        with_message(ENCODED + b"\x22\x01b"),
        with_message(ENCODED + b"\x1a\x03\x1a\x01i"),
        with_message(ENCODED + b"\x0a\x03\x12\x01T"),
        with_message(ENCODED + b"\x2a\x01x"),
        with_message(ENCODED + b"\x12\x06\x0a\x01k\x12\x01w"),
        with_message(ENCODED + b"\x12\x06\x12\x01w\x0a\x01l"),
        with_message(ENCODED + b"\x12\x08\x0a\x01l\x12\x01w\x18\x01"),
        with_message(b"\x0a\x05\x12\x01T\x0a\x00\x1a\x03\x1a\x01i"),
        with_message(b"\x0a\x03\x12\x01T\x1a\x06\x1a\x01i\x1a\x01j"),
        with_message(b"\x0a\x03\x12\x01T\x1a\x06\x1a\x01i\x0a\x01j\x0a\x01j"),
        with_message(b"\x0a\x03\x12\x01T\x1a\x05\x1a\x01i\x28\x81"),
        with_message(b"\x0a\x03\x12\x01T\x1a\x06\x1a\x01i\x68\x80\x80"),
        with_message(b"\x0a\x03\x12\x01T\x1a\x04\x1a\x02i"),
    ],
    ids=repr,
)
def test_requests_that_are_not_plain_are_left_to_the_library(data):
    assert read_plain(data) is None


def test_as_many_messages_as_a_send_may_have_are_read():
    assert agree(request(*[plain()] * MOST_MESSAGES))


@settings(max_examples=400, deadline=None)
@given(st.lists(messages, max_size=4))
def test_whatever_is_read_is_what_the_library_reads(some):
    agree(request(*some))


@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_messages_per_send=1),
        Limits(max_body_bytes=4),
        Limits(max_properties=1),
        Limits(max_properties_bytes=5),
        Limits(max_message_id_bytes=4),
    ],
    ids=["messages", "body", "properties", "text", "id"],
)
def test_what_exceeds_a_limit_is_not_packed(limits):
    data = request(plain(body=b"12345", user={"a": "b", "c": "def"}), plain(body=b"1"))
    send = read_plain(data)
    assert send is not None
    assert WIDE.pack(send, CONTEXT.peer, NOW_MS) is not None
    assert Packer(limits).pack(send, CONTEXT.peer, NOW_MS) is None


def test_an_empty_body_is_packed_only_where_it_may_be():
    send = read_plain(request(plain(), plain(body=b"")))
    assert send is not None
    assert Packer(Limits(refuse_empty_bodies=True)).pack(send, CONTEXT.peer, NOW_MS) is None
    assert Packer(Limits(refuse_empty_bodies=False)).pack(send, CONTEXT.peer, NOW_MS) is not None


@pytest.mark.parametrize("peer", ["a\x02b", "ü"])
def test_a_peer_that_no_property_can_tell_is_not_packed(peer):
    send = read_plain(request(plain(born_host="")))
    assert send is not None
    assert WIDE.pack(send, peer, NOW_MS) is None


def test_the_names_in_a_plain_send_are_those_that_the_library_finds():
    send = read_plain(request(plain("a-topic")))
    assert send is not None
    assert names_of(send) == names_of(send.parse()) == ("a-topic", "")


def test_a_reader_reads_plain_sends_where_it_is_to():
    data, other = request(plain()), request(plain(message_group="g"))
    assert isinstance(reader_of(rpc.SendMessageRequest, plain=True)(data), PlainSend)
    assert isinstance(reader_of(rpc.SendMessageRequest, plain=False)(data), rpc.SendMessageRequest)
    assert isinstance(reader_of(rpc.SendMessageRequest, plain=True)(other), rpc.SendMessageRequest)
    assert isinstance(reader_of(rpc.QueryRouteRequest, plain=True)(data), rpc.QueryRouteRequest)


def test_an_empty_topic_is_none_of_a_message_before() -> None:
    """Its properties would lack one, whose place the id could fill with a property of its own."""
    injected = plain()
    injected.topic.name = ""
    injected.system_properties.message_id = "01\x02TIMER_DELIVER_MS\x014102444800000\x02"
    assert read_plain(request(injected, plain())) is None
    injected.system_properties.message_id = "01AB"
    assert read_plain(request(injected, plain())) is None
    assert read_plain(request(plain(), plain())) is not None


@pytest.mark.parametrize("more", [0, 1])
def test_many_keys_and_properties_are_left_to_the_library(more: int) -> None:
    keys = plain(keys=["k"] * (MOST_TEXTS + more))
    properties = plain()
    properties.user_properties.clear()
    for number in range(MOST_TEXTS + more):
        properties.user_properties[f"p{number}"] = "v"
    for message in (keys, properties):
        assert (read_plain(request(message)) is None) == bool(more)


@pytest.mark.parametrize("more", [0, 1])
def test_long_texts_are_left_to_the_library(more: int) -> None:
    message = plain(tag="", keys=["k" * (MOST_TEXT_BYTES + more)])
    message.user_properties.clear()
    assert (read_plain(request(message)) is None) == bool(more)
    message = plain(tag="", keys=[])
    message.user_properties.clear()
    message.user_properties["p"] = "v" * (MOST_TEXT_BYTES - 1 + more)
    assert (read_plain(request(message)) is None) == bool(more)
