import pytest

from popgate.errors import LocalWireError
from popgate.wire.messages import properties as p
from popgate.wire.messages.properties import (
    LONGEST_BLOCK,
    RESERVED,
    decode_properties,
    drop_properties,
    encode_properties,
    find_property,
    set_if_room,
    set_property,
)

BLOCK = b"UNIQ_KEY\x01ID1\x02TAGS\x01A\x02"


def test_the_vector_of_the_facts() -> None:
    assert encode_properties({"UNIQ_KEY": "ID1", "TAGS": "A"}) == BLOCK
    assert BLOCK.hex() == "554e49515f4b45590149443102544147530141" + "02"
    assert decode_properties(BLOCK) == {"UNIQ_KEY": "ID1", "TAGS": "A"}


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"", {}),
        (b"a\x01b", {"a": "b"}),
        (b"a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
        (b"a\x01b\x02a\x01c\x02", {"a": "c"}),
        (b"a\x01b\x02a\x01\x02", {"a": "b"}),
        (b"\x01b\x02c\x01d\x02", {"c": "d"}),
        (b"a\x01\x02c\x01d\x02", {"c": "d"}),
        (b"a\x02c\x01d\x02", {"c": "d"}),
        (b"\x02\x02c\x01d\x02\x02", {"c": "d"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        ("中\x01文\x02".encode(), {"中": "文"}),
        (b"a\x01\xff\x02b\x01c\x02", {"a": "\ufffd", "b": "c"}),
    ],
)
def test_reading_is_lenient(block: bytes, expected: dict[str, str]) -> None:
    assert decode_properties(block) == expected
    for name in ("a", "b", "c", "中"):
        found = find_property(block, name.encode())
        assert (None if found is None else found.decode("utf-8", "replace")) == expected.get(name)


def test_a_name_is_found_only_as_a_whole() -> None:
    block = encode_properties({"xa": "1", "ax": "2", "b": "a", "c": "a\x00"})
    assert find_property(block, b"a") is None
    assert find_property(block, b"x") is None
    assert find_property(block, b"ax") == b"2"


def test_empty_keys_and_values_are_left_out() -> None:
    assert encode_properties({"": "x", "a": "", "b": "c"}) == b"b\x01c\x02"
    assert encode_properties({"a": ""}) == b""


@pytest.mark.parametrize("bad", [{"a\x01": "b"}, {"a": "b\x02"}, {"a": "\x01"}, {"\x02": "b"}])
def test_separators_inside_are_our_bug(bad: dict[str, str]) -> None:
    with pytest.raises(LocalWireError):
        encode_properties(bad)


def test_text_that_is_no_unicode_is_replaced() -> None:
    assert encode_properties({"a": "x\ud800y"}) == b"a\x01x?y\x02"


def test_setting_replaces_or_appends() -> None:
    assert set_property(b"", b"a", b"1") == b"a\x011\x02"
    assert set_property(b"a\x011", b"b", b"2") == b"a\x011\x02b\x012\x02"
    assert set_property(b"a\x011\x02b\x012\x02a\x013\x02", b"a", b"4") == b"b\x012\x02a\x014\x02"
    # The name stands inside another entry only: nothing is lost.
    assert set_property(b"xa\x011\x02", b"a", b"2") == b"xa\x011\x02a\x012\x02"


@pytest.mark.parametrize(("name", "value"), [(b"", b"1"), (b"a", b""), (b"a\x01", b"1"), (b"a", b"1\x02")])
def test_setting_what_cannot_be_told_is_our_bug(name: bytes, value: bytes) -> None:
    with pytest.raises(LocalWireError):
        set_property(BLOCK, name, value)


@pytest.mark.parametrize("spare", [-5, -1, 0, 1])
def test_a_property_is_set_where_a_record_has_room_for_it(spare: int) -> None:
    block = b"big\x01".ljust(LONGEST_BLOCK - spare - len(b"b\x012\x02") - 1, b"x") + b"\x02"
    assert set_if_room(block, b"b", b"2") == (block if spare < 0 else block + b"b\x012\x02")


def test_a_property_of_the_same_name_makes_room() -> None:
    block = b"b\x01" + b"x" * (LONGEST_BLOCK - 3) + b"\x02"
    assert set_if_room(block, b"b", b"2") == b"b\x012\x02"
    assert set_if_room(b"a\x011", b"b", b"2") == b"a\x011\x02b\x012\x02"


def test_where_there_is_room_what_cannot_be_told_is_our_bug() -> None:
    with pytest.raises(LocalWireError):
        set_if_room(BLOCK, b"a", b"")


def test_dropping_keeps_the_others_in_order() -> None:
    block = b"a\x011\x02b\x012\x02c\x013\x02a\x014\x02"
    assert drop_properties(block, [b"a", b"z"]) == b"b\x012\x02c\x013\x02"
    assert drop_properties(block, [b"a", b"b", b"c"]) == b""
    assert drop_properties(b"a\x011\x02b\x012", [b"a"]) == b"b\x012\x02"
    assert drop_properties(block, []) == block
    assert drop_properties(b"a\x011\x02b\x012", [b"c"]) == b"a\x011\x02b\x012"
    assert set_property(b"ab\x011", b"b", b"2") == b"ab\x011\x02b\x012\x02"


def test_the_reserved_names_are_those_of_the_facts() -> None:
    assert {
        "KEYS",
        "TAGS",
        "UNIQ_KEY",
        "TIMER_DELIVER_MS",
        "POP_CK",
        "__BORNHOST",
        "DLQ_ORIGIN_TOPIC",
    } <= RESERVED
    unreserved = {
        *(p.SHARDING_KEY, p.TRANSACTION_ID, p.TRACE_CONTEXT, p.INNER_NUM, p.INNER_BASE, p.REDIRECT),
        *(p.CHECK_IMMUNITY_TIME_IN_SECONDS, p.TRANSACTION_CHECK_TIMES, p.FORWARD_QUEUE_ID),
        *(p.INNER_MULTI_DISPATCH, p.REDRIVE_COUNT, p.RETRY_MEMBER),
    }
    assert not unreserved & RESERVED
    names = {value for name, value in vars(p).items() if name.isupper() and isinstance(value, str)} - {
        p.TRANSIENT_PREFIX
    }
    assert names == RESERVED | unreserved
