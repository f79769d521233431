"""Properties blocks and filters over them, for whatever text there is."""

from hypothesis import given
from hypothesis import strategies as st

from popgate.filters.tags import TagFilter
from popgate.wire.messages.properties import (
    decode_properties,
    drop_properties,
    encode_properties,
    find_property,
    set_property,
    split_properties,
)

TEXT = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=8
)
NAMES = st.sampled_from(["a", "b", "ab", "ba", "é"]) | TEXT
PROPERTIES = st.dictionaries(NAMES, TEXT, max_size=6)
# Small alphabet, so that separators, repetitions and half names are frequent.
RAW = st.lists(st.sampled_from([b"\x01", b"\x02", b"a", b"b", b"ab", b"\xff"]), max_size=30).map(b"".join)


@given(PROPERTIES)
def test_properties_come_back(properties: dict[str, str]) -> None:
    block = encode_properties(properties)
    assert decode_properties(block) == properties
    assert decode_properties(block[:-1]) == properties
    for name, value in properties.items():
        assert find_property(block, name.encode()) == value.encode()


@given(RAW)
def test_reading_bytes_agrees_with_reading_text(block: bytes) -> None:
    read = {
        k.decode("utf-8", "replace"): v.decode("utf-8", "replace") for k, v in split_properties(block).items()
    }
    assert read == decode_properties(block)


@given(RAW, st.sampled_from([b"a", b"b", b"ab", b"ba"]))
def test_finding_one_agrees_with_reading_all(block: bytes, name: bytes) -> None:
    found = find_property(block, name)
    expected = decode_properties(block).get(name.decode())
    assert (None if found is None else found.decode("utf-8", "replace")) == expected


@given(RAW, st.sampled_from([b"a", b"b", b"ab"]), st.sampled_from([b"1", b"a", b"ab"]))
def test_setting_one_changes_only_that_one(block: bytes, name: bytes, value: bytes) -> None:
    expected = decode_properties(block) | {name.decode(): value.decode()}
    assert decode_properties(set_property(block, name, value)) == expected


@given(RAW, st.sets(st.sampled_from([b"a", b"b", b"ab"])))
def test_dropping_some_leaves_the_others(block: bytes, names: set[bytes]) -> None:
    dropped = {name.decode() for name in names}
    expected = {k: v for k, v in decode_properties(block).items() if k not in dropped}
    assert decode_properties(drop_properties(block, names)) == expected


@given(RAW, st.text("ab|* ", max_size=8))
def test_a_tag_filter_agrees_with_the_rule(block: bytes, expression: str) -> None:
    wanted = {part.strip() for part in expression.split("||")} - {""}
    everything = expression.strip() in ("", "*")
    if not wanted and not everything:
        return
    block += b"\x02TAGS\x01ab\x02"
    assert TagFilter(expression).matches(block) is (everything or "ab" in wanted)
