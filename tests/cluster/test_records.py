"""The verdict on fail-over, and the witness of how late the machine was: neither needs a cluster."""

from __future__ import annotations

import os
import signal
import time

import pytest

from popgate.receipt import OF_RETRY_V1, OF_TOPIC, Receipt
from tests.cluster.records import (
    DROPPED,
    INVISIBLE_S,
    LATEST_ERROR_S,
    SENT_TWICE,
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
    ],
)
def test_only_the_measured_lateness_of_the_machine_is_taken_off(
    error_s: float, late_s: float, fine: bool
) -> None:
    assert (records(error_s, late_s).late() == []) is fine


def test_a_late_error_is_told_with_what_was_taken_off() -> None:
    assert records(12.0, 1.0).late() == [
        "send failed 12.0 s after a fault (the machine was late by 1.0 s): no"
    ]


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
    made.acked["one"] = Delivery("one", "broker-a", 100.0 + answered_s, 100.0)
    assert (made.complaints() == []) is fine


def handle(topic_type: int = OF_TOPIC, broker: str = "broker-a", offset: int = 7) -> str:
    return Receipt(0, 100_000, INVISIBLE_S * 1000, 0, topic_type, broker, 0, offset).encode()


def again(at: float, topic_type: int = OF_RETRY_V1, broker: str = "broker-a", offset: int = 7) -> Records:
    """Acknowledged in time, and delivered once more."""
    made = Records()
    first = Delivery("one", "broker-a", 100.5, 100.0, handle())
    made.deliveries += [first, Delivery("one", broker, at, at - 1.0, handle(topic_type, broker, offset))]
    made.acked["one"] = first
    return made


def test_what_comes_again_though_its_acknowledgement_is_in_the_books_of_its_broker_has_a_cause() -> None:
    made = again(at=130.0)
    assert len(made.complaints()) == 1
    assert [one.handle for one in made.revived()] == [handle()]
    made.dropped.add("one")
    assert (made.complaints(), made.undone()[0]) == ([], {DROPPED: 1})


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
    made.dropped.add("one")
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
    made.repeated.add("one")
    assert made.undone()[0] == causes
    assert len(made.complaints()) == 1 - len(causes)


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
