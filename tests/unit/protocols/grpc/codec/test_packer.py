"""Packed sends: what is packed is what the ordinary way stores, and everything else goes the ordinary way."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from popgate.context import Context
from popgate.messages.packed_messages import PackedMessages, SentTogether
from popgate.model import Message, MessageType, Sent
from popgate.naming import check_topic
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.timestamp_pb2 import Timestamp
from popgate.wire.messages.properties import LONGEST_IN_BATCH, decode_properties
from processors.limits import Limits
from processors.produce.message_checks import check_message, finish_message
from protocols.grpc.codec import convert
from protocols.grpc.codec.packer import Packer, encode_sent, sends_out

LIMITS = Limits(max_body_bytes=1000, max_properties=4, max_properties_bytes=100, max_message_id_bytes=40)
PACKER = Packer(LIMITS)
CONTEXT = Context(peer="127.0.0.1:5000", door="grpc")
NOW_MS = 1_700_000_000_000


def plain(
    topic: str = "T", body: bytes = b"body", user: dict[str, str] | None = None, **system
) -> pb.Message:
    system.setdefault("message_id", "01ABCDEF")
    system.setdefault("born_host", "host-1")
    system.setdefault("born_timestamp", Timestamp(seconds=1_700_000_000, nanos=5_000_001))
    return pb.Message(
        topic=pb.Resource(name=topic),
        body=body,
        user_properties=user or {},
        system_properties=pb.SystemProperties(**system),
    )


def request(*messages: pb.Message) -> bytes:
    return rpc.SendMessageRequest(messages=messages).SerializeToString()


def ordinary(data: bytes, limits: Limits = LIMITS) -> list[Message]:
    """The finished messages of a request. Raises GatewayError, DecodeError."""
    found = rpc.SendMessageRequest.FromString(data)
    messages = [convert.message_in(one, CONTEXT, NOW_MS) for one in found.messages]
    for message in messages:
        check_topic(message.topic)
        check_message(message, limits, now_ms=NOW_MS, max_delay_ms=limits.max_delay_ms)
    for message in messages:
        finish_message(message)
    return messages


def facts(message: Message) -> tuple[object, ...]:
    # In which order properties are told means nothing.
    return (
        *(message.topic, message.body, message.message_id, message.type, message.sys_flag, message.flag),
        *(message.producer_group, message.born_ms, message.born_host, decode_properties(message.properties)),
        len(message.properties),
    )


def pack(data: bytes, packer: Packer = PACKER) -> PackedMessages | None:
    return packer.pack(rpc.SendMessageRequest.FromString(data), CONTEXT.peer, NOW_MS)


def agree(data: bytes) -> bool:
    """Whether it is packed, and then as the ordinary way stores it."""
    packed = pack(data)
    if packed is None:
        return False
    messages = ordinary(data)
    assert [facts(one) for one in packed.unpack()] == [facts(one) for one in messages]
    assert packed.body_bytes == sum(len(one.body) for one in messages)
    assert {one.topic for one in messages} == {packed.topic}
    return True


PLAIN = [
    plain(),
    plain(tag="A", keys=["k1"], user={"kind": "bench", "other": "x y|z"}),
    plain(keys=["k1", "k 2", "k3"], body_encoding=pb.IDENTITY, message_type=pb.NORMAL, queue_id=7),
    plain(body=bytes(range(256)), user={"k" * 40: "v"}),
    plain("a-topic_of|127-" + "x" * 112),
    plain(born_timestamp=Timestamp(seconds=1)),
    plain(born_host="", born_timestamp=Timestamp()),
]
ODD_TIMES = [
    plain(born_timestamp=Timestamp(seconds=-1)),
    plain(born_timestamp=Timestamp(seconds=300_000_000_000)),
    plain(born_timestamp=Timestamp(seconds=1, nanos=-1)),
]
"""Plain as well: such a time is taken for none."""
OTHERS = [
    plain(message_group="g"),
    plain(delivery_timestamp=Timestamp(seconds=5)),
    plain(message_type=pb.FIFO),
    plain(message_type=pb.TRANSACTION),
    plain(message_type=99),
    plain(body_encoding=pb.GZIP),
    plain(body_digest=pb.Digest(type=pb.CRC32, checksum="0")),
    plain(trace_context="00-trace"),
    plain(priority=3),
    plain(lite_topic="l"),
    plain(message_id=""),
    plain(message_id="a b"),
    plain(message_id="ä"),
    plain(born_host="a\x02b"),
    plain(tag="a|b"),
    plain(tag=" "),
    plain(tag="\x01"),
    plain(tag="ü"),
    plain(keys=[" "]),
    plain(keys=[""]),
    plain(keys=["a\tb"]),
    plain(user={"": "v"}),
    plain(user={"k": ""}),
    plain(user={"k": "\x02"}),
    plain(user={"k\x01x\x02": "v"}),
    plain(user={"KEYS": "v"}),
    plain(user={"__SHARDINGKEY": "v"}),
    plain(user={"__RMQ.TRANSIENT.x": "v"}),
    plain(user={"DELAY": "3"}),
    plain("tö"),
    pb.Message(topic=pb.Resource(name="T"), body=b"x"),
    pb.Message(body=b"x", system_properties=plain().system_properties),
    pb.Message(
        topic=pb.Resource(name="T", resource_namespace="ns"),
        body=b"x",
        system_properties=plain().system_properties,
    ),
]
TOO_MUCH = [
    plain(message_id="x" * 41),
    plain(user={str(n): "v" for n in range(5)}),
    plain(user={"k": "v" * 100}),
    plain(user={"k": "v" * 90}, tag="t" * 10),
    plain(body=b""),
    plain(body=b"x" * 1001),
]
"""Plain, but for a limit."""


def named(message: pb.Message) -> str:
    return str(message)[:60].replace("\n", " ")


@pytest.mark.parametrize("message", [*PLAIN, *ODD_TIMES], ids=named)
def test_plain_messages_are_packed(message):
    assert agree(request(message))
    assert agree(request(message, message, plain(message.topic.name)))


@pytest.mark.parametrize("message", [*OTHERS, *TOO_MUCH], ids=named)
def test_all_others_are_not(message):
    assert pack(request(message)) is None
    assert pack(request(plain(), message)) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        request(plain("T"), plain("U")),
        request(*[plain()] * (LIMITS.max_messages_per_send + 1)),
        b"\x0a\x00",
    ],
    ids=["nothing", "two topics", "too many", "empty"],
)
def test_requests_that_are_not_right_are_not(data):
    assert pack(data) is None


def test_without_limits_on_bodies_everything_that_fits_is_packed():
    packer = Packer(Limits(max_body_bytes=0, refuse_empty_bodies=False))
    packed = pack(request(plain(body=b"x" * 100_000), plain(body=b"")), packer)
    assert packed is not None
    assert [len(one.body) for one in packed.unpack()] == [100_000, 0]


def test_more_properties_than_a_batch_may_have_go_the_ordinary_way():
    """A broker adds to those of a batch without a look at the sum; only of one message it tells."""
    assert pack(request(plain(born_host="h" * (LONGEST_IN_BATCH - 200)))) is not None
    assert pack(request(plain(born_host="h" * LONGEST_IN_BATCH))) is None


texts = st.text(st.sampled_from("ab |\x01\x02ä_K"), max_size=6)
often = st.sampled_from(["a", "kind", "value-1"])
messages = st.builds(
    pb.Message,
    topic=st.builds(pb.Resource, name=st.sampled_from(["T", "T", "T", "U"])),
    body=st.binary(max_size=8),
    user_properties=st.dictionaries(often | texts, often | texts, max_size=3),
    system_properties=st.builds(
        pb.SystemProperties,
        tag=st.none() | often | texts,
        keys=st.lists(often | texts, max_size=3),
        message_id=st.sampled_from(["01AB", "01AC"]) | texts,
        born_host=often | texts,
        born_timestamp=st.builds(
            Timestamp, seconds=st.integers(1, 1 << 40), nanos=st.integers(0, 1_000_000_000)
        ),
        message_type=st.sampled_from([None, 0, 1, 1, 2, 7]),
        body_encoding=st.sampled_from([None, 0, 1, 1, 2]),
        queue_id=st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
        message_group=st.none() | st.just("") | st.just("g"),
    ),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(messages, max_size=4))
@example([plain(), plain()])
def test_whatever_is_packed_is_what_the_ordinary_way_stores(some):
    agree(request(*some))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("offset", [0, 1, 127, 128, 1 << 40])
@pytest.mark.parametrize("length", [1, 40, 118, 255])
def test_the_answer_is_that_of_protobuf(count, offset, length):
    sent = [Sent("i" * length, "broker", 1, offset + n) for n in range(count)]
    wanted = rpc.SendMessageResponse(status=convert.OK)
    for one in sent:
        convert.tell_sent(wanted.entries.add(), one)
    assert encode_sent(sent) == wanted.SerializeToString()


def test_the_answer_is_that_of_protobuf_where_its_entries_differ():
    offsets = [
        5,
        0,
        127,
        128,
        129,
        255,
        256,
        257,
        256,
        16_383,
        16_384,
        16_385,
        1 << 40,
        (1 << 63) - 1,
        300,
        301,
    ]
    sent = [Sent("i" * (length % 5 * 60 + 1), "broker", 1, offset) for length, offset in enumerate(offsets)]
    sent += [Sent("same", "broker", 1, offset) for offset in range(120, 270)]
    wanted = rpc.SendMessageResponse(status=convert.OK)
    for one in sent:
        convert.tell_sent(wanted.entries.add(), one)
    assert encode_sent(sent) == wanted.SerializeToString()


def test_the_answer_tells_transactions_and_recall_handles_as_protobuf_does():
    sent = [
        Sent("1", "broker", 1, 0, "transaction", ""),
        Sent("2", "broker", 1, 300, "t" * 200, ""),
        Sent("3", "broker", 1, 0, "", "handle"),
        Sent("4", "broker", 1, 5, "ü", "h" * 200),
    ]
    wanted = rpc.SendMessageResponse(status=convert.OK)
    for one in sent:
        convert.tell_sent(wanted.entries.add(), one)
    assert encode_sent(sent) == wanted.SerializeToString()


@settings(max_examples=200, deadline=None)
@given(
    ids=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.just("i" * 34), max_size=40
    ),
    first=st.integers(0, 300) | st.integers(16_300, 16_400) | st.integers(0, (1 << 63) - 64),
)
def test_the_answer_to_messages_stored_together_is_that_to_each(ids, first):
    together = SentTogether([name.encode() for name in ids], "broker", 1, first)
    answer = sends_out(together, CONTEXT).SerializeToString()
    assert answer == encode_sent([*together])
    assert [(e.message_id, e.offset) for e in rpc.SendMessageResponse.FromString(answer).entries] == [
        (message_id, first + at) for at, message_id in enumerate(ids)
    ]


def test_types_are_told_by_packed_messages():
    packed = pack(request(plain()))
    assert packed is not None
    assert [one.type for one in packed.unpack()] == [MessageType.NORMAL]
