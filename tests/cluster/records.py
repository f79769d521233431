"""What the clients of a cluster test were told, with times, and what must hold of it.

A message is known by its body, which no two have. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field

LATEST_ERROR_S = 10.0
"""After a fault; on a machine with more to do than it can, as much longer as everything takes."""

SENT_TWICE = "its client sent it to another broker when a master died before it answered"


def slowness() -> float:
    """By how much longer everything may take than on a machine with nothing else to do: 1 to 4 times."""
    return min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), 4.0)


@dataclass(slots=True, frozen=True)
class Failure:
    """A call that did not end well. `began`: when it was made; `at`: when its client knew."""

    began: float
    at: float
    operation: str
    said: str


@dataclass(slots=True, frozen=True)
class Delivery:
    body: str
    broker: str
    at: float


@dataclass(slots=True, frozen=True)
class Fault:
    """Something done to the cluster; `cause` of what comes twice of these brokers afterwards."""

    at: float
    brokers: frozenset[str] = frozenset()
    cause: str = ""


@dataclass
class Records:
    """Filled by the clients while they run."""

    sent: dict[str, float] = field(default_factory=dict)
    """When a send was answered with success."""
    deliveries: list[Delivery] = field(default_factory=list)
    acked: dict[str, Delivery] = field(default_factory=dict)
    """The delivery whose acknowledgement was first answered with success, `at` the time of that answer."""
    failures: list[Failure] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    repeated: set[str] = field(default_factory=set)
    """Bodies that a client sent again, perhaps, because nobody could tell it whether they were stored."""

    def fault(self, *brokers: str, cause: str = "") -> Fault:
        """Note that something is done to the cluster now."""
        made = Fault(time.monotonic(), frozenset(brokers), cause)
        self.faults.append(made)
        return made

    def failed(self, began: float, operation: str, said: str) -> None:
        self.failures.append(Failure(began, time.monotonic(), operation, said))

    def delivered(self, body: str, broker: str) -> Delivery:
        made = Delivery(body, broker, time.monotonic())
        self.deliveries.append(made)
        return made

    def acknowledged(self, delivery: Delivery) -> None:
        self.acked.setdefault(delivery.body, Delivery(delivery.body, delivery.broker, time.monotonic()))

    def missing(self) -> set[str]:
        """What was answered as sent, and is not yet consumed."""
        return self.sent.keys() - self.acked.keys()

    # -- the verdict ------------------------------------------------------------------------------

    def undone(self) -> tuple[Counter[str], list[str]]:
        """Deliveries after the answer to their acknowledgement, by cause; a sentence for each without one."""
        causes: Counter[str] = Counter()
        unexplained = []
        for delivery in self.deliveries:
            acked = self.acked.get(delivery.body)
            if acked is None or delivery.at <= acked.at:
                continue
            if delivery.body in self.repeated and delivery.broker != acked.broker:
                causes[SENT_TWICE] += 1
                continue
            why = next(
                (one for one in self.faults if acked.broker in one.brokers and delivery.at > one.at), None
            )
            if why is None:
                unexplained.append(
                    f"{delivery.body} came from {delivery.broker} {delivery.at - acked.at:.1f} s after"
                    f" {acked.broker} had taken its acknowledgement"
                )
            else:
                causes[why.cause] += 1
        return causes, unexplained

    def late(self) -> list[str]:
        """Errors that clients saw too long after the fault before them."""
        limit = LATEST_ERROR_S * slowness()
        found = []
        for failure in self.failures:
            before = [fault.at for fault in self.faults if fault.at <= failure.at]
            since = failure.at - before[-1] if before else None
            if since is None or since > limit:
                when = "before any fault" if since is None else f"{since:.1f} s after a fault"
                found.append(f"{failure.operation} failed {when}: {failure.said}")
        return found

    def complaints(self) -> list[str]:
        """One sentence for everything that should not be; empty when all is well."""
        lost = [f"{body} was answered as sent and is lost" for body in sorted(self.missing())]
        return [*lost, *self.late(), *self.undone()[1]]

    def lines(self) -> list[str]:
        """For who reads the report of a test."""
        first = self.faults[0].at if self.faults else 0.0
        errors = [f"  {one.at - first:+6.2f} s {one.operation}: {one.said}" for one in self.failures]
        causes, _ = self.undone()
        counts = len(self.sent), len(self.deliveries), len(self.acked), len(self.failures)
        return [
            "{} sent, {} deliveries, {} acknowledged, {} errors".format(*counts),
            *errors,
            *(f"  {count} came again: {why}" for why, count in causes.items()),
        ]
