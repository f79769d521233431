"""What the clients of a cluster test were told, with times, and what must hold of it.

A message is known by its body, which no two have. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from popgate.receipt import OF_TOPIC, parse_receipt

LATEST_ERROR_S = 10.0
"""After a fault, on a machine that is never late."""

INVISIBLE_S = 15
"""For so long after a receive was asked for, at least, what it brought is hidden from others."""

SENT_TWICE = "its client sent it again, to another place, because an attempt did not succeed"
DROPPED = "its acknowledgement is in the books of its broker, which gave it out all the same"
LATE = "its acknowledgement was answered after its invisible time"


@dataclass(slots=True, frozen=True)
class Failure:
    """A call that did not end well. `began`: when it was made; `at`: when its client knew."""

    began: float
    at: float
    operation: str
    said: str


@dataclass(slots=True, frozen=True)
class Delivery:
    """`asked`: when its receive began; `handle`: what it is acknowledged with."""

    body: str
    broker: str
    at: float
    asked: float = 0.0
    handle: str = ""


@dataclass(slots=True)
class Fault:
    """Something done to the cluster; `cause` of what comes twice of these brokers afterwards.

    `lasting_s`: for how long RocketMQ itself was not done with it, as its own servers tell.
    """

    at: float
    brokers: frozenset[str] = frozenset()
    cause: str = ""
    lasting_s: float = 0.0

    @property
    def over(self) -> float:
        return self.at + self.lasting_s

    def is_over(self) -> None:
        """Note that RocketMQ is done with it now."""
        self.lasting_s = time.monotonic() - self.at


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
    """Bodies of which an attempt to send did not succeed, as their client told: it may send them again."""
    unsure: list[Delivery] = field(default_factory=list)
    """Those of which an acknowledgement failed: it may be done all the same, and its broker's books tell."""
    dropped: set[str] = field(default_factory=set)
    """Bodies whose acknowledgement the books of their broker have: no gateway kept it back."""
    lateness: Callable[[float, float], float] = lambda _begin, _end: 0.0
    """By how many of the seconds between two times the machine itself was late, as a witness measured it."""

    def fault(self, *brokers: str, cause: str = "", at: float = 0.0) -> Fault:
        """Note that something is done to the cluster now, or was `at` a time."""
        made = Fault(at or time.monotonic(), frozenset(brokers), cause)
        self.faults.append(made)
        return made

    def failed(self, began: float, operation: str, said: str) -> None:
        self.failures.append(Failure(began, time.monotonic(), operation, said))

    def delivered(self, body: str, handle: str, asked: float) -> Delivery:
        made = Delivery(body, parse_receipt(handle).broker, time.monotonic(), asked, handle)
        self.deliveries.append(made)
        return made

    def acknowledged(self, delivery: Delivery) -> None:
        self.acked.setdefault(delivery.body, replace(delivery, at=time.monotonic()))

    def missing(self) -> set[str]:
        """What was answered as sent, and is not yet consumed."""
        return self.sent.keys() - self.acked.keys()

    def revived(self) -> list[Delivery]:
        """What was acknowledged in time, and was revived by its broker all the same: to be looked up.

        A RocketMQ that stood still revives what it gave out before it has read the acknowledgement of it
        (seen on 5.5.0); the acknowledgement is in its revive log by then.
        """
        return [self.acked[one.body] for one in self._again() if self._is_revived(one)]

    def _is_revived(self, later: Delivery) -> bool:
        """Whether it came from the retries that the broker which took its acknowledgement made of it, when
        its time was over. Who comes to a broker's place and knows less gives out the topic's own."""
        acked = self.acked[later.body]
        after = later.at > acked.asked + INVISIBLE_S
        return after and later.broker == acked.broker and parse_receipt(later.handle).topic_type != OF_TOPIC

    # -- the verdict ------------------------------------------------------------------------------

    def _again(self) -> list[Delivery]:
        """Deliveries after the answer to their acknowledgement."""
        return [one for one in self.deliveries if one.body in self.acked and one.at > self.acked[one.body].at]

    def undone(self) -> tuple[Counter[str], list[str]]:
        """Deliveries after the answer to their acknowledgement, by cause; a sentence for each without one."""
        causes: Counter[str] = Counter()
        unexplained = []
        for delivery in self._again():
            acked = self.acked[delivery.body]
            if delivery.body in self.repeated and _is_another(delivery, acked):
                causes[SENT_TWICE] += 1
                continue
            if acked.at >= acked.asked + INVISIBLE_S:  # the machine stood still
                causes[LATE] += 1
                continue
            if delivery.body in self.dropped and self._is_revived(delivery):
                causes[DROPPED] += 1
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
        """Errors that clients saw too long after the fault before them.

        The 10 s are 10 s on every machine, with whatever load. But when an error comes later, seconds in
        which the machine let nobody go on are not held against the gateway: a witness (`witness.py`), which
        talks to no server of the cluster, measured in this very run how late its own timers, its own
        turns on a core and its own loopback were between this fault and this error. Only that is taken off.
        """
        found = []
        for failure in self.failures:
            before = [fault for fault in self.faults if fault.at <= failure.at]
            if not before:
                found.append(f"{failure.operation} failed before any fault: {failure.said}")
                continue
            over = max(fault.over for fault in before)
            since = failure.at - over
            if since <= LATEST_ERROR_S:
                continue
            late = self.lateness(over, failure.at)
            if since - late > LATEST_ERROR_S:
                when = f"{since:.1f} s after a fault (the machine was late by {late:.1f} s)"
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


def _is_another(one: Delivery, other: Delivery) -> bool:
    """Whether they surely are two messages: of two brokers, or of two places of a topic itself."""
    if one.broker != other.broker:
        return True
    first, second = parse_receipt(one.handle), parse_receipt(other.handle)
    both = first.topic_type == second.topic_type == OF_TOPIC
    return both and (first.queue_id, first.offset) != (second.queue_id, second.offset)
