from __future__ import annotations

from dataclasses import replace

from brokers.remote.transactions.ids import Half
from brokers.remote.transactions.outcomes import TransactionOutcomes
from popgate.model import Resolution

SENT = Half("b", "T", "g", "M", 100, 3, born_ms=1_000, open_s=6)
NAMED = Half("b", "", "g", "M", 100, 3, born_ms=0)
"""The same, as a classic producer names it."""
CHECKED = Half("b", "T", "g", "M", 200, 7, born_ms=1_000, checked=True)


def test_a_later_place_counts_and_an_older_one_does_not() -> None:
    ends = TransactionOutcomes(8)
    known = ends.of(SENT)
    assert ends.of(CHECKED) is known
    assert known.newest is CHECKED
    assert ends.of(SENT) is known
    assert known.newest is CHECKED


def test_a_message_id_that_is_used_twice_is_two_transactions() -> None:
    ends = TransactionOutcomes(8)
    assert ends.of(SENT) is not ends.of(replace(SENT, born_ms=2_000, commit_offset=300))


def test_what_a_classic_producer_names_is_the_transaction_that_the_broker_asks_about() -> None:
    ends = TransactionOutcomes(8)
    known = ends.of(NAMED)
    known.verdict, known.ended_ms = Resolution.COMMIT, 5_000
    assert ends.of(CHECKED) is known
    assert ends.of(replace(CHECKED, commit_offset=400)) is known


def test_a_classic_producer_that_ends_after_a_check_ends_the_newest_place() -> None:
    ends = TransactionOutcomes(8)
    asked = ends.of(CHECKED)
    assert ends.of(NAMED) is asked
    assert asked.newest is CHECKED


def test_a_classic_producer_that_uses_a_message_id_again_is_told_by_place_and_time() -> None:
    ends = TransactionOutcomes(8)
    known = ends.of(NAMED)
    known.verdict, known.ended_ms = Resolution.COMMIT, 5_000
    assert ends.of(NAMED) is known
    later = replace(NAMED, commit_offset=300)
    assert ends.of(replace(CHECKED, born_ms=6_000, commit_offset=250)) is not known
    assert ends.of(later) is not known


def test_a_message_that_is_sent_twice_before_it_has_ended_is_two_transactions() -> None:
    ends = TransactionOutcomes(8)
    first, second = NAMED, replace(NAMED, commit_offset=150)
    one = ends.of(first)  # its broker is slow to answer
    other = ends.of(second)
    assert other is not one
    assert (one.newest, other.newest) == (first, second)
    other.verdict, other.ended_ms = Resolution.COMMIT, 5_000
    # Whichever of the two it is that the broker asks about now: it is asked about, and not rolled back.
    assert ends.of(CHECKED).verdict is None
    assert ends.of(replace(NAMED, commit_offset=200, checked=True)) is ends.of(CHECKED)


def test_an_end_behind_a_check_is_that_of_another_transaction() -> None:
    ends = TransactionOutcomes(8)
    asked = ends.of(CHECKED)
    assert ends.of(replace(NAMED, commit_offset=300)) is not asked
    assert asked.newest is CHECKED


def test_what_another_producer_group_ends_under_the_same_message_id_is_another_transaction() -> None:
    ends = TransactionOutcomes(8)
    stranger = ends.of(replace(NAMED, producer_group="others", commit_offset=50))
    stranger.verdict, stranger.ended_ms = Resolution.ROLLBACK, 5_000
    assert ends.of(CHECKED) is not stranger
    assert ends.of(NAMED) is ends.of(CHECKED)


def test_an_answer_to_a_check_that_went_another_way_ends_at_the_place_of_the_check() -> None:
    ends = TransactionOutcomes(8)
    known = ends.of(NAMED)
    answered = replace(NAMED, commit_offset=200, checked=True)
    assert ends.of(answered) is known
    assert known.newest is answered
    known.verdict, known.ended_ms = Resolution.COMMIT, 5_000
    assert ends.of(replace(CHECKED, commit_offset=300)) is known


def test_places_without_a_message_id_are_told_apart() -> None:
    ends = TransactionOutcomes(8)
    nameless = replace(NAMED, message_id="")
    assert ends.of(nameless) is ends.of(nameless)
    assert ends.of(nameless) is not ends.of(replace(nameless, commit_offset=101))


def test_a_bounded_number_is_remembered() -> None:
    ends = TransactionOutcomes(2)
    first = ends.of(SENT)
    for number in range(3):
        ends.of(replace(SENT, message_id=f"other-{number}"))
        ends.of(replace(NAMED, message_id=f"another-{number}"))
    assert len(ends) == 2
    assert ends.of(SENT) is not first
