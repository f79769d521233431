"""What the clients of a cluster test were told, with times, and what must hold of it.

A message is known by its body, which no two have. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from popgate.ids.receipt import OF_TOPIC, Receipt, parse_receipt

LATEST_ERROR_S = 10.0
"""After a fault, on a machine that is never late."""

LARGEST_FACTOR = 2.0
"""How much of `LATEST_ERROR_S` there may be on a machine that is late, however late it is."""

UNWRITTEN_S = 12.0
"""An acknowledgement that was taken so long before its master died may be undone by that.

A slave asks its master for the positions of groups every 10 s (RocketMQ's
`BrokerController.handleSlaveSynchronize`), and a master writes its own down every 5 s
(`BrokerConfig.flushConsumerOffsetInterval`). The 2 s are for the request itself, beside a load.
"""

UNHEARD_S = 10.0
"""And one that was taken so long after RocketMQ was done with a fault: who is the master now is told of
positions, or tells them, at its slave's next round only."""

INVISIBLE_S = 15
"""For so long after a receive was asked for, at least, what it brought is hidden from others."""

SENT_TWICE = "its client sent it again, to another place, because an attempt did not succeed"
DROPPED = "its acknowledgement is in the books of its broker, which gave it out all the same"
LATE = "its acknowledgement was answered after its invisible time"
OWED = "its broker revived an earlier delivery of it that nobody acknowledged in time"


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

    `lasting_s`: for how long RocketMQ itself was not done with it, as its own servers tell. `undoes_s`: so
    long before it may an acknowledgement have been taken that it undoes.
    """

    at: float
    brokers: frozenset[str] = frozenset()
    cause: str = ""
    lasting_s: float = 0.0
    undoes_s: float = UNWRITTEN_S

    @property
    def over(self) -> float:
        return self.at + self.lasting_s

    def is_over(self) -> None:
        """Note that RocketMQ is done with it now."""
        self.lasting_s = time.monotonic() - self.at

    def forgets_since(self, earlier: Fault) -> None:
        """Note that with it the positions are forgotten that were known since an earlier one."""
        self.undoes_s = self.at - earlier.at + UNWRITTEN_S

    def may_undo(self, acked: Delivery) -> bool:
        """Whether an acknowledgement was taken by one of its brokers, and near enough to it."""
        near = self.at - self.undoes_s <= acked.at <= self.over + UNHEARD_S
        return near and acked.broker in self.brokers


@dataclass(slots=True, frozen=True)
class Repeat:
    """A delivery after the answer to an acknowledgement. `cause`: empty if there is none."""

    delivery: Delivery
    acked: Delivery
    """The acknowledgement that it contradicts, the last of several."""
    cause: str
    fault: Fault | None = None


@dataclass
class Records:
    """Filled by the clients while they run."""

    sent: dict[str, float] = field(default_factory=dict)
    """When a send was answered with success."""
    deliveries: list[Delivery] = field(default_factory=list)
    acks: dict[str, list[Delivery]] = field(default_factory=dict)
    """By body, the deliveries whose acknowledgement was answered with success; `at`: when it was."""
    failures: list[Failure] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    repeated: Counter[str] = field(default_factory=Counter)
    """By body, how many attempts to send did not succeed, as their client told: each may be another copy."""
    unsure: list[Delivery] = field(default_factory=list)
    """Those of which an acknowledgement failed: it may be done all the same, and its broker's books tell."""
    dropped: set[str] = field(default_factory=set)
    """Handles whose acknowledgement the books of their broker have: no gateway kept it back."""
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

    def acknowledged(self, delivery: Delivery, at: float = 0.0) -> None:
        """Note that an acknowledgement was answered with success now, or was `at` a time."""
        acks = self.acks.setdefault(delivery.body, [])
        acks.append(replace(delivery, at=at or time.monotonic()))

    def missing(self) -> set[str]:
        """What was answered as sent, and is not yet consumed."""
        return self.sent.keys() - self.acks.keys()

    def revived(self) -> list[Delivery]:
        """What was acknowledged in time, and was revived by its broker all the same: to be looked up.

        A RocketMQ that stood still revives what it gave out before it has read the acknowledgement of it
        (seen on 5.5.0); the acknowledgement is in its revive log by then.
        """
        found = {
            acked.handle: acked for one, acks in self._again() for acked in acks if _is_revived(one, acked)
        }
        return list(found.values())

    # -- the verdict ------------------------------------------------------------------------------

    def _again(self) -> Iterator[tuple[Delivery, list[Delivery]]]:
        """Deliveries after the answer to an acknowledgement, each with those before it."""
        for one in self.deliveries:
            acks = [acked for acked in self.acks.get(one.body, ()) if acked.at < one.at]
            if acks:
                yield one, acks

    def repeats(self) -> list[Repeat]:
        """Deliveries after the answer to their acknowledgement."""
        return [self._judged(delivery, acks) for delivery, acks in self._again()]

    def _judged(self, delivery: Delivery, acks: Sequence[Delivery]) -> Repeat:
        """Every acknowledgement of the copy that came has to have been undone: one is not, if it came again
        and was acknowledged once more where nothing happened. But a broker revives each delivery that is not
        acknowledged, whatever became of others of the same message."""
        its = acks
        if delivery.body in self.repeated:
            its = [acked for acked in acks if not self._is_another(delivery, acked)]
            if not its:
                fine = self._copies_until(delivery) <= 1 + self.repeated[delivery.body]
                return Repeat(delivery, acks[-1], SENT_TWICE if fine else "")
        in_time = [acked for acked in its if acked.at < acked.asked + INVISIBLE_S]
        if not in_time:  # the machine stood still
            return Repeat(delivery, its[-1], LATE)
        judged = [self._undone(delivery, acked) for acked in in_time]
        unexplained = next((one for one in judged if not one.cause), None)
        if unexplained is not None and self._is_owed(delivery):
            return replace(unexplained, cause=OWED)
        return unexplained or judged[-1]

    def _is_another(self, one: Delivery, acked: Delivery) -> bool:
        """Whether they surely are two messages: of two brokers, or of two places of a topic itself; also one
        of a place that nothing came from before, and a revived one."""
        if one.broker != acked.broker:
            return True
        first, second = parse_receipt(one.handle), parse_receipt(acked.handle)
        if first.topic_type != OF_TOPIC:
            return False
        if second.topic_type == OF_TOPIC:
            return _place(first) != _place(second)
        return all(_place(parse_receipt(other.handle)) != _place(first) for other in self._before(one))

    def _before(self, one: Delivery) -> list[Delivery]:
        """Earlier deliveries of the same message by the same broker."""
        return [
            other
            for other in self.deliveries
            if (other.body, other.broker) == (one.body, one.broker) and other.at < one.at and other.handle
        ]

    def _is_owed(self, delivery: Delivery) -> bool:
        """Whether it was revived, and its broker has revived no more than it had to: each delivery of which
        no acknowledgement was taken in time, or a fault undid it, is revived once, at a place of its own."""
        if not delivery.handle or (place := parse_receipt(delivery.handle)).topic_type == OF_TOPIC:
            return False
        before = {one.handle: one for one in self._before(delivery)}
        places = [parse_receipt(handle) for handle in before]
        revived = {_place(one) for one in places if one.topic_type != OF_TOPIC}
        if _place(place) in revived:
            return False
        due = [one for one in before.values() if one.asked + INVISIBLE_S < delivery.at]
        return len(revived) < sum(self._is_open(one, delivery) for one in due)

    def _is_open(self, one: Delivery, later: Delivery) -> bool:
        """Whether a delivery was not acknowledged in time, or all that was taken of it was undone."""
        in_time = [
            acked
            for acked in self.acks.get(one.body, ())
            if acked.handle == one.handle and acked.at < min(later.at, acked.asked + INVISIBLE_S)
        ]
        return all(self._undone(later, acked).cause for acked in in_time)

    def _undone(self, delivery: Delivery, acked: Delivery) -> Repeat:
        if acked.handle in self.dropped and _is_revived(delivery, acked):
            return Repeat(delivery, acked, DROPPED)
        for fault in self.faults:
            if delivery.at > fault.at and fault.may_undo(acked):
                return Repeat(delivery, acked, fault.cause, fault)
        return Repeat(delivery, acked, "")

    def _copies_until(self, delivery: Delivery) -> int:
        """In how many places of its topic a message was seen when a delivery came."""
        handles = {
            one.handle
            for one in self.deliveries
            if one.body == delivery.body and one.at <= delivery.at and one.handle
        }
        places = [parse_receipt(handle) for handle in handles]
        return len({(one.broker, one.queue_id, one.offset) for one in places if one.topic_type == OF_TOPIC})

    def undone(self) -> tuple[Counter[str], list[str]]:
        """Deliveries after the answer to their acknowledgement, by cause; a sentence for each without one."""
        repeats = self.repeats()
        causes = Counter(one.cause for one in repeats if one.cause)
        return causes, [self._unexplained(one) for one in repeats if not one.cause]

    def _unexplained(self, one: Repeat) -> str:
        delivery, acked = one.delivery, one.acked
        near = [acked.at - fault.at for fault in self.faults if acked.broker in fault.brokers]
        when = f", {min(near, key=abs):+.1f} s from the nearest fault of it" if near else ""
        return (
            f"{delivery.body} came from {delivery.broker} {delivery.at - acked.at:.1f} s after"
            f" {acked.broker} had taken its acknowledgement{when}"
        )

    def _limit_s(self, over: float, at: float) -> float:
        """For so long after a fault an error may come, if it comes `at` a time; `over`: RocketMQ was done.

        The 10 s are 10 s on every machine, with whatever load. But when an error comes later, seconds in
        which the machine let nobody go on are not held against the gateway: a witness (`witness.py`), which
        talks to no server of the cluster, measured in this very run how late its own timers, its own
        turns on a core and its own loopback were between this fault and this error. Only that is added, and
        not more than makes it `LARGEST_FACTOR` times as long: on a machine that is later nothing is proven.
        """
        if at - over <= LATEST_ERROR_S:
            return LATEST_ERROR_S
        return min(LATEST_ERROR_S + self.lateness(over, at), LATEST_ERROR_S * LARGEST_FACTOR)

    def _limits(self) -> Iterator[tuple[Failure, float, float]]:
        """Errors after a fault, with how long after the end of the last one they came, and how long it might
        have been."""
        for failure in self.failures:
            ends = [fault.over for fault in self.faults if fault.at <= failure.at]
            if ends:
                over = max(ends)
                yield failure, failure.at - over, self._limit_s(over, failure.at)

    def late(self) -> list[str]:
        """Errors that clients saw too long after the fault before them, or before any."""
        first = min((fault.at for fault in self.faults), default=math.inf)
        found = [
            f"{failure.operation} failed before any fault: {failure.said}"
            for failure in self.failures
            if failure.at < first
        ]
        for failure, since, limit in self._limits():
            if since > limit:
                allowed = f"{limit:.1f} s are allowed on this machine, {limit / LATEST_ERROR_S:.2f} times"
                told = f"{allowed} {LATEST_ERROR_S:g} s"
                found.append(
                    f"{failure.operation} failed {since:.1f} s after a fault ({told}): {failure.said}"
                )
        return found

    def complaints(self) -> list[str]:
        """One sentence for everything that should not be; empty when all is well."""
        lost = [f"{body} was answered as sent and is lost" for body in sorted(self.missing())]
        return [*lost, *self.late(), *self.undone()[1]]

    def lines(self) -> list[str]:
        """For who reads the report of a test, also of one that passes."""
        first = self.faults[0].at if self.faults else 0.0
        counts = len(self.sent), len(self.deliveries), len(self.acks), len(self.failures)
        allowed = f"{LATEST_ERROR_S:g} s are allowed"
        largest = max((limit / LATEST_ERROR_S for _, _, limit in self._limits()), default=1.0)
        latest = max((since for _, since, _ in self._limits()), default=0.0)
        return [
            "{} sent, {} deliveries, {} acknowledged, {} errors".format(*counts),
            *(f"  {one.at - first:+6.2f} s {_told(one)}" for one in self.faults),
            *(f"  {one.at - first:+6.2f} s {one.operation}: {one.said}" for one in self.failures),
            f"  the last error came {latest:.1f} s after the end of a fault; {allowed}, times {largest:.2f}",
            *self._told_repeats(),
        ]

    def _told_repeats(self) -> Iterator[str]:
        """Each cause, how often, and how near to their faults the acknowledgements were."""
        repeats = self.repeats()
        for cause, count in Counter(one.cause for one in repeats).items():
            its = [one for one in repeats if one.cause == cause]
            near = [one.acked.at - one.fault.at for one in its if one.fault is not None]
            when = f", acknowledged {min(near):+.1f} s to {max(near):+.1f} s from it" if near else ""
            yield f"  {count} came again: {cause or 'nothing explains it'}{when}"


def _told(fault: Fault) -> str:
    brokers = ", ".join(sorted(fault.brokers)) or "no broker"
    return f"fault of {brokers}, and RocketMQ was done with it {fault.lasting_s:.1f} s later"


def _is_revived(later: Delivery, acked: Delivery) -> bool:
    """Whether it came from the retries that the broker which took its acknowledgement made of it, when
    its time was over. Who comes to a broker's place and knows less gives out the topic's own."""
    after = later.at > acked.asked + INVISIBLE_S
    return after and later.broker == acked.broker and parse_receipt(later.handle).topic_type != OF_TOPIC


def _place(receipt: Receipt) -> tuple[int, int, int]:
    """Where a message is at its broker: in its topic, or in one of retries."""
    return receipt.topic_type, receipt.queue_id, receipt.offset
