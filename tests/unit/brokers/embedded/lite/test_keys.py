"""How lite topics stand in the store."""

from __future__ import annotations

import struct

import pytest

from brokers.embedded.groups.entries import Entry
from brokers.embedded.lite.keys import (
    beyond,
    decode_place,
    encode_place,
    name_in,
    place_key,
    topic_key,
)
from brokers.embedded.storage.keys import lite_prefix_of_group, lite_prefixes_of_topic


def test_a_place_comes_back_as_it_was() -> None:
    entries = {5: Entry(20, 10, 1, True), 7: Entry(0, 10, 0, False)}
    value = encode_place("room-1", 8, 10, 20, "attempt", "holder ü", entries)
    name, frontier, last_pop_ms, due_ms, attempt_id, holder, found = decode_place(value)
    assert (name, frontier, last_pop_ms, due_ms) == ("room-1", 8, 10, 20)
    assert (attempt_id, holder) == ("attempt", "holder ü")
    assert {at: (e.due_ms, e.pop_ms, e.attempt, e.held) for at, e in found.items()} == {
        5: (20, 10, 1, True),
        7: (0, 10, 0, False),
    }


def test_a_place_at_rest_is_small() -> None:
    assert len(encode_place("r" * 64, 1, 1, 0, "", "", {})) < 100


@pytest.mark.parametrize("value", [b"", b"\0" * 10, b"\0" * 28, b"\xff" * 60])
def test_what_is_no_place_is_refused(value: bytes) -> None:
    with pytest.raises((ValueError, struct.error)):
        decode_place(value)


def test_keys_of_a_topic_or_a_group_stand_together_and_hold_no_other() -> None:
    assert name_in(topic_key(7, b"room")) == "room"
    assert name_in(topic_key(7)) == ""
    for prefix in lite_prefixes_of_topic(7):
        assert not topic_key(8, b"room").startswith(prefix)
    assert lite_prefixes_of_topic(7)[0] <= topic_key(7, b"z" * 64) < beyond(topic_key(7))
    assert place_key(3, 7, 9).startswith(lite_prefix_of_group(3, 7))
    assert place_key(3, 7, 9).startswith(lite_prefix_of_group(3))
    assert not place_key(3, 8, 9).startswith(lite_prefix_of_group(3, 7))
