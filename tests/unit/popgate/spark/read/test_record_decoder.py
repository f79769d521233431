"""popgate.spark.read.record_decoder: columns equal to those of the decoder of single records."""

from __future__ import annotations

import json
import random
import struct
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popgate.errors import PeerWireError
from popgate.spark.options.source_columns import ALL_PROPERTIES, COLUMNS, OF_THE_QUEUE
from popgate.spark.read.record_decoder import Records
from popgate.wire.messages import properties as names
from popgate.wire.messages.compression import compress_lz4, compress_zlib, compress_zstd
from popgate.wire.messages.hosts import host_text, pack_host
from popgate.wire.messages.records import (
    BORN_HOST_V6,
    COMPRESSED,
    STORE_HOST_V6,
    decode_records,
    encode_record,
)

V4, V6 = pack_host("10.1.2.3:7"), pack_host("[2001:db8::1]:8")
NAMES = (*(name for name in COLUMNS if name not in OF_THE_QUEUE), ALL_PROPERTIES)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def record(offset: int = 0, body: bytes = b"body", properties: bytes = b"", **more: Any) -> bytes:
    told: dict[str, Any] = {
        "topic": b"orders",
        "queue_id": 3,
        "commit_offset": 1000,
        "sys_flag": 0,
        "flag": 5,
        "born_ms": 1_700_000_000_123,
        "born_host": V4,
        "store_ms": 1_700_000_000_456,
        "store_host": V4,
        **more,
    }
    return encode_record(offset=offset, body=body, properties=properties, **told)


def column(name: str, *records: bytes) -> list[Any]:
    return Records(b"".join(records)).column(name).to_pylist()


def block(**told: str) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in told.items()).encode()


def moment(millis: int) -> datetime:
    return EPOCH + timedelta(milliseconds=millis)


# -- beside the other decoder -----------------------------------------------------------------------

RECORDS = st.lists(
    st.builds(
        record,
        offset=st.integers(0, (1 << 63) - 1),
        body=st.binary(max_size=40),
        properties=st.dictionaries(
            st.text("abcKEYSTAG", min_size=1, max_size=5),
            st.text("xyz é", min_size=1, max_size=5),
            max_size=4,
        ).map(lambda told: block(**told)),
        topic=st.sampled_from([b"t", b"t" * 127, b"t" * 128, b"t" * 255]),
        flag=st.integers(-(1 << 31), (1 << 31) - 1),
        born_ms=st.integers(0, 4_000_000_000_000),
        store_ms=st.integers(0, 4_000_000_000_000),
        born_host=st.sampled_from([V4, V6]),
        store_host=st.sampled_from([V4, V6]),
        reconsume_times=st.integers(0, (1 << 31) - 1),
    ),
    max_size=6,
)


@given(RECORDS)
def test_columns_have_what_the_records_have(records: list[bytes]) -> None:
    data = b"".join(records)
    one_by_one, found = list(decode_records(data)), Records(data)

    assert len(found) == len(one_by_one)
    for name, expected in {
        "queue_offset": [each.offset for each in one_by_one],
        "flag": [each.flag for each in one_by_one],
        "born_timestamp": [moment(each.born_ms) for each in one_by_one],
        "store_timestamp": [moment(each.store_ms) for each in one_by_one],
        "born_host": [host_text(each.born_host) for each in one_by_one],
        "reconsume_times": [each.reconsume_times for each in one_by_one],
        "body": [each.body for each in one_by_one],
    }.items():
        assert found.column(name).to_pylist() == expected, name
    properties = [
        [tuple(entry.split("\x01")) for entry in each.properties.decode().split("\x02") if entry]
        for each in one_by_one
    ]
    of_users = [[pair for pair in pairs if pair[0] not in ("KEYS", "TAGS")] for pairs in properties]
    assert found.column("properties").to_pylist() == of_users
    assert found.column("tag").to_pylist() == [dict(pairs).get("TAGS") for pairs in properties]


@given(RECORDS, st.randoms(use_true_random=False))
def test_damage_is_a_wire_error_and_nothing_else(records: list[bytes], dice: random.Random) -> None:
    data = bytearray(b"".join(records) or b"\0")
    for _ in range(dice.randrange(1, 4)):
        data[dice.randrange(len(data))] = dice.randrange(256)
    cut = bytes(data[: dice.randrange(len(data) + 1)])
    try:
        found = Records(cut)
        for name in NAMES:
            assert len(found.column(name)) == len(found)
    except PeerWireError:
        pass


# -- one by one -------------------------------------------------------------------------------------


def test_no_records_have_empty_columns() -> None:
    for name in NAMES:
        assert column(name) == [], name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("message_id", ["ID", None]),
        ("tag", ["red", None]),
        ("keys", [["a", "b"], None]),
        ("message_group", ["g", None]),
        ("lite_topic", ["l", None]),
        ("trace_context", ["00-1", None]),
        ("priority", [7, None]),
        ("properties", [[("color", "blue")], []]),
    ],
)
def test_properties_of_the_system_have_columns(name: str, expected: list[Any]) -> None:
    told = {names.UNIQ_KEY: "ID", names.TAGS: "red", names.KEYS: " a  b ", names.SHARDING_KEY: "g"}
    more = {names.LITE_TOPIC: "l", names.TRACE_CONTEXT: "00-1", names.PRIORITY: "7", "color": "blue"}
    assert column(name, record(properties=block(**told, **more)), record()) == expected


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({}, "NORMAL"),
        ({"color": "red", names.TRAN_MSG: "false"}, "NORMAL"),
        ({names.LITE_TOPIC: "l"}, "LITE"),
        ({names.PRIORITY: "3", names.LITE_TOPIC: "l"}, "PRIORITY"),
        ({names.SHARDING_KEY: "g", names.PRIORITY: "3"}, "FIFO"),
        ({names.TIMER_DELIVER_MS: "5", names.SHARDING_KEY: "g"}, "DELAY"),
        ({names.DELAY: "3"}, "DELAY"),
        ({names.TIMER_DELAY_SEC: "3"}, "DELAY"),
        ({names.TIMER_DELAY_MS: "3"}, "DELAY"),
        ({names.TRAN_MSG: "true", names.DELAY: "3"}, "TRANSACTION"),
    ],
)
def test_a_message_is_of_the_type_that_its_properties_make_it(told: dict[str, str], kind: str) -> None:
    plain = record()
    assert column("message_type", plain, record(properties=block(**told)), plain) == [
        "NORMAL",
        kind,
        "NORMAL",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000123", moment(1_700_000_000_123)),
        ("-1", None),
        ("soon", None),
        ("9999999999999999", None),
        ("99999999999999999", None),
    ],
)
def test_when_a_message_is_due_is_a_time_or_nothing(text: str, expected: datetime | None) -> None:
    due = block(**{names.TIMER_DELIVER_MS: text})
    assert column("delivery_timestamp", record(properties=due), record()) == [expected, None]


def test_all_properties_are_an_object_of_json() -> None:
    told = {names.TAGS: "red", "color": 'bl"üe'}
    first, second = column(ALL_PROPERTIES, record(properties=block(**told)), record())
    assert json.loads(first) == told
    assert "ü" in first
    assert second == "{}"


def test_of_a_property_told_twice_the_last_counts() -> None:
    twice = b"TAGS\x01old\x02a\x011\x02b\x012\x02TAGS\x01new\x02a\x013\x02"
    assert column("tag", record(properties=twice)) == ["new"]
    assert column("properties", record(properties=twice)) == [[("b", "2"), ("a", "3")]]


def test_entries_that_are_none_are_passed_over() -> None:
    odd = b"\x02novalue\x02\x01noname\x02empty\x01\x02a\x01b=\x01c\x02last\x01one"
    assert column("properties", record(properties=odd)) == [[("a", "b=\x01c"), ("last", "one")]]


def test_properties_that_are_no_utf_8_do_not_harm_others() -> None:
    found = column("properties", record(properties=b"a\x01\xff\x02"), record(properties=b"b\x01c\x02"))
    assert found == [[("a", "�")], [("b", "c")]]


@pytest.mark.parametrize("text", ["-1", "x", "", "2147483648", "99999999999", "٣"])
def test_a_priority_that_is_no_number_is_null(text: str) -> None:
    assert column("priority", record(properties=block(**{names.PRIORITY: text}))) == [None]


def test_times_that_no_timestamp_can_tell_are_null() -> None:
    assert column("born_timestamp", record(born_ms=(1 << 63) - 1), record(born_ms=-(1 << 63)), record()) == [
        None,
        None,
        moment(1_700_000_000_123),
    ]


def test_compressed_bodies_are_unpacked_and_others_left_alone() -> None:
    plain = b"much of the same " * 100
    packed = compress_zlib(plain)
    assert column("body", record(body=packed, sys_flag=COMPRESSED), record(body=packed)) == [plain, packed]
    assert column("body", record(body=b"", sys_flag=COMPRESSED)) == [b""]


@pytest.mark.parametrize("compress", [compress_lz4, compress_zstd])
def test_bodies_are_unpacked_without_packages_too(
    compress: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors may have neither lz4 nor zstandard."""
    plain = b"much of the same " * 100
    packed = compress(plain)
    for name in ("lz4", "lz4.frame", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)
    assert column("body", record(body=packed, sys_flag=COMPRESSED)) == [plain]
    for damaged in (packed[:-9], packed[:4] + bytes(9)):
        with pytest.raises(PeerWireError, match=r"body is (damaged|cut off)"):
            column("body", record(body=damaged, sys_flag=COMPRESSED))
    monkeypatch.setattr("popgate.spark.read.record_decoder._LARGEST_BODY", len(plain) - 1)
    with pytest.raises(PeerWireError, match="unpacks to more than 1699 bytes"):
        column("body", record(body=packed, sys_flag=COMPRESSED))


def test_a_body_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popgate.spark.read.record_decoder._LARGEST_BODIES", 150)
    one = record(body=compress_zlib(bytes(100)), sys_flag=COMPRESSED)
    assert column("body", one) == [bytes(100)]
    with pytest.raises(PeerWireError):
        column("body", one, one)


def test_rows_that_are_not_kept_are_gone_from_every_column() -> None:
    records = Records(b"".join(record(n, b"%d" % n, block(TAGS=f"t{n}")) for n in range(4)))
    assert records.column("tag").to_pylist() == ["t0", "t1", "t2", "t3"]
    records.keep([False, True, False, True])
    assert len(records) == 2
    assert records.offsets.tolist() == [1, 3]
    for name, expected in (("body", [b"1", b"3"]), ("tag", ["t1", "t3"]), ("queue_offset", [1, 3])):
        assert records.column(name).to_pylist() == expected


# -- damage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 40, 90, -1])
def test_a_record_that_is_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(PeerWireError, match="claims"):
        Records(record() + record()[:cut])


def damaged(at: int, kind: str, value: int, **more: Any) -> bytes:
    data = bytearray(record(**more))
    struct.pack_into(kind, data, at, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (damaged(4, ">I", 7), "magic"),
        (damaged(84, ">I", 1 << 31), "body"),
        (damaged(84, ">I", 5), "properties|topic"),
        (damaged(92, ">B", 128), "topic"),
        (damaged(92, ">B", 100), "topic"),
        (damaged(99, ">H", 9), "properties"),
        (damaged(36, ">I", BORN_HOST_V6 | STORE_HOST_V6, body=b""), "IPv6|magic|body|topic|properties"),
        (damaged(0, ">I", 0), "claims 0 bytes"),
    ],
)
def test_lengths_are_not_believed(data: bytes, why: str) -> None:
    with pytest.raises(PeerWireError, match=why):
        Records(record() + data + record())
