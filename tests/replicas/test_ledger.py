"""The verdict on a run before several replicas sees everything that can be wrong, and names each cause."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.crash.records import Send, Stored
from tests.replicas.ledger import ASKED_AGAIN, ENDED_AGAIN, SENT_AGAIN, Delivery, Fate, Ledger

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


def test_what_was_refused_is_not_finished_unless_an_answer_was_lost_before(ledger: Ledger) -> None:
    ledger.deliveries[1].fate = Fate.REFUSED
    # RocketMQ takes it when it does come in time, whatever the gateway could know of that.
    assert ledger.missing() == (set() if ledger.rocketmq else {(GROUP, "two")})
    ledger.doubted.add(ledger.deliveries[1])
    assert ledger.missing() == set()


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


@pytest.mark.parametrize("fate", [Fate.CUT, Fate.FREED, Fate.REFUSED, Fate.DOUBTFUL, Fate.LEFT])
def test_each_way_of_not_finishing_is_a_cause(ledger: Ledger, fate: Fate) -> None:
    ledger.deliveries[1].fate = fate
    deliver(ledger, "two", 4.0)
    assert ledger.complaints() == []
    assert ledger.causes() == {fate.value: 1}
    deliver(ledger, "two", 9.0)
    assert len(ledger.complaints()) == 1  # what was not finished once comes once more


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


def test_a_transaction_that_was_committed_again_is_a_cause(ledger: Ledger) -> None:
    ledger.stored.append(Stored("t", 0, 7, "id-two", "two"))
    ledger.lost_ends["two"] = 1
    deliver(ledger, "two", 9.0)
    if ledger.rocketmq:
        assert ledger.complaints() == []
        assert ledger.causes() == {ENDED_AGAIN: 1}
    else:
        assert ledger.complaints() == ["two is stored 2 times, 0 answers of its send were lost"]


def test_a_check_after_an_end_is_a_cause_only_where_both_were_answered(ledger: Ledger) -> None:
    ledger.stored.append(Stored("t", 0, 7, "id-two", "two"))
    deliver(ledger, "two", 9.0)
    ledger.ends["two"] = ["its producer BAD_REQUEST 1.0", "a check OK 2.0"]
    (complaint,) = ledger.complaints()
    assert complaint.endswith("lost; its producer BAD_REQUEST 1.0, a check OK 2.0")
    ledger.ends["two"] = ["its producer OK 1.0", "a check OK 2.0"]
    if ledger.rocketmq:
        assert ledger.complaints() == []
        assert ledger.causes() == {ASKED_AGAIN: 1}
    else:
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
