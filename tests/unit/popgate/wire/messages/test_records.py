"""Vectors: protocol facts 10; layout: 5.6."""

from typing import Any

import pytest

from popgate.errors import LocalWireError, PeerWireError
from popgate.wire.messages.records import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    decode_record,
    decode_records,
    encode_record,
    host_text,
    pack_host,
    place_record,
    record_properties,
)

V4 = pack_host("10.0.0.1:10911")
V6 = pack_host("[2001:db8::1]:10911")
BLOCK = b"UNIQ_KEY\x01ID1\x02TAGS\x01A\x02"
VECTOR = bytes.fromhex(
    "00000075 daa320a7 3610a686 00000001 00000000 0000000000000005 0000000000000064 00000000"
    "0000018bcfe56800 0a000001 00002a9f 0000018bcfe56801 0a000001 00002a9f 00000000 0000000000000000"
    "00000005 68656c6c6f 01 54 0014 554e49515f4b45590149443102544147530141 02"
)


def make(topic: bytes = b"T", body: bytes = b"hello", properties: bytes = BLOCK, **changes: Any) -> bytes:
    parts: dict[str, Any] = {
        "queue_id": 1,
        "offset": 5,
        "commit_offset": 100,
        "sys_flag": 0,
        "flag": 0,
        "born_ms": 1700000000000,
        "born_host": V4,
        "store_ms": 1700000000001,
        "store_host": V4,
    } | changes
    return encode_record(
        topic,
        parts.pop("queue_id"),
        parts.pop("offset"),
        parts.pop("commit_offset"),
        body,
        properties,
        **parts,
    )


def test_the_vector_is_written() -> None:
    assert make() == VECTOR
    assert len(VECTOR) == 117


def test_the_vector_is_read() -> None:
    record = decode_record(VECTOR, verify=True)
    assert record == (
        *("T", 1, 5, 100, b"hello", BLOCK, 0, 0, 1700000000000, V4, 1700000000001, V4, 0, 0),
        *(907060870, 117),
    )
    assert host_text(record.born_host) == "10.0.0.1:10911"


def test_bytes_around_a_record_do_not_matter() -> None:
    assert decode_record(b"xyz" + VECTOR + b"rest", 3) == decode_record(VECTOR)


@pytest.mark.parametrize(
    ("born_host", "store_host", "bits"),
    [(V4, V4, 0), (V6, V4, BORN_HOST_V6), (V4, V6, STORE_HOST_V6), (V6, V6, BORN_HOST_V6 | STORE_HOST_V6)],
)
@pytest.mark.parametrize("topic", [b"T", b"t" * 127, b"t" * 128, b"t" * 300, "主题".encode(), b""])
def test_every_form_of_the_layout_comes_back(
    born_host: bytes, store_host: bytes, bits: int, topic: bytes
) -> None:
    data = make(
        topic, born_host=born_host, store_host=store_host, sys_flag=0x3F5 & ~0x30 | 0x30, flag=-7, queue_id=-1
    )
    record = decode_record(data, verify=True)
    assert record.sys_flag == 0x3C5 | bits
    assert (record.topic.encode(), record.flag, record.queue_id) == (topic, -7, -1)
    assert (record.born_host, record.store_host) == (born_host, store_host)
    assert (record.body, record.properties, record.size) == (b"hello", BLOCK, len(data))
    assert record_properties(data) == BLOCK
    assert data[4:8].hex() == ("daa320ab" if len(topic) > 127 else "daa320a7")

    placed = place_record(data, queue_id=3, offset=1 << 40, commit_offset=1 << 50, store_ms=1800000000000)
    assert decode_record(placed, verify=True) == record._replace(
        queue_id=3, offset=1 << 40, commit_offset=1 << 50, store_ms=1800000000000
    )


def test_records_stand_one_behind_the_other() -> None:
    many = [make(body=bytes([n]) * n, offset=n) for n in range(20)]
    assert [r.offset for r in decode_records(b"".join(many))] == list(range(20))
    assert list(decode_records(b"")) == []
    with pytest.raises(PeerWireError):
        list(decode_records(b"".join(many)[:-1]))


def changed(at: int, value: bytes) -> bytes:
    return VECTOR[:at] + value + VECTOR[at + len(value) :]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "needs 91 bytes"),
        (VECTOR[:90], "needs 91 bytes"),
        (VECTOR[:-1], "claims 117 bytes, there are 116"),
        (changed(0, bytes(4)), "claims 0 bytes"),
        (changed(0, b"\xff\xff\xff\xff"), "claims 4294967295"),
        (changed(4, b"\0\0\0\0"), "magic 00000000"),
        (changed(4, bytes.fromhex("cbd43194")), "magic cbd43194"),
        (changed(84, b"\xff\xff\xff\xff"), "body of 4294967295"),
        (changed(84, b"\0\0\0\x1a"), "topic of 1"),
        (changed(93, b"\xff"), "negative"),
        (changed(93, b"\x7f"), "topic of 127"),
        (changed(94, b"\xff"), "no UTF-8"),
        (changed(95, b"\xff\xff"), "-1 bytes of properties"),
        (changed(95, b"\0\x13"), "19 bytes of properties"),
        (changed(36, b"\0\0\0\x30"), "claims"),
        (changed(4, bytes.fromhex("daa320ab")), "claims"),
    ],
)
def test_damage_is_told(data: bytes, sentence: str) -> None:
    with pytest.raises(PeerWireError, match=sentence):
        decode_record(data)


def test_a_changed_body_is_found_when_asked_for() -> None:
    data = changed(88, b"H")
    assert decode_record(data).body == b"Hello"
    with pytest.raises(PeerWireError, match="checksum"):
        decode_record(data, verify=True)


@pytest.mark.parametrize(
    "change",
    [
        {"properties": bytes(32_768)},
        {"topic": bytes(32_768)},
        {"offset": 1 << 63},
        {"queue_id": 1 << 31},
        {"born_host": b"12345"},
        {"store_host": b""},
    ],
)
def test_what_does_not_fit_is_our_bug(change: dict[str, Any]) -> None:
    with pytest.raises(LocalWireError):
        make(**change)


def test_a_fragment_cannot_be_placed() -> None:
    with pytest.raises(LocalWireError):
        place_record(VECTOR[:50], queue_id=1, offset=1, commit_offset=1, store_ms=1)
