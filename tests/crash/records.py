"""What the clients of a crash run were told, and what must hold of it afterwards.

A message is known by its body, which no two have. Times are seconds of the monotonic clock, except
where a name says `_ms`: those are of the wall clock, for due times.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from tests.support.waiting import PATIENCE_S

OVERDUE_S = round(PATIENCE_S / 4)
"""For so long of one life of the gateway, after it was ready, what is due may not have come to its client.

30 s on a quiet machine, and whole seconds, which milliseconds can be compared with. A timer rings within
milliseconds there; but the answer that a message is in may be lost, so that it comes again when its invisible
time is over, and a client may just wait for a connection.
"""


@dataclass(slots=True)
class Send:
    """A message whose send was answered. `delivered`: None where nobody decided, or nobody can know."""

    topic: str
    body: str
    message_id: str
    offset: int = -1
    lane: str = ""
    number: int = 0
    due_ms: int = 0
    delivered: bool | None = True
    answered_ms: int = 0


@dataclass(slots=True)
class Delivery:
    """`asked`: when its receive began. `answer` and `place`: in which answer it came, and where in it."""

    topic: str
    body: str
    attempt: int
    asked: float
    arrived: float
    arrived_ms: int
    answer: int
    place: int


@dataclass(slots=True)
class Check:
    """A question about a half message, as it came to its producer."""

    body: str
    arrived_ms: int


@dataclass(slots=True)
class Life:
    """From when until when a gateway was ready; until now if `ended_ms` is 0."""

    ready_ms: int
    ended_ms: int = 0

    def share_ms(self, from_ms: int, at_ms: int) -> int:
        """How much of the time between two moments was in it."""
        return max(min(at_ms, self.ended_ms or at_ms) - max(from_ms, self.ready_ms), 0)


@dataclass(slots=True)
class Stored:
    topic: str
    queue_id: int
    offset: int
    message_id: str
    body: str


@dataclass
class Records:
    """Filled by the clients while they run."""

    tried: set[str] = field(default_factory=set)
    """Bodies that somebody tried to send."""
    sends: dict[str, Send] = field(default_factory=dict)
    unsure: set[str] = field(default_factory=set)
    """Bodies whose sender gave up: they may be there once, or not at all."""
    deliveries: list[Delivery] = field(default_factory=list)
    checkable_ms: dict[str, int] = field(default_factory=dict)
    """From when on a half message may be asked about: its first send began so long before."""
    left_open: set[str] = field(default_factory=set)
    """Half messages that are stored, and whose producer says nothing until it is asked."""
    checks: list[Check] = field(default_factory=list)
    acking: dict[str, float] = field(default_factory=dict)
    """When the first acknowledgement was sent."""
    acked: dict[str, float] = field(default_factory=dict)
    """When an acknowledgement was answered with success."""
    stored: list[Stored] = field(default_factory=list)
    """What lies in the topics at the end."""
    lives: list[Life] = field(default_factory=list)
    """Of the gateway; one that was killed before it was ready has none."""
    counts: Counter[str] = field(default_factory=Counter)
    odd: list[str] = field(default_factory=list)
    """Answers that nothing explains."""

    def missing(self) -> set[str]:
        """Bodies that must be delivered and acknowledged, and are not yet."""
        return {send.body for send in self.sends.values() if send.delivered} - self.acked.keys()

    def unasked(self) -> set[str]:
        """Half messages that must be asked about, and were not yet."""
        return self.left_open - {check.body for check in self.checks}

    # -- the verdict ----------------------------------------------------------------------------

    def complaints(self) -> list[str]:
        """One sentence for everything that should not be; empty when all is well."""
        return [
            *self.odd,
            *self._of_the_stored(),
            *self._of_finished_ones(),
            *self._of_order(),
            *self._of_times(),
            *self._of_checks(),
            *self._of_lateness(),
        ]

    def _of_the_stored(self) -> list[str]:
        found: list[str] = []
        copies = Counter(stored.body for stored in self.stored)
        found += [f"{body} is stored {count} times" for body, count in copies.items() if count > 1]
        found += [f"{body} is stored, and nobody sent it" for body in copies.keys() - self.tried]
        delivered = {delivery.body for delivery in self.deliveries}
        for send in self.sends.values():
            if send.delivered and send.body not in copies:
                found.append(f"{send.body} was answered and is not stored")
            if send.delivered and send.body not in self.acked:
                found.append(f"{send.body} was answered and could not be consumed")
            if send.delivered is False and (send.body in copies or send.body in delivered):
                found.append(f"{send.body} was rolled back or recalled, and is there")
        places = {(stored.topic, stored.body): stored for stored in self.stored}
        for send in self.sends.values():
            at = places.get((send.topic, send.body))
            if at is not None and at.message_id != send.message_id:
                found.append(
                    f"{send.body} is stored as {at.message_id}, its sender was told {send.message_id}"
                )
            if at is not None and send.offset >= 0 and at.offset != send.offset:
                found.append(f"{send.body} is at offset {at.offset}, its sender was told {send.offset}")
        return found

    def _of_finished_ones(self) -> list[str]:
        return [
            f"{delivery.body} was delivered again (attempt {delivery.attempt}) by a receive that began"
            f" {delivery.asked - self.acked[delivery.body]:.3f} s after its acknowledgement was answered"
            for delivery in self.deliveries
            if delivery.asked > self.acked.get(delivery.body, float("inf"))
        ]

    def _of_order(self) -> list[str]:
        """No message of a lane comes while an earlier one is neither finished nor in the same answer."""
        found: list[str] = []
        lanes: dict[str, dict[int, str]] = defaultdict(dict)
        for send in self.sends.values():
            if send.lane:
                lanes[send.lane][send.number] = send.body
        never = float("inf")
        together = {(delivery.answer, delivery.body): delivery.place for delivery in self.deliveries}
        for delivery in self.deliveries:
            send = self.sends.get(delivery.body)
            if send is None or not send.lane:
                continue
            for number, earlier in lanes[send.lane].items():
                if number >= send.number or self.acking.get(earlier, never) < delivery.arrived:
                    continue
                if together.get((delivery.answer, earlier), never) >= delivery.place:
                    found.append(f"{delivery.body} came before {earlier} was acknowledged")
        offsets: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for stored in self.stored:
            send = self.sends.get(stored.body)
            if send is not None and send.lane:
                offsets[send.lane].append((stored.queue_id, stored.offset, send.number))
        for lane, placed in offsets.items():
            numbers = [number for _, _, number in sorted(placed)]
            if numbers != sorted(numbers) or len({queue_id for queue_id, _, _ in placed}) > 1:
                found.append(f"the messages of {lane} are not stored in their order")
        return found

    def _of_times(self) -> list[str]:
        found = []
        for delivery in self.deliveries:
            send = self.sends.get(delivery.body)
            if send is not None and delivery.arrived_ms < send.due_ms:
                found.append(f"{delivery.body} came {send.due_ms - delivery.arrived_ms} ms too early")
        return found

    def _of_checks(self) -> list[str]:
        """No half message is asked about too early, and none is forgotten."""
        found = []
        for check in self.checks:
            from_ms = self.checkable_ms.get(check.body)
            if from_ms is None:
                found.append(f"{check.body} was asked about, and is no half message")
            elif check.arrived_ms < from_ms:
                found.append(f"{check.body} was asked about {from_ms - check.arrived_ms} ms too early")
        found += [f"{body} was left open, and nobody asked about it" for body in sorted(self.unasked())]
        return found

    def _of_lateness(self) -> list[str]:
        """What is due comes within a bound after a gateway was ready, and is not left to the next one."""
        found = []
        for what, overdue in (
            ("came", self.overdue_deliveries()),
            ("was asked about", self.overdue_checks()),
        ):
            found += [
                f"{body} {what} when it was due for {late:.1f} s of a life; {OVERDUE_S:g} s are allowed"
                for body, late in overdue.items()
                if late > OVERDUE_S
            ]
        return found

    def overdue_deliveries(self) -> dict[str, float]:
        """By body, for how many seconds of one life a delayed message was due before it came first."""
        firsts: dict[str, int] = {}
        for delivery in self.deliveries:
            firsts[delivery.body] = min(firsts.get(delivery.body, delivery.arrived_ms), delivery.arrived_ms)
        delayed = [one for one in self.sends.values() if one.due_ms and one.body in firsts]
        return {
            one.body: self._longest_s(max(one.due_ms, one.answered_ms), firsts[one.body]) for one in delayed
        }

    def overdue_checks(self) -> dict[str, float]:
        """By body, for how many seconds of one life a half message was to be asked about before it was."""
        firsts: dict[str, int] = {}
        for check in self.checks:
            firsts[check.body] = min(firsts.get(check.body, check.arrived_ms), check.arrived_ms)
        return {
            body: self._longest_s(max(self.checkable_ms[body], self.sends[body].answered_ms), firsts[body])
            for body in sorted(self.left_open & firsts.keys() & self.checkable_ms.keys())
        }

    def _longest_s(self, from_ms: int, at_ms: int) -> float:
        return max((life.share_ms(from_ms, at_ms) for life in self.lives), default=0) / 1000
