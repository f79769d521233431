"""Vectors: protocol facts 10; forms: 4.1 and 4.4."""

import pytest

from popgate.errors import LocalWireError, PeerWireError
from popgate.wire.bodies.pop_info import PopInfo, decode_bits, encode_bits, encode_pop_info, parse_pop_info

FIELDS = {
    "popTime": "1700000000000",
    "invisibleTime": "60000",
    "reviveQid": "3",
    "restNum": "12",
    "startOffsetInfo": "0 2 100;1 0 7",
    "msgOffsetInfo": "0 2 100,101,105;1 0 7",
    "orderCountInfo": "0 2 1;0 qo2%101 3",
}
INFO = PopInfo(
    1_700_000_000_000,
    60_000,
    3,
    12,
    {(0, 2): 100, (1, 0): 7},
    {(0, 2): [100, 101, 105], (1, 0): [7]},
    {(0, 2): 1},
    {(0, 2, 101): 3},
)


def test_the_fields_of_a_pop_answer_are_read_and_written() -> None:
    assert parse_pop_info(FIELDS) == INFO
    assert encode_pop_info(INFO) == FIELDS


def test_what_an_old_broker_does_not_tell_is_empty() -> None:
    told = {"popTime": "1", "invisibleTime": "2", "reviveQid": "3"}
    assert parse_pop_info(told) == PopInfo(1, 2, 3, 0)
    assert parse_pop_info(encode_pop_info(PopInfo(1, 2, 3, 0))) == PopInfo(1, 2, 3, 0)


def test_how_often_an_ordered_message_came_before() -> None:
    assert [INFO.consumed(0, 2, offset) for offset in (100, 101)] == [1, 3]
    assert INFO.consumed(1, 0, 7) == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("popTime", "x"),
        ("popTime", ""),
        ("invisibleTime", "1.5"),
        ("reviveQid", "9" * 30),
        ("restNum", "٣"),
        ("startOffsetInfo", "0 2"),
        ("startOffsetInfo", "0 2 100 7"),
        ("startOffsetInfo", "0 2 x"),
        ("startOffsetInfo", "a 2 100"),
        ("msgOffsetInfo", "0 2 1,"),
        ("msgOffsetInfo", "0 2 1,,2"),
        ("msgOffsetInfo", "0 2 " + "1," * 5000 + "1"),
        ("msgOffsetInfo", ";".join(["0 2 1"] * 5000)),
        ("orderCountInfo", "0 qo2 1"),
        ("orderCountInfo", "0 qo2%x 1"),
        ("orderCountInfo", "0 2 x"),
    ],
)
def test_damaged_fields_are_refused(name: str, text: str) -> None:
    with pytest.raises(PeerWireError):
        parse_pop_info(FIELDS | {name: text})


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ([0], "AQ=="),
        ([0, 2], "BQ=="),
        ([9], "AAI="),
        ([0, 1, 2, 63], "BwAAAAAAAIA="),
        ([], ""),
        ([65_535], None),
    ],
)
def test_the_bits_of_a_batch_acknowledgement(bits: list[int], text: str | None) -> None:
    written = encode_bits([100 + bit for bit in bits], 100)
    assert text is None or written == text
    assert decode_bits(written, 100) == [100 + bit for bit in bits]


@pytest.mark.parametrize("offset", [-1, 65_536, 1 << 62])
def test_offsets_out_of_reach_are_our_bug(offset: int) -> None:
    with pytest.raises(LocalWireError):
        encode_bits([100 + offset], 100)


def test_a_bit_set_has_no_more_than_a_batch_acknowledges() -> None:
    """It is refused before any of it is read: a small request may claim very many."""
    most = encode_bits(range(8_192), 0)
    assert decode_bits(most, 7) == list(range(7, 8_199))
    for offsets in (range(8_193), range(65_536), range(0, 65_536, 7)):
        with pytest.raises(PeerWireError, match=f"{len(offsets)} bits"):
            decode_bits(encode_bits(offsets, 0), 0)


@pytest.mark.parametrize("text", ["?", "A", "AQ", "AQ==x", "ä", "AAAA" * 10_000])
def test_damaged_bits_are_refused(text: str) -> None:
    with pytest.raises(PeerWireError):
        decode_bits(text, 0)
