"""brokers.shared.codec.kinds: single values, exact and bounded."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokers.shared.codec.calls import decode, encode
from brokers.shared.codec.kinds import (
    BYTES,
    LONGEST_LIST,
    MOMENT,
    NOTHING,
    NUMBER,
    REAL,
    TEXT,
    TRUTH,
    Kind,
    Listed,
    Mapped,
    OneOf,
    Sink,
    Source,
    members,
)
from popgate.errors import LocalWireError, PeerWireError


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


ANY_TEXT = st.text(st.characters(exclude_categories=()))
EITHER = OneOf([(str, TEXT), (int, NUMBER), (type(None), NOTHING)])


@settings(deadline=None)
@given(st.integers(-(1 << 500), 1 << 500) | st.sampled_from([-(1 << 63), 1 << 63, (1 << 63) - 1]))
def test_numbers_of_any_size_are_read_as_they_were(number: int) -> None:
    assert decode(NUMBER, encode(NUMBER, number)) == number


@settings(deadline=None)
@given(ANY_TEXT)
def test_any_text_is_read_as_it_was_lone_surrogates_too(text: str) -> None:
    assert decode(TEXT, encode(TEXT, text)) == text


@settings(deadline=None)
@given(st.lists(st.none() | ANY_TEXT | st.integers(-(1 << 70), 1 << 70)))
def test_lists_of_what_may_be_one_of_several_are_read_as_they_were(values: list[Any]) -> None:
    assert decode(Listed(EITHER), encode(Listed(EITHER), values)) == values


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (TRUTH, True),
        (REAL, 1.5),
        (BYTES, b"\x00\xff"),
        (NOTHING, None),
        (members(Colour), Colour.BLUE),
        (Mapped(TEXT, NUMBER), {"b": 1, "a": 2}),
        (Listed(NUMBER, tuple), (1, 2)),
    ],
)
def test_a_value_is_read_as_it_was(kind: Kind[Any], value: Any) -> None:
    read = decode(kind, encode(kind, value))
    assert read == value
    assert type(read) is type(value)


def test_a_moment_travels_as_the_time_that_is_left() -> None:
    sink = Sink(now=100.0)
    MOMENT.write(sink, 103.5)
    MOMENT.write(sink, None)
    source = Source(sink.data(), now=7.0)
    assert MOMENT.read(source) == 10.5
    assert MOMENT.read(source) is None


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (NUMBER, b"\0" * 7),
        (NUMBER, b"\x80" + b"\0" * 7 + b"\xff"),
        (TEXT, b"\0\0\0\5abcd"),
        (TEXT, b"\0\0\0\1\xff"),
        (members(Colour), b"\2"),
        (EITHER, b"\3"),
        (Listed(NOTHING), (LONGEST_LIST + 1).to_bytes(4, "big") + b"\0" * (LONGEST_LIST + 1)),
        (Listed(TEXT), b"\xff\xff\xff\xff"),
        (Mapped(TEXT, TEXT), b"\0\0\0\1"),
        (MOMENT, b"\1" + b"\x7f\xf0" + b"\0" * 6),
        (BYTES, b"\0\0\0\1ab"),
        (TRUTH, b""),
    ],
)
def test_nonsense_is_refused(kind: Kind[Any], data: bytes) -> None:
    with pytest.raises(PeerWireError):
        decode(kind, data)


@pytest.mark.parametrize(
    ("kind", "value"),
    [(members(Colour), "red"), (EITHER, 1.5), (NOTHING, 0), (NUMBER, 1 << 600), (EITHER, [])],
)
def test_what_is_of_no_such_type_is_not_written(kind: Kind[Any], value: Any) -> None:
    with pytest.raises(LocalWireError):
        encode(kind, value)


def test_a_list_of_too_many_is_not_written() -> None:
    with pytest.raises(LocalWireError, match="1000000 can be told"):
        encode(Listed(NOTHING), [None] * (LONGEST_LIST + 1))
