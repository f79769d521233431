"""What this process knows of ordered deliveries."""

from __future__ import annotations

import pytest

from brokers.remote.settle.ordered_deliveries import OrderedDeliveries
from popgate.ids.receipt import ORDERED, Receipt


@pytest.fixture
def known() -> OrderedDeliveries:
    return OrderedDeliveries()


def receipt(offset: int, *, pop_ms: int = 1_000, invisible_ms: int = 50, queue_id: int = 0) -> Receipt:
    return Receipt(0, pop_ms, invisible_ms, ORDERED, 0, "a", queue_id, offset, 0)


def again(
    known, *offsets: int, group: str = "G", queue_id: int = 0, attempt: int = 2, attempt_id: str = ""
) -> list[int]:
    popped = [(receipt(offset, pop_ms=2_000, queue_id=queue_id), attempt) for offset in offsets]
    return sorted(one.offset for one in known.popped_again("T", group, popped, attempt_id=attempt_id))


def test_a_renewal_counts_for_the_older_handles_of_the_delivery(known):
    first = receipt(4)
    known.renewed("T", "G", first._replace(invisible_ms=90_000))
    assert known.due_ms("T", "G", first) == 91_000
    assert known.due_ms("T", "H", first) == 1_050
    assert known.due_ms("T", "G", receipt(5)) == 1_050
    assert known.due_ms("T", "G", receipt(4, pop_ms=1_001)) == 1_051


def test_a_finished_message_that_comes_again_behind_an_unfinished_one_is_known(known):
    known.finished("T", "G", receipt(6))
    known.finished("T", "G", receipt(7))
    assert again(known, 5, 6, 7, 8) == [6, 7]
    assert again(known, 5, 6, 7, 8) == [6, 7]
    assert again(known, 5, 6, queue_id=1) == []
    assert again(known, 5, 6, group="H") == []


def test_a_group_that_was_set_back_gets_everything(known):
    for offset in (5, 6, 7):
        known.finished("T", "G", receipt(offset))
    assert again(known, 5, 6, 7) == []
    assert again(known, 4, 5, 6) == []


def test_what_the_broker_has_passed_is_forgotten(known):
    for offset in range(10):
        known.finished("T", "G", receipt(offset))
    assert again(known, 11, 12) == []
    assert again(known, 5, 6) == []  # set back, without anything remembered


def test_a_delivery_that_two_were_dealt_is_free_when_neither_has_it(known):
    known.dealt("handle")
    known.dealt("handle")
    known.dealt("other")
    assert not known.is_returned("handle")
    assert known.is_returned("handle")
    assert known.is_returned("other")
    assert known.is_returned("forgotten")


def test_it_is_bounded(known):
    for number in range(40_000):
        known.dealt(f"handle {number}")
        one = receipt(number, queue_id=number % 10_000)
        known.finished("T", "G", one)
        known.renewed("T", "G", one)
    assert len(known._finished) <= 8_192
    assert len(known._dues) + len(known._old_dues) <= 2 * 16_384
    for offset in range(5_000):
        known.finished("T", "G", receipt(offset))
    assert max(map(len, known._finished.values())) <= 1_024


def test_what_comes_as_if_for_the_first_time_was_set_back(known):
    """The message before it was finished through another replica: only the count tells."""
    known.finished("T", "G", receipt(6))
    assert again(known, 5, 6, attempt=1) == []
    assert again(known, 5, 6) == []


def test_what_begins_before_the_last_pop_was_set_back(known):
    assert again(known, 8, 9) == []
    known.finished("T", "G", receipt(9))
    assert again(known, 2, 3) == []
    assert again(known, 8, 9) == []


def test_a_repeated_receive_counts_no_attempt(known):
    assert again(known, 5, 6, attempt=1, attempt_id="x") == []
    known.finished("T", "G", receipt(6))
    assert again(known, 5, 6, attempt=1, attempt_id="x") == [6]
    assert again(known, 5, 6, attempt=1, attempt_id="y") == []
