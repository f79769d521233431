import pytest

from popgate.errors import LocalWireError, PeerWireError
from popgate.wire.frames.contract import Wire
from popgate.wire.messages.record_reader import RecordReader
from popgate.wire.messages.records import Record, decode_record, encode_record

HOST = bytes(8)


def record(offset: int, body: bytes = b"body", topic: bytes = b"T") -> bytes:
    return encode_record(
        topic,
        0,
        offset,
        0,
        body,
        b"",
        sys_flag=0,
        flag=0,
        born_ms=1,
        born_host=HOST,
        store_ms=2,
        store_host=HOST,
    )


def drain(reader: Wire[Record]) -> list[Record]:
    return list(iter(reader.next_event, None))


STREAM = b"".join([record(0), record(1, b""), record(2, b"x" * 3000), record(3, topic=b"t" * 200)])
EVENTS = [decode_record(STREAM, at) for at in (0, 96, 188, 3280)]
assert [e.offset for e in EVENTS] == [0, 1, 2, 3]


def test_whole() -> None:
    reader = RecordReader(verify=True)
    reader.receive(STREAM)
    assert drain(reader) == EVENTS


def test_byte_by_byte() -> None:
    reader = RecordReader()
    seen = []
    for at in range(len(STREAM)):
        reader.receive(STREAM[at : at + 1])
        seen += drain(reader)
    assert seen == EVENTS


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_with_trailing_bytes(kind: type) -> None:
    reader = RecordReader()
    reader.receive(kind(STREAM + record(4)[:50]))
    assert drain(reader) == EVENTS
    reader.receive(kind(record(4)[50:]))
    assert [e.offset for e in drain(reader)] == [4]


def test_the_end_between_two_records_is_no_event() -> None:
    reader = RecordReader()
    reader.receive(STREAM)
    reader.receive(b"")
    assert drain(reader) == EVENTS
    assert reader.next_event() is None
    assert reader.data_to_send() == []


def test_the_end_inside_a_record_is_an_error_after_the_whole_ones() -> None:
    reader = RecordReader()
    reader.receive(STREAM[:-1])
    reader.receive(b"")
    seen = [reader.next_event() for _ in range(3)]
    assert seen == EVENTS[:3]
    with pytest.raises(PeerWireError, match="ended inside a record"):
        reader.next_event()


def test_bytes_after_the_end_are_our_bug() -> None:
    reader = RecordReader()
    reader.receive(b"")
    with pytest.raises(LocalWireError):
        reader.receive(b"x")


@pytest.mark.parametrize(
    "start",
    [
        bytes(8),
        b"\x7f\xff\xff\xff\xda\xa3\x20\xa7",
        b"\x00\x00\x00\x5b\xcb\xd4\x31\x94",
        b"HTTP/1.1",
    ],
)
def test_nonsense_is_refused_before_it_is_complete(start: bytes) -> None:
    reader = RecordReader()
    reader.receive(start)
    with pytest.raises(PeerWireError) as first:
        reader.next_event()
    reader.receive(STREAM)
    with pytest.raises(PeerWireError) as second:
        reader.next_event()
    assert second.value is first.value


def test_a_record_above_the_limit_is_refused() -> None:
    data = record(0, b"x" * 1000)
    for largest, fits in ((len(data), True), (len(data) - 1, False)):
        reader = RecordReader(largest=largest)
        reader.receive(data)
        if fits:
            assert drain(reader)
        else:
            with pytest.raises(PeerWireError, match=f"{largest} are read"):
                reader.next_event()
