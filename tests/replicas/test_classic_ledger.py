"""The verdict on a run with classic clients names each cause, and sees what has none."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.crash.records import Send, Stored
from tests.replicas.classic import (
    BACK_WITHIN_S,
    FAILED,
    GATEWAY_ENDED,
    READ_ANEW,
    SENT_BACK_AGAIN,
    TOLD_LOWER,
    VIRTUAL,
    ClassicLedger,
    Place,
    Position,
)
from tests.replicas.ledger import SENT_AGAIN, Delivery, Fate

GROUP = "readers"
QUEUE = ("t", 0)


def deliver(
    ledger: ClassicLedger, body: str, at: float, *, client: str = "a", attempt: int = 1, offset: int = -1
) -> Delivery:
    made = Delivery(
        GROUP, body, attempt, client, at, at, f"{body}#{at}", 0, 0.0, Fate.DONE, at + 0.1, at + 0.1
    )
    ledger.deliveries.append(made)
    ledger.places[made] = Place(client, QUEUE, ("one", "two").index(body) if offset < 0 else offset)
    return made


def say(ledger: ClassicLedger, kind: str, at: float, offset: int, client: str = "a") -> None:
    ledger.positions.setdefault((GROUP, QUEUE), []).append(Position(kind, client, at, offset))


@pytest.fixture
def ledger() -> ClassicLedger:
    """Two messages of a lane, one after the other, consumed in order."""
    ledger = ClassicLedger(rocketmq=True, readers={GROUP: "t"}, ordered={GROUP})
    say(ledger, "asked", 0.1, -1)
    say(ledger, "began", 0.2, 0)
    for number, body in enumerate(("one", "two")):
        ledger.tried.add(body)
        ledger.sends[body] = Send("t", body, f"id-{body}", lane="lane", number=number)
        ledger.stored.append(Stored("t", 0, number, f"id-{body}", body))
        deliver(ledger, body, number + 1.0)
    return ledger


def test_a_run_in_which_all_is_well_has_no_complaints(ledger: ClassicLedger) -> None:
    assert ledger.complaints() == []
    assert ledger.causes() == Counter()


def test_what_was_not_written_down_comes_again_where_the_queue_is_read_anew(ledger: ClassicLedger) -> None:
    say(ledger, "confirmed", 1.5, 1)
    say(ledger, "asked", 3.0, -1, "b")
    say(ledger, "began", 3.1, 1, "b")
    deliver(ledger, "two", 4.0, client="b")
    assert ledger.causes() == {READ_ANEW: 1}
    assert ledger.complaints() == []


def test_who_did_not_begin_anew_has_no_reason_to_get_it_again(ledger: ClassicLedger) -> None:
    deliver(ledger, "two", 4.0, client="b")
    assert [one.partition(":")[0] for one in ledger.complaints()] == [
        f"{GROUP} got two once more, without a cause"
    ]


def test_a_client_that_goes_on_where_it_is_gets_nothing_twice(ledger: ClassicLedger) -> None:
    deliver(ledger, "two", 4.0)
    assert ledger.causes() == {}
    assert len(ledger.complaints()) == 1


def test_a_position_that_was_answered_and_forgotten_is_no_cause(ledger: ClassicLedger) -> None:
    for at in (2.5, 3.7, 3.8):
        say(ledger, "confirmed", at, 2)
    say(ledger, "asked", 5.0, -1, "b")
    say(ledger, "began", 5.1, 0, "b")
    deliver(ledger, "two", 6.0, client="b")
    assert ledger.causes() == {}
    # Who lost the queue told where it was.
    say(ledger, "told", 3.9, 1)
    assert ledger.causes() == {TOLD_LOWER: 1}


def test_a_position_that_a_pull_brought_within_a_second_of_another_may_be_forgotten(
    ledger: ClassicLedger,
) -> None:
    for at in (2.5, 2.6, 2.7):
        say(ledger, "confirmed", at, 2)
    say(ledger, "asked", 3.0, -1, "b")
    say(ledger, "began", 3.1, 0, "b")
    deliver(ledger, "two", 4.0, client="b")
    assert ledger.causes() == {READ_ANEW: 1}


def test_what_failed_comes_once_more_with_one_attempt_more(ledger: ClassicLedger) -> None:
    ledger.ordered.clear()
    ledger.deliveries[0].fate = Fate.FREED
    again = deliver(ledger, "one", 4.0, attempt=2)
    assert ledger.causes() == {FAILED: 1}
    assert ledger.complaints() == []
    again.attempt = 1
    assert len(ledger.complaints()) == 1


def test_a_mapped_message_comes_again_when_its_gateway_ended(ledger: ClassicLedger) -> None:
    ledger.places[ledger.deliveries[1]].offset = VIRTUAL + 7
    deliver(ledger, "two", 70.0, client="b", offset=VIRTUAL + 900)
    assert len(ledger.complaints()) == 1
    ledger.ended.append((2.5, 3.5))
    assert ledger.causes() == {GATEWAY_ENDED: 1}
    ledger.deliveries[-1].arrived = 3.6 + BACK_WITHIN_S
    assert len(ledger.complaints()) == 1
    ledger.deliveries[-1].arrived = 70.0
    # Told and answered long before that end, it was written down.
    ledger.ended[:] = [(20.0, 21.0)]
    say(ledger, "confirmed", 2.4, VIRTUAL + 8)
    assert len(ledger.complaints()) == 1


def test_what_was_sent_again_comes_again(ledger: ClassicLedger) -> None:
    ledger.ordered.clear()
    ledger.stored.append(Stored("t", 0, 2, "id-two", "two"))
    deliver(ledger, "two", 4.0, offset=2)
    assert len(ledger.complaints()) == 2
    ledger.lost_answers["two"] += 1
    assert ledger.complaints() == []
    assert ledger.causes() == {SENT_AGAIN: 1}


def test_what_was_sent_back_twice_comes_twice(ledger: ClassicLedger) -> None:
    ledger.ordered.clear()
    ledger.deliveries[0].fate = Fate.FREED
    for place in (0, 1):
        again = deliver(ledger, "one", 4.0 + place, attempt=2)
        ledger.places[again] = Place("a", (f"%RETRY%{GROUP}", 0), place)
    assert ledger.causes() == {FAILED: 1}
    assert len(ledger.complaints()) == 1
    ledger.ended.append((1.0, 2.0))
    assert ledger.causes() == {FAILED: 1, SENT_BACK_AGAIN: 1}
    assert ledger.complaints() == []


def sent_back(ledger: ClassicLedger, times: int) -> None:
    """The first message fails, and copies of it come, from a place of their own each."""
    ledger.ordered.clear()
    ledger.deliveries[0].fate = Fate.FREED
    for place in range(times):
        again = deliver(ledger, "one", 90.0 + place, attempt=2)
        ledger.places[again] = Place("a", (f"%RETRY%{GROUP}", 0), place)


def test_an_end_long_after_a_failure_lost_no_answer_of_it(ledger: ClassicLedger) -> None:
    sent_back(ledger, 2)
    ledger.ended.append((50.0, 51.0))
    assert ledger.causes() == {FAILED: 1}
    assert len(ledger.complaints()) == 1


def test_an_end_of_replicas_explains_no_more_copies_than_answers_it_may_have_lost(
    ledger: ClassicLedger,
) -> None:
    sent_back(ledger, 4)
    ledger.ended.append((1.0, 2.0))
    assert ledger.causes() == {FAILED: 1, SENT_BACK_AGAIN: 2}
    assert len(ledger.complaints()) == 1
