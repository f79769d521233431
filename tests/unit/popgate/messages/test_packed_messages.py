"""popgate.messages.packed_messages: messages as a batch has them, and back."""

from __future__ import annotations

import pytest

from popgate.errors import LocalWireError
from popgate.messages.packed_messages import PackedMessages, SentTogether, signed
from popgate.model import Message, MessageType, Sent
from popgate.wire.messages.batches import decode_batch
from popgate.wire.messages.properties import LONGEST_BLOCK, encode_properties


def message(text: str, **fields: int) -> Message:
    block = encode_properties({"UNIQ_KEY": text, "__BORNHOST": "host-1", "BORN_TIMESTAMP": "77"})
    return Message("T", text.encode(), message_id=text, properties=block, producer_group="P", **fields)


def test_messages_come_out_as_they_went_in() -> None:
    packed = PackedMessages.pack("T", [message("a", flag=-5, sys_flag=1), message("bc", sys_flag=1)])
    first, second = packed.unpack()
    assert (packed.body_bytes, packed.message_ids) == (3, [b"a", b"bc"])
    assert (first.body, first.flag, first.message_id, first.properties) == (
        b"a",
        -5,
        "a",
        message("a").properties,
    )
    assert (second.topic, second.sys_flag, second.producer_group) == ("T", 1, "P")
    assert (second.born_ms, second.born_host, second.type) == (77, "host-1", MessageType.NORMAL)


def test_what_is_told_of_their_origins_and_keys_needs_no_look_at_their_properties() -> None:
    block = encode_properties({"UNIQ_KEY": "a"})
    keys = [(b"k", "l m\xfc".encode())]
    told = PackedMessages("T", [b"a"], [b"b"], [block], [0], origins=[(5, "10.0.0.1:1")], keys=keys)
    (one,) = told.unpack()
    assert (one.born_ms, one.born_host, one.keys) == (5, "10.0.0.1:1", ("k", "l m\xfc"))


def test_the_size_is_that_of_the_batch() -> None:
    packed = PackedMessages.pack("T", [message("a"), message("bcd")])
    assert packed.size == len(packed.data)


def test_packed_messages_one_behind_the_other_are_packed_messages() -> None:
    one, other = (PackedMessages.pack("T", [message(text)]) for text in "ab")
    assert [item.body for item in decode_batch(one.data + other.data)] == [b"a", b"b"]


def test_results_of_messages_that_were_stored_together_are_those_of_each() -> None:
    together = SentTogether([b"a", b"b", b"c"], "broker", 3, 7, range(100, 103))
    each = [Sent(name, "broker", 3, 7 + at, "", "", 100 + at) for at, name in enumerate("abc")]
    assert len(together) == 3
    assert [*together] == each
    assert [together[at] for at in (0, 1, 2, -1)] == [*each, each[2]]
    assert (together[1:], together[::-2]) == (each[1:], each[::-2])
    with pytest.raises(IndexError):
        together[3]


def test_a_part_of_results_is_those_of_its_messages() -> None:
    together = SentTogether([b"a", b"b", b"c"], "broker", 3, 7, range(100, 103))
    part = together.part(1, 3)
    assert isinstance(part, SentTogether)
    assert [*part] == together[1:]


def test_results_whose_places_are_not_known_have_none() -> None:
    together = SentTogether([b"a", b"b"], "broker", 3, 7).part(1, 2)
    assert [*together] == [Sent("b", "broker", 3, 8)]


@pytest.mark.parametrize("time", ["", "x", "9" * 30, "-1"])
def test_a_time_that_is_none_is_not_known(time: str) -> None:
    block = encode_properties({"UNIQ_KEY": "a", "BORN_TIMESTAMP": time})
    (one,) = PackedMessages.pack("T", [Message("T", b"a", message_id="a", properties=block)]).unpack()
    assert (one.born_ms, one.born_host) == (0, "")


def test_when_the_first_was_born_is_known_without_a_look_at_the_others() -> None:
    assert PackedMessages.pack("T", [message("a"), Message("T", b"b", message_id="b")]).first_born_ms == 77
    assert PackedMessages.pack("T", [Message("T", b"BORN_TIMESTAMP\x015\x02")]).first_born_ms == 0


def test_properties_that_no_batch_holds_are_refused() -> None:
    with pytest.raises(LocalWireError):
        PackedMessages.pack("T", [Message("T", b"a", properties=bytes(LONGEST_BLOCK + 1))])


@pytest.mark.parametrize(("number", "told"), [(1 << 31, -(1 << 31)), (-1, -1), (1 << 32, 0), (5, 5)])
def test_numbers_have_a_sign(number: int, told: int) -> None:
    assert signed(number) == told
