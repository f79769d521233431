"""protocols.remoting.codec.property_columns: the values of messages of one size, as if looked for in each."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from protocols.remoting.codec.property_columns import column, even_values, is_even, only, values_of

NAME = b"ID\x01"
HEAD = b"head"
LAYOUTS = [
    b"ID\x01abcd\x02x\x01y\x02",
    b"ID\x01ab\x02d\x02x\x01y\x02",
    b"ID\x01ab\x01d\x02x\x01y\x02",
    b"ID\x01abc\x02ID\x01y\x02",
    b"x\x01y\x02ID\x01abcd\x02",
    b"x\x01ycID\x01abcd\x02",
    b"z\x01y\x02ID\x01abcde",
    b"MID\x01abc\x02x\x01y\x02",
    b"ab\x01abcd\x02x\x01y\x02",
    b"ab\x01abID\x01x\x01y\x02",
]
"""Blocks of properties, each of 12 bytes."""
ORDINARY = LAYOUTS[0], LAYOUTS[4]


def batch_of(blocks: list[bytes]) -> bytes:
    return b"".join(HEAD + b"body" + b"\x00\x0c" + block for block in blocks)


@given(st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=3), st.integers(0, 70), st.binary(max_size=1))
@example([LAYOUTS[0], LAYOUTS[3]], 69, b"")
@example([LAYOUTS[8], LAYOUTS[9]], 69, b"")
def test_the_values_are_those_of_each(layouts: list[bytes], first: int, other: bytes) -> None:
    blocks = [layouts[0]] * first + layouts * 70
    if other:
        blocks[1::2] = [block.replace(b"a", other) for block in blocks[1::2]]
    body, together = batch_of(blocks), b"\x02".join(blocks) + b"\x02"
    values = even_values(body, len(body) // len(blocks), blocks, together, NAME)
    assert values == values_of(blocks, together, NAME)
    if values is None:
        assert len(set(layouts)) > 1 or layouts[0] not in ORDINARY or other
    else:
        assert values == [only(block, NAME) for block in blocks]


def test_a_column_is_the_same_part_of_each() -> None:
    assert column(b"abcdABCD0123", 1, 3, 4) == [b"bc", b"BC", b"12"]
    assert column(b"abcdABCD0123", 4, 4, 4) == [b"", b"", b""]


@given(st.integers(0, 99), st.sampled_from([0, 3, 8, 9]))
def test_messages_are_even_if_all_tell_the_same_lengths(hurt: int, place: int) -> None:
    size = 4 + 4 + 2 + 12
    head = size.to_bytes(4, "big")
    body = bytearray((head + b"body" + b"\x00\x0c" + LAYOUTS[0]) * 100)
    assert is_even(bytes(body), head, 4, b"\x00\x0c")
    body[hurt * size + place] ^= 1
    assert not is_even(bytes(body), head, 4, b"\x00\x0c")
    assert not is_even(bytes(body[: 63 * size]), head, 4, b"\x00\x0c")
