"""Records that are passed on without being decoded: the same bytes as if they had been."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokers.remote.read.pull import stored
from brokers.remote.read.record_scan import Scan, scan_records
from popgate.filters.compiled import compile_filter
from popgate.ids.queue_numbers import QueueNumbers
from popgate.messages.stored_records import StoredRecords
from popgate.model import FilterKind, StoredMessage
from popgate.wire.messages.hosts import pack_host
from popgate.wire.messages.properties import encode_properties
from popgate.wire.messages.records import decode_record, decode_records, encode_record
from protocols.remoting.codec.marks import MOST_BROKERS, OFFSET_BITS, Marks, Origin
from protocols.remoting.codec.records import encode_all

BROKER, GATEWAY, DOOR = "10.0.0.1:10911", "10.0.0.2:5000", Origin("10.0.0.9:8080")
NUMBERS = QueueNumbers([("broker-b", 0), ("broker-a", 0)])
MARKS = {
    "of the first broker": Marks(QueueNumbers([("broker-a", 0)])),
    "of the second broker": Marks(NUMBERS),
    "of a broker without a number": Marks(QueueNumbers([("broker-b", 0)])),
    "of the only broker": Marks(QueueNumbers(), "broker-a"),
    "without any number": Marks(QueueNumbers()),
}


def record(
    offset: int = 0, body: bytes = b"body", *, topic: str = "T", host: str = GATEWAY, **named: str
) -> bytes:
    return encode_record(
        topic.encode(),
        3,
        offset,
        1_000 + offset,
        body,
        encode_properties(named),
        0x100,
        7,
        1_700_000_000_000,
        pack_host(host),
        1_700_000_000_001,
        pack_host(BROKER),
        2,
    )


def with_long_properties() -> bytes:
    """A record whose properties are longer than a signed number of 16 bits."""
    data = record(0, long="x" * 32_700)
    begin = data.index(b"long\x01") - 2
    block = data[begin + 2 :] + bytes(100)
    size = len(data) + 100
    return size.to_bytes(4, "big") + data[4:begin] + len(block).to_bytes(2, "big") + block


def decoded(data: bytes) -> list[StoredMessage]:
    return [stored(each, "broker-a", each.queue_id, each.offset) for each in decode_records(data)]


def scan(
    data: bytes, offset: int = 0, expression: str = "*", *, most: int = 100, room: int = 1 << 20
) -> Scan | None:
    return scan_records(data, offset, compile_filter(FilterKind.TAG, expression), most, room)


def passed(result: Scan) -> StoredRecords:
    def decode(data: bytes, start: int) -> StoredMessage:
        found = decode_record(data, start)
        return stored(found, "broker-a", found.queue_id, found.offset)

    return StoredRecords(result.data, result.starts, result.body_bytes, "broker-a", decode)


texts = st.text(st.characters(blacklist_characters="\x01\x02", blacklist_categories=("Cs",)), max_size=20)
properties = st.fixed_dictionaries(
    {},
    optional={
        "TAGS": texts,
        "__BORNHOST": st.sampled_from(["10.1.2.3:40000", "nobody", "1.2.3.4", "[::1]:80", "10.1.2.3:99999"]),
        "BORN_TIMESTAMP": st.sampled_from(["1690000000000", "0", "soon", "-4", "9" * 15, "9" * 16, "²"]),
        "MY__BORNHOST": texts,
        "A_BORN_TIMESTAMP": texts,
    },
)


class TestTheSameBytes:
    @given(
        st.lists(
            st.tuples(st.binary(max_size=40), properties, st.sampled_from(["T", "t" * 200])), max_size=6
        ),
        st.sampled_from([DOOR.host, "[::1]:8080", "no-address"]),
        st.sampled_from([None, *MARKS.values()]),
    )
    def test_as_of_decoded_messages(
        self, messages: list[tuple[bytes, dict[str, str], str]], host: str, marks: Marks | None
    ) -> None:
        origin = Origin(host, marks)
        data = b"".join(
            record(offset, body, topic=topic, **named) for offset, (body, named, topic) in enumerate(messages)
        )
        result = scan(data)
        if result is not None:
            records = passed(result)
            assert encode_all(records, origin) == encode_all(decoded(data), origin)
            assert list(records) == decoded(data)
            assert records.body_bytes == sum(len(body) for body, _, _ in messages)

    @given(
        st.lists(
            st.tuples(
                st.sampled_from([b"body", b"ydob", b"longer"]),
                st.sampled_from(["__BORNHOST\x0110.1.2.3:4\x02", "__BORNHOST\x0110.1.2.9:44\x02", ""]),
                st.sampled_from(
                    [
                        *(
                            f"BORN_TIMESTAMP\x01{time}\x02"
                            for time in ("1690000000000", "1690000000001", "9")
                        ),
                        *("BORN_TIMESTAMP\x01\x02", "BORN_TIMESTAMP\x01soon\x02", "BORN_TIMESTAMP\x017", ""),
                        "A\x01b\x02BORN_TIMESTAMP\x011690000000000\x02",
                        "BORN_TIMESTAMP\x015\x02__BORNHOST\x0110.1.2.3:4\x02",
                    ]
                ),
                st.sampled_from(["", "", "CLUSTER\x01DefaultCluster\x02", "MY__BORNHOST\x01x\x02"]),
            ),
            min_size=1,
            max_size=8,
        ),
        st.integers(0, 1_800),
        st.sampled_from([b"", b"\x00", b"\x01", b"\x02", b"\xff", b"1", b"\x00\x00\x00\x04"]),
        st.integers(0, 3),
    )
    def test_of_messages_that_are_alike(
        self, messages: list[tuple[bytes, str, str, str]], at: int, damage: bytes, begin: int
    ) -> None:
        """Lengths and births of one are compared for those that follow."""
        data = b"".join(
            encode_record(
                *(
                    b"T",
                    3,
                    offset,
                    1_000 + offset,
                    body,
                    f"UNIQ_KEY\x01ID\x02{host}{time}{more}".encode(),
                    0x100,
                ),
                *(7, 1_700_000_000_000, pack_host(GATEWAY), 1_700_000_000_001, pack_host(BROKER), 2),
            )
            for offset, (body, host, time, more) in enumerate(messages)
        )
        for each in (data, data[:at] + damage + data[at + len(damage) :]):
            result = scan(each, begin)
            if result is None:
                continue
            records = passed(result)
            as_decoded = [message for message in decoded(each) if message.offset >= begin]
            assert list(records) == as_decoded
            assert records.body_bytes == sum(len(message.body) for message in as_decoded)
            if each is data:  # damage may be where no message has anything, like its checksum
                assert encode_all(records, DOOR) == encode_all(as_decoded, DOOR)

    def test_of_nearly_all_messages(self) -> None:
        named = {"UNIQ_KEY": "ID", "__BORNHOST": "10.1.2.3:40000", "BORN_TIMESTAMP": "1690000000000"}
        data = record(0, **named) + record(1, b"BORN_TIMESTAMP\x01x\x02__BORNHOST\x01", **named) + record(2)
        result = scan(data)
        assert result is not None
        assert encode_all(passed(result), DOOR) == encode_all(decoded(data), DOOR)
        first = decode_record(result.data)
        assert (first.born_ms, first.born_host) == (1_690_000_000_000, pack_host("10.1.2.3:40000"))

    @pytest.mark.parametrize(
        ("marks", "mark"),
        list(zip(MARKS.values(), [0, 1, MOST_BROKERS, 0, MOST_BROKERS], strict=True)),
        ids=list(MARKS),
    )
    def test_with_the_mark_of_their_broker(self, marks: Marks, mark: int) -> None:
        data = b"".join(record(offset) for offset in range(3))
        result = scan(data)
        assert result is not None
        told = encode_all(passed(result), Origin(DOOR.host, marks))
        assert told == encode_all(decoded(data), Origin(DOOR.host, marks))
        places = [each.commit_offset for each in decode_records(told, verify=True)]
        assert places == [mark << OFFSET_BITS | 1_000 + offset for offset in range(3)]


class TestWhichRecords:
    def test_those_from_the_offset_on(self) -> None:
        data = b"".join(record(offset) for offset in range(5))
        result = scan(data, 2)
        assert result is not None
        assert [message.offset for message in passed(result)] == [2, 3, 4]
        assert result.next_offset is None

    def test_no_more_than_asked_for(self) -> None:
        data = b"".join(record(offset) for offset in range(5))
        result = scan(data, 1, most=2)
        assert result is not None
        assert [message.offset for message in passed(result)] == [1, 2]
        assert result.next_offset == 3

    @pytest.mark.parametrize(("room", "count"), [(0, 1), (250, 2), (10_000, 5)])
    def test_no_more_than_there_is_room_for_but_one(self, room: int, count: int) -> None:
        data = b"".join(record(offset) for offset in range(5))
        assert len(record()) * 2 <= 250 < len(record()) * 3
        result = scan(data, room=room)
        assert result is not None
        assert len(result.starts) == count

    def test_those_that_pass(self) -> None:
        data = b"".join(record(offset, TAGS="ab"[offset % 2]) for offset in range(6))
        result = scan(data, 1, "b", most=2)
        assert result is not None
        assert [message.offset for message in passed(result)] == [1, 3]
        assert result.next_offset == 4
        assert encode_all(passed(result), DOOR) == encode_all(decoded(data)[1:4:2], DOOR)

    def test_none_at_all(self) -> None:
        assert scan(b"") == Scan(b"", [], 0, None)
        result = scan(record(0), 1)
        assert result == Scan(b"", [], 0, None)


def of_size(size: int, body_length: int, offset: int = 0) -> bytes:
    """A record that says these of itself, with as many bytes, or more behind it where those are too few."""
    data = bytearray(record(offset) + bytes(200))
    data[:4], data[84:88] = size.to_bytes(4, "big"), body_length.to_bytes(4, "big")
    return bytes(data[: size if size > 100 else None])


class TestWhatMustBeDecoded:
    @pytest.mark.parametrize(("size", "body_length"), [(0, 0), (0, 1), (150, 150), (150, 151), (1, 0)])
    @pytest.mark.parametrize("behind", [0, 1])
    def test_a_first_record_is_compared_with_none(self, size: int, body_length: int, behind: int) -> None:
        data = of_size(size, body_length)
        assert scan(data, behind) is None
        assert scan(record(0) + data, behind) is None

    @pytest.mark.parametrize(
        "data",
        [
            record(0)[:-1],
            record(0) + b"\x00" * 20,
            record(0, host="[::1]:80"),
            record(0, __BORNHOST="[::1]:80"),
            record(0, BORN_TIMESTAMP="soon"),
            record(0, MY__BORNHOST="10.1.2.3:40000"),
            record(0)[:4] + b"\xda\xa3\x20\xff" + record(0)[8:],
            record(0)[:84] + b"\x00\x00\xff\xff" + record(0)[88:],
            record(0, topic="主题"),
            record(0, topic="主题" * 40),
            with_long_properties(),
            record(0)[:84] + b"\x00\x00\x00\x03" + record(0)[88:],
        ],
    )
    def test_is_not_passed_on(self, data: bytes) -> None:
        assert scan(data) is None

    @given(st.binary(max_size=300), st.integers(0, 200))
    def test_whatever_comes_is_no_fault(self, noise: bytes, at: int) -> None:
        data = record(0) + record(1)
        scan(noise)
        scan(data[:at] + noise + data[at + len(noise) :])


def test_messages_are_read_one_by_one_and_in_part() -> None:
    data = b"".join(record(offset, b"%d" % offset) for offset in range(4))
    result = scan(data)
    assert result is not None
    records = passed(result)
    assert len(records) == 4
    assert records[1].body == b"1"
    assert records[-1].body == b"3"
    assert [message.body for message in records[1:3]] == [b"1", b"2"]
    with pytest.raises(IndexError):
        records[4]
