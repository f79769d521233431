"""Records: round trip, any cut gives the same events, mutated bytes raise only PeerWireError."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popgate.errors import LocalWireError, PeerWireError
from popgate.wire.messages.batches import BatchItem, decode_batch, encode_batch
from popgate.wire.messages.record_parts import encode_records
from popgate.wire.messages.record_reader import RecordReader
from popgate.wire.messages.records import (
    Record,
    decode_record,
    decode_records,
    encode_record,
    pack_host,
    place_record,
    record_properties,
)

INT = st.integers(-(1 << 31), (1 << 31) - 1)
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
HOST = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
TOPIC = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.just("t" * 200)
ARGUMENTS = st.fixed_dictionaries(
    {
        "topic": TOPIC,
        "queue_id": INT,
        "offset": LONG,
        "commit_offset": LONG,
        "body": st.binary(max_size=60),
        "properties": st.binary(max_size=60),
        "sys_flag": st.integers(0, 0x7FF),
        "flag": INT,
        "born_ms": LONG,
        "born_host": HOST,
        "store_ms": LONG,
        "store_host": HOST,
        "reconsume_times": INT,
        "prepared_offset": LONG,
    }
)


def encode(arguments: dict[str, Any]) -> bytes:
    return encode_record(**arguments | {"topic": arguments["topic"].encode()})


RECORD = ARGUMENTS.map(encode)


SENDERS = st.sampled_from(
    ["10.0.0.9:40000", "10.0.0.8:1", "[2001:db8::1]:8081", "a name", "", "1.2.3.4:99999"]
)


@given(
    st.lists(st.tuples(ARGUMENTS, st.just(0) | LONG, SENDERS), min_size=1, max_size=5),
    st.sampled_from([0, 900, 1_500]),
    st.integers(0, 1 << 60),
)
def test_records_that_are_encoded_together_are_those_encoded_one_by_one(
    drawn: list[tuple[dict[str, Any], int, str]], more: int, offset: int
) -> None:
    first = drawn[0][0]
    same = ("topic", "queue_id", "sys_flag", "store_ms", "store_host")
    several = [
        one
        | {name: first[name] for name in same}
        | {"reconsume_times": 0, "prepared_offset": 0, "properties": one["properties"] + bytes(more)}
        | {"offset": offset + at, "born_ms": born_ms or first["born_ms"], "born_host": pack_host(sender)}
        for at, (one, born_ms, sender) in enumerate(drawn)
    ]
    together = encode_records(
        first["topic"].encode(),
        first["queue_id"],
        offset,
        [one["commit_offset"] for one in several],
        [one["body"] for one in several],
        [one["properties"] for one in several],
        [one["flag"] for one in several],
        [(born_ms, sender) for _, born_ms, sender in drawn],
        first["sys_flag"],
        first["born_ms"],
        first["store_ms"],
        first["store_host"],
    )
    assert together.each() == [encode(one) for one in several]
    assert together.sizes == [len(each) for each in together.each()]
    assert together.joined(1, len(together)) == b"".join(together.each()[1:])


@given(st.integers(0, 3), st.integers(0, 4))
def test_what_is_said_of_too_many_or_too_few_messages_is_refused(short: int, which: int) -> None:
    columns = [[0] * 4, [b""] * 4, [b""] * 4, [0] * 4, [(0, "")] * 4]
    columns[which] = columns[which][:short]  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="different lengths"):
        encode_records(b"t", 0, 0, *columns, 0, 1, 1, bytes(8))  # type: ignore[arg-type]


@given(st.sampled_from(["queue_id", "flag", "commit_offset", "born_ms"]))
def test_a_number_that_no_record_holds_is_refused_of_several_too(name: str) -> None:
    numbers = {"queue_id": 0, "flag": 0, "commit_offset": 0, "born_ms": 0} | {name: 1 << 63}
    places, flags, born_ms = [0, numbers["commit_offset"]], [0, numbers["flag"]], numbers["born_ms"]
    with pytest.raises(LocalWireError, match="does not fit"):
        encode_records(
            *(b"t", numbers["queue_id"], 0, places, [b"", b""], [b"", b""], flags),
            *([(0, ""), (born_ms, "")], 0, 1, 1, bytes(8)),
        )


@given(ARGUMENTS)
def test_a_record_comes_back(arguments: dict[str, Any]) -> None:
    data = encode(arguments)
    record = decode_record(data, verify=True)
    expected = arguments | {"sys_flag": record.sys_flag}
    assert {name: getattr(record, name) for name in expected} == expected
    assert record.sys_flag & ~0x30 == arguments["sys_flag"] & ~0x30
    assert record.size == len(data)
    assert record_properties(data) == record.properties


@given(ARGUMENTS, INT, LONG, LONG, LONG)
def test_placing_is_encoding_with_the_place(
    arguments: dict[str, Any], queue_id: int, offset: int, commit_offset: int, store_ms: int
) -> None:
    place = {"queue_id": queue_id, "offset": offset, "commit_offset": commit_offset, "store_ms": store_ms}
    assert place_record(encode(arguments), **place) == encode(arguments | place)


@given(st.lists(RECORD, max_size=4), st.data())
def test_any_cut_gives_the_same_events(records: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(records)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader, events = RecordReader(verify=True), list[Record]()
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        if begin < end:
            reader.receive(stream[begin:end])
        events += iter(reader.next_event, None)
    reader.receive(b"")
    assert reader.next_event() is None
    assert events == list(decode_records(stream))
    assert [event.size for event in events] == [len(record) for record in records]


def mutated(data: st.DataObject, stream: bytes) -> bytes:
    changed = bytearray(stream)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed)))
        how = data.draw(st.sampled_from(["set", "insert", "delete", "cut"]))
        if how == "insert":
            changed[at:at] = data.draw(st.binary(min_size=1, max_size=4))
        elif how == "set" and at < len(changed):
            changed[at] = data.draw(st.integers(0, 255))
        elif how == "delete":
            del changed[at : at + 2]
        else:
            del changed[at:]
    return bytes(changed)


@given(st.lists(RECORD, min_size=1, max_size=3), st.data())
def test_mutated_records_raise_only_peer_errors(records: list[bytes], data: st.DataObject) -> None:
    stream = mutated(data, b"".join(records))
    direct: list[Record] | None
    try:
        direct = list(decode_records(stream))
    except PeerWireError:
        direct = None
    reader, events = RecordReader(), list[Record]()
    try:
        if stream:
            reader.receive(stream)
        reader.receive(b"")
        events += iter(reader.next_event, None)
    except PeerWireError:
        assert direct is None
    else:
        assert events == direct


@given(st.binary(max_size=400))
def test_any_bytes_raise_only_peer_errors(stream: bytes) -> None:
    for decode in (decode_record, lambda data: list(decode_records(data)), decode_batch):
        try:
            decode(stream)
        except PeerWireError as error:
            assert str(error)  # noqa: PT017 - the sentence is what is tested


@given(
    st.lists(st.builds(BatchItem, INT, st.binary(max_size=40), st.binary(max_size=40)), max_size=4), st.data()
)
def test_a_batch_comes_back_and_a_mutated_one_raises_only_peer_errors(
    items: list[BatchItem], data: st.DataObject
) -> None:
    stream = encode_batch(items)
    assert decode_batch(stream) == items
    try:
        decode_batch(mutated(data, stream))
    except PeerWireError as error:
        assert str(error)  # noqa: PT017 - the sentence is what is tested
