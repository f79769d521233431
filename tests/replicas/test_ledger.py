"""The verdict on a run before several replicas sees everything that can be wrong, and names each cause."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.cluster.records import UNHEARD_S, UNWRITTEN_S, Fault
from tests.crash.records import Send, Stored
from tests.replicas.ledger import (
    DROPPED,
    ENDED_TOGETHER,
    LATE_AND_LOST,
    MASTER_LOST,
    REVIVED,
    SENT_AGAIN,
    Delivery,
    End,
    Fate,
    Ledger,
)

GROUP = "readers"


def deliver(ledger: Ledger, body: str, at: float, fate: Fate = Fate.DONE, *, answer: int = -1) -> Delivery:
    """Asked for a tenth of a second before it came, and acknowledged within the next one."""
    made = Delivery(GROUP, body, 1, "client", at - 0.1, at, answer, 0, 5.0, fate)
    if fate in (Fate.DONE, Fate.REFUSED):
        made.acking, made.settled = at + 0.05, at + 0.1
    ledger.deliveries.append(made)
    return made


@pytest.fixture(params=[False, True], ids=["embedded", "rocketmq"])
def ledger(request: pytest.FixtureRequest) -> Ledger:
    """Two messages of a lane, one after the other, consumed in order."""
    ledger = Ledger(rocketmq=request.param, readers={GROUP: "t"}, ordered={GROUP})
    for number, body in enumerate(("one", "two")):
        ledger.tried.add(body)
        ledger.sends[body] = Send("t", body, f"id-{body}", lane="lane", number=number)
        ledger.stored.append(Stored("t", 0, number, f"id-{body}", body))
        deliver(ledger, body, number + 1.0, answer=number)
    return ledger


def test_a_run_in_which_all_is_well_has_no_complaints(ledger: Ledger) -> None:
    assert ledger.complaints() == []
    assert ledger.causes() == Counter()
    assert ledger.missing() == set()


def test_what_is_lost_is_seen(ledger: Ledger) -> None:
    del ledger.stored[1], ledger.deliveries[1]
    assert ledger.missing() == {(GROUP, "two")}
    assert ledger.complaints() == [
        "two was answered and is not stored",
        f"{GROUP} could not finish two: it never came",
    ]


@pytest.mark.parametrize("fate", [Fate.REFUSED, Fate.DOUBTFUL, Fate.CUT])
def test_what_no_answer_finished_is_missing_until_the_books_of_its_broker_have_it(
    ledger: Ledger, fate: Fate
) -> None:
    """One that is lost then is seen: nobody finds it, and it does not come again."""
    delivery = ledger.deliveries[1]
    delivery.fate = fate
    assert ledger.missing() == {(GROUP, "two")}
    (complaint,) = ledger.complaints()
    assert complaint.startswith(f"{GROUP} could not finish two")
    assert ledger.unproven() == ([] if fate is Fate.CUT else [delivery])
    ledger.doubted.add(delivery)
    assert ledger.missing() == {(GROUP, "two")}
    assert ledger.unproven() == [delivery]
    ledger.proven.add(delivery)
    assert ledger.missing() == set()
    assert ledger.complaints() == []
    assert ledger.unproven() == []


def test_an_acknowledgement_that_a_rocketmq_has_and_did_not_heed_is_a_cause_after_its_time(
    ledger: Ledger,
) -> None:
    ledger.ordered.clear()
    first, again = ledger.deliveries[0], deliver(ledger, "one", 20.0)
    assert len(ledger.complaints()) == 1
    assert ledger.undone() == ([first, again] if ledger.rocketmq else [])
    ledger.dropped.add(first)
    assert (ledger.complaints(), ledger.causes()) == ([], Counter({DROPPED: 1}))
    again.arrived = 2.0
    assert len(ledger.complaints()) == 1


def test_a_pop_that_was_ended_in_time_and_revived_is_a_cause_once(ledger: Ledger) -> None:
    """It comes within the time of the delivery that is known, since it is of another one, of which no client
    heard. What comes once more after that has the cause that it would have had."""
    ledger.ordered.clear()
    again = deliver(ledger, "one", 2.0)
    assert ledger.unexplained() == ([again] if ledger.rocketmq else [])
    ledger.revived.add(again)
    assert (ledger.complaints(), ledger.causes()) == ([], Counter({REVIVED: 1}))
    again.fate = Fate.LEFT
    third = deliver(ledger, "one", 9.0)
    assert (ledger.complaints(), ledger.causes()) == ([], Counter({REVIVED: 1, Fate.LEFT.value: 1}))
    again.fate = Fate.DONE
    assert ledger.unexplained() == ([third] if ledger.rocketmq else [])
    assert len(ledger.complaints()) == 1


def test_positions_of_an_ordered_group_prove_no_acknowledgement(ledger: Ledger) -> None:
    deliver(ledger, "one", 20.0)
    assert len(ledger.complaints()) == 1
    assert ledger.undone() == []


@pytest.mark.parametrize("fate", [Fate.HELD, Fate.FREED, Fate.LEFT, Fate.CUT])
def test_what_was_never_acknowledged_cannot_be_proven(ledger: Ledger, fate: Fate) -> None:
    ledger.deliveries[1].fate = fate
    assert ledger.missing() == {(GROUP, "two")}
    assert ledger.unproven() == []


def test_what_was_refused_is_finished_by_the_delivery_that_was_not(ledger: Ledger) -> None:
    ledger.deliveries[1].fate = Fate.REFUSED
    deliver(ledger, "two", 8.0)
    assert ledger.missing() == set()
    assert ledger.unproven() == []
    assert ledger.complaints() == []


def test_what_comes_after_its_acknowledgement_is_seen(ledger: Ledger) -> None:
    deliver(ledger, "one", 9.0)
    (complaint,) = ledger.complaints()
    assert complaint.startswith(f"{GROUP} got one once more, without a cause")


def test_what_comes_while_another_surely_holds_it_is_seen(ledger: Ledger) -> None:
    ledger.deliveries[1].acking = ledger.deliveries[1].settled = 20.0
    deliver(ledger, "two", 4.0)
    (complaint,) = ledger.complaints()
    assert complaint.startswith(f"{GROUP} got two once more, without a cause")


def test_what_comes_when_its_time_is_over_has_a_cause(ledger: Ledger) -> None:
    ledger.deliveries[1].acking = ledger.deliveries[1].settled = 20.0
    deliver(ledger, "two", 8.0)
    assert ledger.complaints() == []
    assert ledger.causes() == {Fate.DONE.value: 1}


def test_an_answer_that_is_read_late_was_given_out_first_as_its_attempt_tells(ledger: Ledger) -> None:
    """When its time was over another one had it, and finished it before that answer was read."""
    del ledger.deliveries[1]
    asked = 3.0
    late, other = deliver(ledger, "two", 9.2, Fate.REFUSED), deliver(ledger, "two", 9.0)
    late.asked, other.attempt = asked, 2
    assert ledger.complaints() == []
    assert ledger.causes() == {Fate.REFUSED.value: 1}
    late.attempt = 2
    assert len(ledger.complaints()) == 1


def test_what_was_asked_for_after_another_had_come_is_later_whatever_its_attempt_is(ledger: Ledger) -> None:
    """RocketMQ may count the attempts of an ordered group anew."""
    del ledger.deliveries[1]
    first, second = deliver(ledger, "two", 3.0, Fate.LEFT), deliver(ledger, "two", 10.0, Fate.LEFT)
    last = deliver(ledger, "two", 17.0)
    first.attempt, second.attempt, last.attempt = 1, 2, 1
    assert ledger.complaints() == []
    assert ledger.causes() == {Fate.LEFT.value: 2}
    deliver(ledger, "two", 24.0)
    assert len(ledger.complaints()) == 1


@pytest.mark.parametrize("settled", [14.9, 15.1])
def test_what_is_given_back_when_its_time_is_over_comes_again_for_both_from_a_rocketmq(
    ledger: Ledger, settled: float
) -> None:
    ledger.ordered.clear()
    freed = deliver(ledger, "two", 10.1, Fate.FREED)
    ledger.deliveries.remove(ledger.deliveries[1])
    freed.settled = freed.asked + freed.hold_s + settled - 15.0
    ledger.freed(freed)
    deliver(ledger, "two", 30.0)
    assert ledger.complaints() == []
    deliver(ledger, "two", 31.0)
    explained = ledger.rocketmq and settled > 15.0
    assert len(ledger.complaints()) == (not explained)


@pytest.mark.parametrize("fate", [Fate.CUT, Fate.FREED, Fate.REFUSED, Fate.DOUBTFUL, Fate.LEFT])
def test_each_way_of_not_finishing_is_a_cause(ledger: Ledger, fate: Fate) -> None:
    ledger.deliveries[1].fate = fate
    deliver(ledger, "two", 8.0)
    assert ledger.complaints() == []
    assert ledger.causes() == {fate.value: 1}
    deliver(ledger, "two", 14.0)
    assert len(ledger.complaints()) == 1  # what was not finished once comes once more


@pytest.mark.parametrize(
    ("fate", "early"),
    [
        (Fate.CUT, True),
        (Fate.FREED, True),
        (Fate.REFUSED, False),
        (Fate.DOUBTFUL, False),
        (Fate.LEFT, False),
    ],
)
def test_what_its_client_keeps_is_hidden_for_its_time_however_that_ends(
    ledger: Ledger, fate: Fate, early: bool
) -> None:
    """But where a gateway keeps it for a client; and an ordered group is freed as a whole."""
    ledger.deliveries[1].fate = fate
    deliver(ledger, "two", 4.0)
    assert ledger.complaints() == []
    ledger.ordered.clear()
    assert (ledger.complaints() == []) is early
    ledger.deliveries[1].renewed = True
    assert ledger.complaints() == []


def test_a_repeated_send_is_a_cause_where_the_broker_stores_both(ledger: Ledger) -> None:
    ledger.stored.append(Stored("t", 0, 7, "id-two", "two"))
    ledger.lost_answers["two"] = 1
    deliver(ledger, "two", 9.0)
    if ledger.rocketmq:
        assert ledger.complaints() == []
        assert ledger.causes() == {SENT_AGAIN: 1}
        deliver(ledger, "two", 12.0)  # there were only two of it
    complaints = ledger.complaints()
    assert len(complaints) == 1
    assert ("once more" if ledger.rocketmq else "stored 2 times") in complaints[0]


def test_a_second_copy_that_no_lost_answer_explains_is_seen(ledger: Ledger) -> None:
    ledger.stored.append(Stored("t", 0, 7, "id-two", "two"))
    assert ledger.complaints() == ["two is stored 2 times, 0 answers of its send were lost"]


@pytest.mark.parametrize("code", ["OK", "lost", "BAD_REQUEST"])
def test_a_transaction_that_became_two_messages_is_seen_when_the_first_end_could_be(
    ledger: Ledger, code: str
) -> None:
    """However the first one was answered: whoever asks, or ends, later on finds the message."""
    ledger.stored.append(Stored("t", 0, 7, "id-two", "two"))
    deliver(ledger, "two", 9.0)
    ledger.ends["two"] = [End("its producer", code, 1.0, 1.5), End("a check", "OK", 4.6, 5.0)]
    (complaint,) = ledger.complaints()
    told = f"its producer {code} 1.000-1.500, a check OK 4.600-5.000"
    assert complaint == f"two is stored 2 times, 0 answers of its send were lost; {told}"


def test_two_ends_that_could_not_see_each_other_are_a_cause_once(ledger: Ledger) -> None:
    ledger.stored.append(Stored("t", 0, 7, "id-two", "two"))
    deliver(ledger, "two", 9.0)
    ledger.ends["two"] = [End("a check", "OK", 1.0, 3.0), End("a check", "OK", 2.0, 2.5)]
    if ledger.rocketmq:
        assert ledger.complaints() == []
        assert ledger.causes() == {ENDED_TOGETHER: 1}
        ledger.stored.append(Stored("t", 0, 8, "id-two", "two"))
    assert len(ledger.complaints()) == 1


def test_an_ok_that_came_after_its_time_finishes_nothing_before_a_rocketmq(ledger: Ledger) -> None:
    """Its broker says so of every acknowledgement, and drops what comes too late."""
    delivery = ledger.deliveries[1]
    delivery.acking, delivery.settled = 7.5, 7.6
    if not ledger.rocketmq:
        assert ledger.complaints() == []
        deliver(ledger, "two", 9.0)
        assert len(ledger.complaints()) == 1
        return
    assert ledger.missing() == {(GROUP, "two")}
    assert ledger.unproven() == [delivery]
    deliver(ledger, "two", 9.0)
    assert ledger.complaints() == []
    assert ledger.causes() == {LATE_AND_LOST: 1}
    deliver(ledger, "two", 12.0)
    assert len(ledger.complaints()) == 1


def test_what_was_rolled_back_or_never_sent_and_is_there_is_seen(ledger: Ledger) -> None:
    ledger.sends["back"] = Send("t", "back", "id-back", delivered=False)
    ledger.tried.add("back")
    ledger.stored += [Stored("t", 1, 0, "id-back", "back"), Stored("t", 1, 1, "id", "stranger")]
    assert ledger.complaints() == [
        "back was rolled back, and is there",
        "stranger is stored, and nobody sent it",
    ]


def test_what_comes_before_its_predecessor_is_acknowledged_is_seen(ledger: Ledger) -> None:
    ledger.deliveries[0].acking = ledger.deliveries[0].settled = 2.5
    assert ledger.complaints() == [f"{GROUP} got two before one was acknowledged"]
    # In the same answer, and before it: that is in order.
    ledger.deliveries[0].answer, ledger.deliveries[1].place = ledger.deliveries[1].answer, 1
    assert ledger.complaints() == []


def test_a_lane_that_is_stored_out_of_order_is_seen_and_later_copies_do_not_count(ledger: Ledger) -> None:
    ledger.stored[0].offset = 4
    assert ledger.complaints() == ["the messages of lane are not stored in their order"]
    ledger.stored.append(Stored("t", 0, 0, "id-one", "one"))
    ledger.lost_answers["one"] = 1
    assert "the messages of lane are not stored in their order" not in ledger.complaints()


def test_odd_answers_are_told(ledger: Ledger) -> None:
    ledger.odd.append("odd")
    assert ledger.complaints() == ["odd"]


@pytest.mark.parametrize("since", [0.5 - UNWRITTEN_S, -1.0, 3.0 + UNHEARD_S])
def test_the_death_of_a_master_is_a_cause_near_it(ledger: Ledger, since: float) -> None:
    """`since`: from the death, when its client has it. It comes again once for each such delivery."""
    ledger.ordered.clear()
    ledger.deliveries.clear()
    died = 100.0
    ledger.faults.append(Fault(died, frozenset({"broker-a"}), lasting_s=4.0))
    deliver(ledger, "one", died + since)
    deliver(ledger, "two", died + 50.0)
    deliver(ledger, "one", died + 20.0)
    assert ledger.causes() == Counter({MASTER_LOST: 1})
    assert ledger.complaints() == []
    deliver(ledger, "one", died + 80.0)
    (complaint,) = ledger.complaints()
    assert "without a cause" in complaint


def test_the_death_of_a_master_shortens_the_time_of_what_is_held(ledger: Ledger) -> None:
    ledger.ordered.clear()
    ledger.deliveries.clear()
    ledger.faults.append(Fault(100.0, frozenset({"broker-a"}), lasting_s=2.0))
    deliver(ledger, "one", 99.0, Fate.HELD)
    deliver(ledger, "one", 103.0)
    deliver(ledger, "two", 150.0)
    assert ledger.causes() == Counter({MASTER_LOST: 1})
    assert ledger.complaints() == []


@pytest.mark.parametrize("since", [-1.0 - UNWRITTEN_S, 5.0 + UNHEARD_S])
def test_the_death_of_a_master_is_no_cause_far_from_it(ledger: Ledger, since: float) -> None:
    ledger.ordered.clear()
    ledger.deliveries.clear()
    ledger.faults.append(Fault(100.0, frozenset({"broker-a"}), lasting_s=4.0))
    deliver(ledger, "one", 100.0 + since)
    deliver(ledger, "two", 200.0)
    deliver(ledger, "one", 100.0 + since + 20.0)
    (complaint,) = ledger.complaints()
    assert "without a cause" in complaint
