"""The verdict on fail-over, and the witness of how late the machine was: neither needs a cluster."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

import pytest

from popgate.ids.receipt import OF_RETRY_V1, OF_TOPIC, Receipt
from tests.cluster.records import (
    DROPPED,
    INVISIBLE_S,
    LARGEST_FACTOR,
    LATE,
    LATEST_ERROR_S,
    OWED,
    SENT_TWICE,
    UNHEARD_S,
    UNWRITTEN_S,
    Delivery,
    Failure,
    Fault,
    Records,
)
from tests.cluster.witness import SLEEP_S, Witness


def records(error_s: float, late_s: float = 0.0) -> Records:
    """A fault after 100 s, an error so much later; the machine was late by `late_s` between the two."""
    made = Records(lateness=lambda begin, end: late_s if (begin, end) == (100.0, 100.0 + error_s) else 0.0)
    made.faults.append(Fault(100.0))
    made.failures.append(Failure(99.0, 100.0 + error_s, "send", "no"))
    return made


@pytest.mark.parametrize(
    ("error_s", "late_s", "fine"),
    [
        (LATEST_ERROR_S - 0.1, 0.0, True),
        (LATEST_ERROR_S + 0.1, 0.0, False),
        (LATEST_ERROR_S + 0.1, 0.2, True),
        (LATEST_ERROR_S + 5.0, 4.9, False),
        (LATEST_ERROR_S + 5.0, 5.1, True),
        (LATEST_ERROR_S * LARGEST_FACTOR - 0.1, 1_000.0, True),
        (LATEST_ERROR_S * LARGEST_FACTOR + 0.1, 1_000.0, False),
    ],
)
def test_the_lateness_of_the_machine_stretches_the_limit_no_further_than_twice(
    error_s: float, late_s: float, fine: bool
) -> None:
    assert LARGEST_FACTOR == 2.0
    assert (records(error_s, late_s).late() == []) is fine


def test_a_late_error_is_told_with_the_factor() -> None:
    assert records(12.0, 1.0).late() == [
        "send failed 12.0 s after a fault (11.0 s are allowed on this machine, 1.10 times 10 s): no"
    ]


def test_a_run_that_passes_tells_its_counts_and_how_far_the_limit_was_stretched() -> None:
    made = records(12.0, 5.0)
    assert made.complaints() == []
    told = made.lines()
    assert told[0] == "0 sent, 0 deliveries, 0 acknowledged, 1 errors"
    assert told[-1] == "  the last error came 12.0 s after the end of a fault; 10 s are allowed, times 1.50"


@pytest.mark.parametrize("late_s", [0.0, 1_000.0])
def test_no_error_in_time_needs_the_lateness_of_the_machine(late_s: float) -> None:
    assert records(LATEST_ERROR_S - 0.1, late_s).lines()[-1].endswith("times 1.00")


def test_an_error_before_any_fault_is_told() -> None:
    made = records(1.0)
    made.faults.clear()
    assert made.late() == ["send failed before any fault: no"]


def test_the_time_counts_from_the_last_fault_before_the_error() -> None:
    made = records(15.0)
    made.faults += [Fault(110.0), Fault(120.0)]
    assert made.late() == []


@pytest.mark.parametrize(("answered_s", "fine"), [(INVISIBLE_S - 0.1, False), (INVISIBLE_S + 0.1, True)])
def test_what_comes_again_has_a_cause_when_its_acknowledgement_may_have_been_late(
    answered_s: float, fine: bool
) -> None:
    made = Records()
    made.deliveries += [Delivery("one", "broker-a", 103.0, 100.0), Delivery("one", "broker-a", 130.0, 129.0)]
    made.acknowledged(Delivery("one", "broker-a", 103.0, 100.0), 100.0 + answered_s)
    assert (made.complaints() == []) is fine


def handle(
    topic_type: int = OF_TOPIC, broker: str = "broker-a", offset: int = 7, popped_ms: int = 100_000
) -> str:
    return Receipt(0, popped_ms, INVISIBLE_S * 1000, 0, topic_type, broker, 0, offset).encode()


def again(
    at: float = 130.0, topic_type: int = OF_RETRY_V1, broker: str = "broker-a", offset: int = 7
) -> Records:
    """Acknowledged in time, at 101 s, and delivered once more."""
    made = Records()
    first = Delivery("one", "broker-a", 100.5, 100.0, handle())
    made.deliveries += [first, Delivery("one", broker, at, at - 1.0, handle(topic_type, broker, offset))]
    made.acknowledged(first, 101.0)
    return made


def once_more(made: Records, at: float, acked_at: float = 0.0) -> None:
    """Deliver it again, from the topic itself, and acknowledge that."""
    one = Delivery("one", "broker-a", at, at - 1.0, handle())
    made.deliveries.append(one)
    if acked_at:
        made.acknowledged(one, acked_at)


def test_what_comes_again_though_its_acknowledgement_is_in_the_books_of_its_broker_has_a_cause() -> None:
    made = again(at=130.0)
    assert len(made.complaints()) == 1
    assert [one.handle for one in made.revived()] == [handle()]
    made.dropped.add(handle())
    assert (made.complaints(), made.undone()[0]) == ([], {DROPPED: 1})
    # It was acknowledged in time once more, and of that nothing is in the books.
    made.acknowledged(replace(made.deliveries[1], handle="other"), 131.0)
    once_more(made, 200.0)
    assert len(made.complaints()) == 1


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(again(at=100.0 + INVISIBLE_S - 0.1), id="within its time"),
        pytest.param(again(at=130.0, topic_type=OF_TOPIC), id="not as a retry"),
        pytest.param(again(at=130.0, broker="broker-b"), id="from another broker"),
    ],
)
def test_otherwise_it_comes_again_to_nobody_whatever_the_books_say(made: Records) -> None:
    assert made.revived() == []
    made.dropped.add(handle())
    assert len(made.complaints()) == 1


@pytest.mark.parametrize(
    ("broker", "offset", "causes"),
    [("broker-b", 7, {SENT_TWICE: 1}), ("broker-a", 8, {SENT_TWICE: 1}), ("broker-a", 7, {})],
)
def test_what_its_client_sent_again_may_come_from_another_place_too(
    broker: str, offset: int, causes: dict[str, int]
) -> None:
    made = again(at=130.0, topic_type=OF_TOPIC, broker=broker, offset=offset)
    assert len(made.complaints()) == 1
    made.repeated["one"] += 1
    assert made.undone()[0] == causes
    assert len(made.complaints()) == 1 - len(causes)


def test_a_repeated_send_explains_as_many_copies_as_there_were_attempts() -> None:
    made = again(topic_type=OF_TOPIC, offset=8)
    made.deliveries.append(Delivery("one", "broker-b", 131.0, 130.0, handle(broker="broker-b")))
    made.repeated["one"] = 1
    assert (made.undone()[0], len(made.complaints())) == ({SENT_TWICE: 1}, 1)
    made.repeated["one"] = 2
    assert made.complaints() == []


def test_a_copy_that_was_acknowledged_itself_may_not_come_again() -> None:
    made = again(topic_type=OF_TOPIC, offset=8)
    made.repeated["one"] = 1
    made.acknowledged(made.deliveries[1], 131.0)
    assert made.complaints() == []
    made.deliveries.append(Delivery("one", "broker-a", 150.0, 149.0, handle(offset=8)))
    assert len(made.complaints()) == 1


def delivered(made: Records, at: float, handle: str, acked_at: float = 0.0) -> None:
    """A delivery of the message that was asked for a second before, and its acknowledgement if any."""
    one = Delivery("one", "broker-a", at, at - 1.0, handle)
    made.deliveries.append(one)
    if acked_at:
        made.acknowledged(one, acked_at)


@pytest.mark.parametrize("repeated", [0, 1])
def test_each_delivery_that_nobody_acknowledged_is_revived_once(repeated: int) -> None:
    """Of two copies, or of one that a fault brought back; each was delivered, and then revived."""
    made = Records()
    made.repeated["one"] = repeated
    delivered(made, 100.0, handle())
    delivered(made, 101.0, handle(offset=8))
    delivered(made, 117.0, handle(OF_RETRY_V1, offset=0), 118.0)
    delivered(made, 119.0, handle(OF_RETRY_V1, offset=1), 120.0)
    assert (made.complaints(), made.undone()[0]) == ([], {OWED: 1})
    delivered(made, 140.0, handle(OF_RETRY_V1, offset=2))
    assert len(made.complaints()) == 1


def test_what_was_revived_and_acknowledged_comes_no_more_from_the_same_place() -> None:
    made = Records()
    delivered(made, 100.0, handle())
    delivered(made, 101.0, handle(offset=8))
    delivered(made, 117.0, handle(OF_RETRY_V1, offset=0), 118.0)
    delivered(made, 140.0, handle(OF_RETRY_V1, offset=0))
    assert len(made.complaints()) == 1


def test_what_was_acknowledged_in_time_is_not_revived_for_it() -> None:
    made = Records()
    delivered(made, 100.0, handle(), 101.0)
    delivered(made, 117.0, handle(OF_RETRY_V1, offset=0))
    assert len(made.complaints()) == 1


def test_what_a_fault_undid_is_revived_beside_what_it_brought_back() -> None:
    """The acknowledgement is undone in the position of the group, and in the log of what is to be revived."""
    made = Records()
    made.faults.append(Fault(103.0, frozenset({"broker-a"}), "it died"))
    delivered(made, 100.0, handle(), 101.0)
    delivered(made, 120.0, handle(popped_ms=119_500), 121.0)
    delivered(made, 125.0, handle(OF_RETRY_V1, offset=0))
    assert (made.complaints(), made.undone()[0]) == ([], {"it died": 1, OWED: 1})


def test_a_copy_from_a_new_place_is_not_what_was_revived_and_acknowledged() -> None:
    made = Records()
    made.repeated["one"] = 1
    delivered(made, 100.0, handle())
    delivered(made, 117.0, handle(OF_RETRY_V1, offset=0), 118.0)
    delivered(made, 119.0, handle(offset=8))
    assert (made.complaints(), made.undone()[0]) == ([], {SENT_TWICE: 1})
    delivered(made, 140.0, handle())
    assert len(made.complaints()) == 1


def test_what_was_acknowledged_late_comes_again_until_it_is_acknowledged_in_time() -> None:
    made = Records()
    once_more(made, 101.0, 100.0 + INVISIBLE_S + 1.0)
    once_more(made, 130.0, 131.0)
    assert (made.complaints(), made.undone()[0]) == ([], {LATE: 1})
    once_more(made, 160.0)
    assert len(made.complaints()) == 1


@pytest.mark.parametrize(
    ("fault_s", "lasting_s", "fine"),
    [
        (101.0 + UNWRITTEN_S - 0.1, 0.0, True),
        (101.0 + UNWRITTEN_S + 0.1, 0.0, False),
        (101.0 - UNHEARD_S + 0.1, 0.0, True),
        (101.0 - UNHEARD_S - 0.1, 0.0, False),
        (101.0 - UNHEARD_S - 5.0, 5.1, True),
        (101.0 - UNHEARD_S - 5.0, 4.9, False),
    ],
)
def test_a_fault_undoes_only_acknowledgements_around_it(fault_s: float, lasting_s: float, fine: bool) -> None:
    made = again(topic_type=OF_TOPIC)
    made.faults.append(Fault(fault_s, frozenset({"broker-a"}), "it died", lasting_s))
    assert (made.complaints() == []) is fine
    assert made.undone()[0] == ({"it died": 1} if fine else {})


@pytest.mark.parametrize(("died_s", "fine"), [(90.0, True), (101.0 + UNWRITTEN_S + 0.1, False)])
def test_a_master_that_forgets_since_its_death_undoes_what_was_taken_in_between(
    died_s: float, fine: bool
) -> None:
    made = again(topic_type=OF_TOPIC, at=140.0)
    died = Fault(died_s, frozenset({"broker-a"}), "it died")
    back = Fault(130.0, frozenset({"broker-a"}), "it forgot")
    made.faults += [back]
    assert made.complaints() != []
    back.forgets_since(died)
    assert (made.complaints() == []) is fine
    assert made.undone()[0] == ({"it forgot": 1} if fine else {})


def test_a_fault_undoes_no_acknowledgement_of_another_broker_nor_before_it_happened() -> None:
    made = again(topic_type=OF_TOPIC, at=105.0)
    made.faults.append(Fault(104.0, frozenset({"broker-b"}), "it died"))
    made.faults.append(Fault(106.0, frozenset({"broker-a"}), "it died"))
    (complaint,) = made.complaints()
    assert complaint == (
        "one came from broker-a 4.0 s after broker-a had taken its acknowledgement, -5.0 s from the nearest"
        " fault of it"
    )


def test_each_of_several_acknowledgements_has_to_have_been_undone() -> None:
    made = again(topic_type=OF_TOPIC, at=105.0)
    made.faults.append(Fault(103.0, frozenset({"broker-a"}), "it died"))
    made.acknowledged(made.deliveries[1], 103.0 + UNHEARD_S + 1.0)
    assert made.complaints() == []
    once_more(made, 140.0)
    assert len(made.complaints()) == 1


def test_the_counts_say_how_near_to_its_fault_what_was_undone_was() -> None:
    made = again(topic_type=OF_TOPIC)
    made.faults.append(Fault(104.0, frozenset({"broker-a"}), "it died", 2.5))
    told = made.lines()
    assert told[1] == "   +0.00 s fault of broker-a, and RocketMQ was done with it 2.5 s later"
    assert told[-1] == "  1 came again: it died, acknowledged -3.0 s to -3.0 s from it"


def test_the_witness_tells_by_how_much_it_stood_still() -> None:
    """It is stopped, as by a machine that has other things to do."""
    with Witness() as witness:
        assert witness.process is not None
        begin = time.monotonic()
        witness.lateness_s(begin, begin)  # it goes on
        stopped = time.monotonic()
        os.kill(witness.process.pid, signal.SIGSTOP)
        until = stopped + 1.0
        while time.monotonic() < until:
            time.sleep(0.05)
        os.kill(witness.process.pid, signal.SIGCONT)
        end = time.monotonic()
        late = witness.lateness_s(stopped, end)
        assert late > 0.5
        assert late <= end - stopped
        # Half of a round counts for half of it, and nothing twice.
        middle = (stopped + end) / 2
        parts = witness.lateness_s(stopped, middle) + witness.lateness_s(middle, end)
        assert parts == pytest.approx(late)
        assert end - stopped > SLEEP_S
