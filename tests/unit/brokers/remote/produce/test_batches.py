"""Which messages of one send may go together."""

from __future__ import annotations

import pytest

from brokers.batches import MOST_BYTES, MOST_MESSAGES
from brokers.remote.produce.batches import (
    goes_alone,
    in_batches,
    is_held_back,
    may_batch,
)
from popgate.model import Message, MessageType
from popgate.wire.messages.batches import BatchItem, encode_batch


def message(body: bytes = b"x", **fields) -> Message:
    return Message("T", body, properties=b"UNIQ_KEY\x01ID\x02", **fields)


def test_plain_messages_go_together():
    some = [message() for _ in range(5)]
    assert in_batches(some, together=True) == [some]
    assert in_batches(some, together=False) == [[one] for one in some]
    assert in_batches([], together=True) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"deliver_at_ms": 1},
        {"type": MessageType.TRANSACTION},
        {"sys_flag": 0x4},
        {"lite_topic": "l"},
        {"priority": 0},
    ],
)
def test_what_has_a_way_of_its_own_goes_alone(fields):
    a, b, alone, c, d = message(), message(), message(**fields), message(), message()
    assert goes_alone(alone)
    assert in_batches([a, b, alone, c, d], together=True) == [[a, b], [alone], [c, d]]


@pytest.mark.parametrize("told", [b"true", b"TRUE"])
def test_every_message_of_a_java_client_says_that_its_broker_waits_for_the_disk(told):
    some = [message() for _ in range(3)]
    for one in some:
        one.properties += b"WAIT\x01%b\x02" % told
    assert in_batches(some, together=True) == [some]


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "WAIT"])
def test_a_block_of_properties_may_say_it_too(name):
    one = message()
    one.properties += f"{name}\x013\x02".encode()
    assert goes_alone(one)
    assert not goes_alone(message())


@pytest.mark.parametrize("fields", [{"sys_flag": 1}, {"producer_group": "other"}])
def test_what_is_said_once_must_be_the_same_for_all(fields):
    a, b, c = message(), message(**fields), message(**fields)
    assert in_batches([a, b, c], together=True) == [[a], [b, c]]


def test_a_batch_has_no_more_messages_than_a_broker_counts():
    some = [message()] * (MOST_MESSAGES + 2)
    assert [len(batch) for batch in in_batches(some, together=True)] == [32_767, 2]


def test_a_batch_has_four_mebibytes_at_most_and_order_stays():
    some = [message(bytes(1_000_000)) for _ in range(10)]
    batches = in_batches(some, together=True)
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert [one for batch in batches for one in batch] == some
    for batch in batches:
        body = encode_batch(BatchItem(0, one.body, one.properties) for one in batch)
        assert len(body) <= MOST_BYTES


def test_a_message_that_is_too_large_goes_alone_and_is_refused_alone():
    large = message(bytes(MOST_BYTES + 1))
    a, b = message(), message()
    assert in_batches([large, a, b], together=True) == [[large], [a, b]]


def test_retries_and_long_names_are_never_sent_together():
    assert may_batch("T")
    assert not may_batch("%RETRY%group")
    assert may_batch("t" * 127)
    assert not may_batch("t" * 128)


def test_what_is_held_back_need_not_wait_for_others():
    assert is_held_back(message(deliver_at_ms=1))
    assert is_held_back(message(type=MessageType.TRANSACTION))
    assert not is_held_back(message())
