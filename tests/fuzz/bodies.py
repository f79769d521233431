"""Bodies of remoting that the fuzz tests change, and what must hold of each that is read.

What is read can be written, and is read as the same. Those that have a test of their own shape are in
`test_wire_fuzz`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brokers.remote.consume.pop_response import read_popped
from brokers.remote.settle.broker_clocks import BrokerClocks
from popgate.errors import PeerWireError
from popgate.ids.message_id import decode_offset_message_id, encode_offset_message_id
from popgate.testing.clock import MovableClock
from popgate.wire.bodies import (
    access,
    broker_stats,
    configs,
    consumer_info,
    heartbeats,
    offset_stats,
    routes,
    small_bodies,
)
from popgate.wire.bodies.pop_info import PopInfo, encode_pop_info
from popgate.wire.bodies.query_reports import QueryReport, SourceLag
from popgate.wire.frames.remoting import Command, RemotingWire, encode_command
from popgate.wire.messages.properties import encode_properties
from popgate.wire.messages.records import encode_record, pack_host

Target = tuple[str, bytes, Callable[[bytes], None]]

QUEUE = small_bodies.MessageQueue("T", "broker-a", 3)
SUBSCRIPTION = heartbeats.SubscriptionData("T", "a||b", "TAG", ("a", "b"), (97, 98), 5)
CONNECTION = heartbeats.Connection("client", "10.0.0.1:1", "JAVA", 513)
ENTRY = access.AccessEntry("Topic:T", ("Pub", "Sub"), ("10.0.0.0/8",), "Allow")
VERSION = configs.DataVersion(7, 1_700_000_000_000, 1)


def both_ways(
    name: str, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes], value: Any
) -> Target:
    """A body that has a reader and a writer."""

    def read(data: bytes) -> None:
        found = decode(data)
        assert decode(encode(found)) == found

    return name, encode(value), read


def body(name: str, value: Any) -> Target:
    """A body that is a class of its own."""
    kind = type(value)
    return both_ways(name, kind.decode, kind.encode, value)


def read_message_id(data: bytes) -> None:
    try:
        host, offset = decode_offset_message_id(data.decode("latin-1"))
    except ValueError as error:
        raise PeerWireError(str(error)) from error
    # A port has 4 bytes there, and what is no port is written as none.
    assert decode_offset_message_id(encode_offset_message_id(host, offset))[1] == offset


def popped() -> bytes:
    """The answer to a pop: a message, one that is a redelivery, and what the header says of both."""
    at = {
        "store_ms": 2,
        "born_ms": 1,
        "born_host": pack_host("10.0.0.1:1"),
        "store_host": pack_host("[::1]:1"),
    }
    again = encode_properties(
        {"1ST_POP_TIME": "5", "POP_CK": "8 100 60000 3 1 broker-a 1 8 900", "TAGS": "a"}
    )
    records = encode_record(b"T", 1, 7, 500, b"body", b"", sys_flag=0, flag=0, **at) + encode_record(
        b"%RETRY%g_T", 1, 8, 900, b"body", again, sys_flag=0, flag=0, **at
    )
    info = PopInfo(100, 60_000, 3, 0, starts={(0, 1): 7, (1, 1): 8}, offsets={(0, 1): [7], (1, 1): [8]})
    return encode_command(Command(0, 1, 1, encode_pop_info(info), records))


def read_answer(data: bytes) -> None:
    """Raises PeerWireError."""
    wire = RemotingWire(max_frame=1 << 20)
    wire.receive(data)
    while (answer := wire.next_event()) is not None:
        _, messages = read_popped(answer, "broker-a", "T", BrokerClocks(MovableClock()))
        assert all(message.attempt >= 1 and message.receipt for message in messages)
    wire.receive(b"")
    wire.next_event()


BODIES: list[Target] = [
    body("user", access.UserInfo("u", "secret", "Super", "enable")),
    body("access", access.AclInfo("User:u", (access.AccessPolicy("Custom", (ENTRY, ENTRY)),))),
    body("query_report", QueryReport("q", (SourceLag(0, ("t", "u"), 0, 7, 3.5),), {"batch_id": 3}, 2.5)),
    body("locks", small_bodies.QueueLocks("g", "c", (QUEUE, QUEUE), True)),
    both_ways("locked", small_bodies.decode_locked, small_bodies.encode_locked, (QUEUE,)),
    both_ways("consumers", small_bodies.decode_consumer_list, small_bodies.encode_consumer_list, ("a", "b")),
    both_ways("groups", small_bodies.decode_group_list, small_bodies.encode_group_list, ("a", "b")),
    body("topics", small_bodies.TopicList(("a", "b"), "10.0.0.1:1")),
    both_ways("figures", small_bodies.decode_kv_table, small_bodies.encode_kv_table, {"a": "1", "b": "2"}),
    body("assignment_query", small_bodies.AssignmentQuery("T", "g", "c")),
    both_ways(
        *("assignments", small_bodies.decode_assignments, small_bodies.encode_assignments),
        (small_bodies.Assignment(QUEUE, "POP", {"a": "b"}),),
    ),
    body("client_check", heartbeats.ClientCheck("c", "g", SUBSCRIPTION, "n")),
    body("connections", heartbeats.ConsumerConnection((CONNECTION,), {"T": SUBSCRIPTION})),
    both_ways(
        *("producers", heartbeats.decode_producer_connections, heartbeats.encode_producer_connections),
        (CONNECTION, CONNECTION),
    ),
    body(
        "cluster",
        routes.ClusterInfo({"b": routes.BrokerData("C", "b", {0: "10.0.0.1:1", 1: "x"})}, {"C": ("b",)}),
    ),
    both_ways(
        *("topic_configs", configs.decode_topic_configs, lambda told: configs.encode_topic_configs(*told)),
        ({"T": configs.TopicConfig("T", attributes={"a": "b"})}, VERSION),
    ),
    both_ways(
        *("group_configs", configs.decode_group_configs, lambda told: configs.encode_group_configs(*told)),
        ({"g": configs.SubscriptionGroupConfig("g")}, VERSION),
    ),
    body("standings", offset_stats.ConsumeStats({QUEUE: offset_stats.QueueProgress(9, 5, 6, 7)}, 0.5)),
    body("consume_result", consumer_info.ConsumeResult("CR_SUCCESS", "fine", 5, True)),
    both_ways("offsets", consumer_info.decode_offsets, consumer_info.encode_offsets, {QUEUE: 5}),
    (
        "topic_list",
        b'{"topicConfigList":[{"topicName":"T","perm":6,"readQueueNums":4},{"topicName":"U","order":true}]}',
        lambda data: [one.encode() for one in broker_stats.decode_topic_list(data)] and None,
    ),
    (
        "group_list",
        b'{"groupConfigList":[{"groupName":"g","retryMaxTimes":3},{"groupName":"h"}]}',
        lambda data: [one.encode() for one in broker_stats.decode_subscription_group_list(data)] and None,
    ),
    ("message_id", encode_offset_message_id("10.0.0.1:1", 500).encode(), read_message_id),
    ("popped", popped(), read_answer),
]
