"""popgate.spark.grpc.messages: against what the gateway makes of records, and of messages."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokers.embedded.log.message_log import as_stored
from popgate.context import Context
from popgate.errors import PeerWireError
from popgate.ids.message_id import encode_offset_message_id
from popgate.pb import definition_pb2 as pb
from popgate.pb.service_pb2 import SendMessageRequest
from popgate.spark.grpc.messages import message_of, record_of
from popgate.spark.options.source_columns import COLUMNS, OF_THE_QUEUE
from popgate.spark.read.record_decoder import Records
from popgate.spark.write.property_blocks import block_of
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.properties import decode_properties, encode_properties
from popgate.wire.messages.records import COMPRESSED, decode_record, encode_record
from processors.limits import Limits
from processors.produce.message_checks import check_message, finish_message
from protocols.grpc.codec.convert import message_in, message_out
from protocols.grpc.codec.plain_send import read_plain

CONTEXT = Context(client_id="spark", peer="10.1.2.3:4444")
BORN_MS, STORE_MS = 1_700_000_000_123, 1_700_000_000_456
NAMES = [name for name in COLUMNS if name not in OF_THE_QUEUE and name not in ("flag", "born_host")]
ID = "0102030405060708090A0B0C0D0E0F1011"


def record(properties: dict[str, str] | bytes = b"", body: bytes = b"body", **more: Any) -> bytes:
    block = properties if isinstance(properties, bytes) else encode_properties(properties)
    values = {
        "topic": b"orders",
        "queue_id": 3,
        "offset": 7,
        "commit_offset": 1000,
        "sys_flag": 0,
        "flag": 0,
        "born_ms": BORN_MS,
        "born_host": pack_host("10.1.2.3:7"),
        "store_ms": STORE_MS,
        "store_host": pack_host("10.0.0.1:10911"),
        **more,
    }
    return encode_record(body=body, properties=block, **values)


def pulled(stored: bytes) -> pb.Message:
    """As the gateway delivers it."""
    message = as_stored(decode_record(stored), "broker-a")
    return message_out(message, pb.Resource(name=message.topic))


def columns(stored: bytes, names: list[str] = NAMES) -> dict[str, Any]:
    records = Records(stored)
    values = {name: records.column(name).to_pylist()[0] for name in names}
    # Only over remoting are they in the order of the block.
    return values | ({"properties": sorted(values["properties"])} if "properties" in values else {})


def through(stored: bytes) -> dict[str, Any]:
    return columns(record_of(pulled(stored), 3))


# -- received ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"UNIQ_KEY": ID},
        {"UNIQ_KEY": ID, "TAGS": "paid", "KEYS": "k1 k2", "größe": "läuft", "a": " b"},
        {"UNIQ_KEY": ID, "KEYS": "  k1   k2 "},
        {"KEYS": "  "},
        {"__SHARDINGKEY": "g", "TRACE_CONTEXT": "00-ab"},
        {"TIMER_DELIVER_MS": "1700000000999"},
        {"TIMER_DELIVER_MS": "0", "__SHARDINGKEY": "g"},
        {"TIMER_DELIVER_MS": "soon"},
        {"DELAY": "3"},
        {"TIMER_DELAY_SEC": "5", "TAGS": "x"},
        {"TRAN_MSG": "true", "PGROUP": "p"},
        {"TRAN_MSG": "true", "TIMER_DELIVER_MS": "5", "__SHARDINGKEY": "g"},
        {"TRAN_MSG": "false"},
        {"_SYS_MSG_PRIORITY_": "0"},
        {"_SYS_MSG_PRIORITY_": "7", "__SHARDINGKEY": "g"},
        {"_SYS_MSG_PRIORITY_": "high"},
        {"__LITE_TOPIC": "lite-1"},
        {"__LITE_TOPIC": "lite-1", "_SYS_MSG_PRIORITY_": "7"},
        {"REDRIVE_COUNT": "1", "DLQ_ORIGIN_TOPIC": "orders", "DLQ_ORIGIN_MESSAGE_ID": ID},
        {f"name {at}": f"value {at}" for at in range(1000)},
    ],
    ids=lambda properties: "+".join(list(properties)[:3]) or "none",
)
def test_a_delivery_has_the_columns_of_its_record(properties: dict[str, str]) -> None:
    stored = record(properties)
    assert through(stored) == columns(stored)


def test_user_properties_are_sorted_by_name() -> None:
    made = record_of(pulled(record({f"{at}": "x" for at in (5, 3, 9, 1, 7)})), 3)
    assert decode_record(made).properties == b"1\x01x\x023\x01x\x025\x01x\x027\x01x\x029\x01x\x02"


def test_a_value_may_have_the_separator_behind_a_name() -> None:
    stored = record(b"a\x01 b\x01\x02TAGS\x01\x01x\x02UNIQ_KEY\x01u\x01\x02")
    assert through(stored) == columns(stored)
    assert through(stored)["tag"] == "\x01x"


@pytest.mark.parametrize(
    "value", [b"\xff" * 32_700, b"\xe2\x82" * 16_350, b"x" * 32_749], ids=["one byte", "two", "no separator"]
)
def test_properties_may_be_as_long_as_stored_ones(value: bytes) -> None:
    """The gateway tells damaged characters by three bytes each, and blocks may end without a separator."""
    stored = record(b"UNIQ_KEY\x01ID\x02\xffname\x01" + value)
    assert through(stored) == columns(stored)


def test_what_is_not_told_is_zero() -> None:
    made = record_of(pulled(record(flag=9)), 3)
    assert columns(made, ["flag", "born_host"]) == {"flag": 0, "born_host": "10.1.2.3:0"}
    again = decode_record(made)
    assert (again.topic, again.queue_id, again.offset, again.commit_offset) == ("orders", 3, 7, 0)


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("2001:db8::1", "[2001:db8::1]:0"),
        ("1.2.3.4:5", "1.2.3.4:5"),
        ("client-7", "0.0.0.0:0"),
        ("x" * 999, "0.0.0.0:0"),
    ],
)
def test_a_born_host_may_be_of_any_form(host: str, text: str) -> None:
    made = record_of(pulled(record({"__BORNHOST": host})), 3)
    assert columns(made, ["born_host"]) == {"born_host": text}


@pytest.mark.parametrize("born", ["[2001:db8::1]:8", "10.1.2.3:7"])
@pytest.mark.parametrize("store", ["[2001:db8::2]:9", "10.0.0.1:10911"])
def test_an_id_made_of_a_place_is_none(born: str, store: str) -> None:
    stored = record({"TAGS": "x"}, born_host=pack_host(born), store_host=pack_host(store))
    assert pulled(stored).system_properties.message_id == encode_offset_message_id(store, 1000)
    assert through(stored) == columns(stored)
    assert through(stored)["message_id"] is None


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "zlib"])
def test_a_packed_body_is_unpacked(pack: Any) -> None:
    stored = record(body=pack(b"hello" * 50), sys_flag=COMPRESSED)
    assert through(stored)["body"] == b"hello" * 50
    # Without the mark it is what the producer sent.
    assert through(record(body=pack(b"hello")))["body"] == pack(b"hello")


@pytest.mark.parametrize("body", [b"\x1f\x8bgzip", b"no packing", b"\x28\xb5\x2f\xfdno"])
def test_a_body_that_cannot_be_unpacked_is_an_error(body: bytes) -> None:
    made = record_of(pulled(record(body=body, sys_flag=COMPRESSED)), 3)
    with pytest.raises(PeerWireError, match="offset 7"):
        columns(made)


def delivery(**fields: Any) -> pb.Message:
    message = pulled(record({"UNIQ_KEY": ID, "a": "b"}))
    for name, value in fields.items():
        part = getattr(message.system_properties, name)
        if value is None:
            message.system_properties.ClearField(name)
        elif isinstance(value, list):
            part.extend(value)
        elif isinstance(value, tuple):
            part.seconds, part.nanos = value
        else:
            setattr(message.system_properties, name, value)
    return message


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        *(({name: None}, f"no {name}") for name in ("queue_offset", "born_timestamp", "store_timestamp")),
        ({"body_encoding": 7}, "the body encoding 7"),
        ({"message_type": pb.FIFO}, "the type 2, and what makes it one of 1"),
        ({"message_type": 9}, "the type 9"),
        ({"message_group": "g"}, "the type 1, and what makes it one of 2"),
        ({"tag": "a\x02UNIQ_KEY\x01x"}, "which a block cannot hold"),
        ({"message_id": "x\x02"}, "which a block cannot hold"),
        ({"keys": ["a b"]}, "the key 'a b'"),
        ({"keys": [""]}, "the key ''"),
        ({"store_timestamp": (-1, 0)}, "a time of -1 s"),
        ({"born_timestamp": (0, -1)}, "0 s and -1 ns"),
        ({"born_timestamp": (0, 1_000_000_000)}, "0 s and 1000000000 ns"),
        ({"store_timestamp": (253_402_300_800, 0)}, "a time of 253402300800 s"),
        ({"tag": "x" * 40_000}, "none that a broker can store: the properties have 400"),
        ({"trace_context": "\x02"}, "which a block cannot hold"),
    ],
)
def test_what_is_no_delivery_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(PeerWireError, match=says):
        record_of(delivery(**fields), 3)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        *((name, "x", f"the user property {name}") for name in ("TAGS", "UNIQ_KEY", "KEYS", "__SHARDINGKEY")),
        ("a\x01b", "x", "cannot hold"),
        ("a\x02b", "x", "cannot hold"),
        ("a", "x\x02TAGS\x01y", "cannot hold"),
        ("", "x", "cannot hold"),
        ("a", "", "cannot hold"),
    ],
)
def test_a_user_property_adds_no_other(name: str, value: str, says: str) -> None:
    message = delivery()
    message.user_properties[name] = value
    with pytest.raises(PeerWireError, match=says):
        record_of(message, 3)


def test_a_topic_that_is_too_long_is_refused() -> None:
    message = delivery()
    message.topic.name = "t" * 40_000
    with pytest.raises(PeerWireError, match="the topic has 40000 bytes"):
        record_of(message, 3)


WORDS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=9
)
KEYS = st.lists(st.text("ab1ü", min_size=1, max_size=5), min_size=1, max_size=4).map(" ".join)
SYSTEMS = st.fixed_dictionaries(
    {},
    optional={
        "UNIQ_KEY": WORDS,
        "TAGS": WORDS,
        "KEYS": KEYS,
        "__SHARDINGKEY": WORDS,
        "TRACE_CONTEXT": WORDS,
        "TIMER_DELIVER_MS": st.integers(0, 253_402_300_799_999).map(str) | st.just("x"),
        "DELAY": st.just("3"),
        "TRAN_MSG": st.sampled_from(["true", "false"]),
        "_SYS_MSG_PRIORITY_": st.integers(0, (1 << 31) - 1).map(str) | st.just("x"),
        "__LITE_TOPIC": WORDS,
        "PGROUP": WORDS,
        "BORN_TIMESTAMP": WORDS,
    },
)
USERS = st.dictionaries(WORDS, WORDS, max_size=5)


TIMES = st.integers(0, 253_402_300_799_999)


@given(USERS, SYSTEMS, st.binary(max_size=40), TIMES, st.integers(0, 1 << 62), st.integers(0, 16))
def test_any_delivery_has_the_columns_of_its_record(
    users: dict[str, str], systems: dict[str, str], body: bytes, born_ms: int, offset: int, times: int
) -> None:
    stored = record(users | systems, body, born_ms=born_ms, offset=offset, reconsume_times=times)
    assert through(stored) == columns(stored)


# -- sent -------------------------------------------------------------------------------------------


def stored_block(message: pb.Message) -> dict[str, str]:
    """The properties with which the gateway stores a message, without those that it adds."""
    sent = message_in(message, CONTEXT, STORE_MS)
    check_message(sent, Limits(), now_ms=STORE_MS, max_delay_ms=1 << 50)
    finish_message(sent)
    properties = decode_properties(sent.properties)
    for name in ("PGROUP", "__BORNHOST", "BORN_TIMESTAMP"):
        properties.pop(name)
    return properties


def row(**columns: Any) -> bytes:
    values = dict.fromkeys(("tag", "keys", "group", "properties", "due_ms", "priority", "lite"))
    return f"{block_of(**{**values, **columns})}UNIQ_KEY\x01{ID}\x02".encode()


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ({}, pb.NORMAL),
        ({"tag": "paid", "keys": ["k1", "k2"], "properties": [("größe", "läuft"), ("b", "c")]}, pb.NORMAL),
        ({"keys": " k1  k2 \u2003 "}, pb.NORMAL),
        ({"keys": "k1 \u2003 k2"}, pb.NORMAL),
        ({"group": "g", "tag": "x"}, pb.FIFO),
        ({"due_ms": STORE_MS + 60_001}, pb.DELAY),
        ({"due_ms": 0}, pb.DELAY),
        ({"due_ms": STORE_MS + 60_001, "group": "g"}, pb.DELAY),
        ({"priority": 0}, pb.PRIORITY),
        ({"priority": (1 << 31) - 1}, pb.PRIORITY),
        ({"lite": "lite-1"}, pb.LITE),
        ({"properties": [("INNER_NUM", "1"), ("__transactionId__", "x"), ("_a", "b")]}, pb.NORMAL),
    ],
    ids=str,
)
def test_a_row_is_stored_with_its_properties(columns: dict[str, Any], kind: pb.MessageType) -> None:
    block = row(**columns)
    message = message_of("orders", b"body", block)
    assert (message.topic.name, message.body) == ("orders", b"body")
    assert message.system_properties.message_type == kind
    assert stored_block(message) == decode_properties(block)


def test_a_plain_row_takes_the_gateways_short_way() -> None:
    block = row(tag="paid", keys=["k1", "k2"], properties=[("a", "b")])
    messages = [message_of("orders", b"body", block, BORN_MS), message_of("orders", b"", block)]
    plain = read_plain(SendMessageRequest(messages=messages).SerializeToString())
    assert plain is not None
    assert plain.born_ms == [BORN_MS, 0]
    assert plain.heads[0].replace(b"PGROUP\x01orders\x02", b"").count(b"\x02") == 4


def test_a_row_may_tell_when_it_was_born() -> None:
    sent = message_in(message_of("orders", b"", row(), BORN_MS), CONTEXT, STORE_MS)
    assert sent.born_ms == BORN_MS
    assert message_in(message_of("orders", b"", row()), CONTEXT, STORE_MS).born_ms == STORE_MS


def test_a_half_message_is_not_sent() -> None:
    with pytest.raises(ValueError, match="no property TRAN_MSG"):
        message_of("orders", b"body", row() + b"TRAN_MSG\x01true\x02")


PRINTABLE = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=9)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "tag": st.text("abcü -", min_size=1).filter(str.strip),
            "keys": st.text("abü \u2003", min_size=1) | st.lists(st.text("abü", min_size=1), max_size=3),
            "group": st.text("abcü -", min_size=1, max_size=15).filter(str.strip),
            "properties": st.dictionaries(PRINTABLE, PRINTABLE, max_size=4).map(
                lambda told: list(told.items())
            ),
            "due_ms": st.integers(0, 1 << 49),
        },
    )
)
def test_any_row_is_stored_with_its_properties(columns: dict[str, Any]) -> None:
    block = row(**columns)
    assert stored_block(message_of("orders", b"body", block)) == decode_properties(block)
