"""brokers.shared.codec.layouts: values of several fields."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokers.shared.codec.calls import decode, encode
from brokers.shared.codec.kinds import BYTES, NUMBER, REAL, TEXT, TRUTH, WIDE, Listed
from brokers.shared.codec.layouts import Layout, as_tuple
from popgate.errors import LocalWireError, PeerWireError

MIXED = Layout(
    "mixed",
    [("text", TEXT), ("a", NUMBER), ("list", Listed(NUMBER)), ("real", REAL), ("b", NUMBER), ("blob", BYTES)],
    take=tuple,
    make=as_tuple,
)
NUMBERS = st.integers(-(1 << 100), 1 << 100) | st.sampled_from([WIDE, WIDE - 1, -WIDE, -WIDE - 1, WIDE + 1])


VALUES = st.tuples(
    st.text(), NUMBERS, st.lists(NUMBERS, max_size=3), st.floats(allow_nan=False), NUMBERS, st.binary()
)


@settings(deadline=None)
@given(VALUES)
def test_fields_come_back_in_their_places(values: tuple[Any, ...]) -> None:
    assert decode(MIXED, encode(MIXED, values)) == values


def test_a_real_that_looks_like_the_mark_of_a_wide_number_is_a_real() -> None:
    values = ("", 1 << 70, [], float(WIDE), WIDE, b"")
    assert decode(MIXED, encode(MIXED, values)) == values


def test_one_field_and_none_are_layouts_too() -> None:
    one = Layout("one", [("a", TRUTH)], take=tuple, make=as_tuple)
    assert decode(one, encode(one, (True,))) == (True,)
    none = Layout("none", [], take=tuple, make=as_tuple)
    assert encode(none, ()) == b""
    assert decode(none, b"") == ()


def test_every_cut_is_refused() -> None:
    data = encode(MIXED, ("text", 1 << 70, [1, 2], 1.0, 5, b"blob"))
    for end in range(len(data)):
        with pytest.raises(PeerWireError):
            decode(MIXED, data[:end])
    with pytest.raises(PeerWireError, match="left over"):
        decode(MIXED, data + b"\0")


@pytest.mark.parametrize("number", [None, "5", 1 << 600])
def test_what_is_no_number_or_too_large_a_one_is_not_written(number: Any) -> None:
    with pytest.raises(LocalWireError):
        encode(MIXED, ("", number, [], 1.0, 5, b""))


def test_a_layout_tells_its_fields_and_their_kinds() -> None:
    assert MIXED.told == "mixed(text:text,a:int,list:[int],real:float,b:int,blob:bytes)"
