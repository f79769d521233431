"""What all clients of a run before several replicas were told, and what must hold of it afterwards.

It is kept outside of the gateways and of the official clients, by the process that runs the test. Times are
seconds of the machine's monotonic clock, which all processes share. A message is known by its body, which
no two sends have; what consumers do with it is kept by consumer group.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.crash.records import Send, Stored

NEVER = float("inf")


@enum.unique
class Fate(enum.Enum):
    """What a consumer did with a delivery; the text is the name of the cause, should it come again."""

    HELD = "its client held it for longer than its time"
    DONE = "its acknowledgement was answered after its time"
    REFUSED = "its acknowledgement failed and said so"
    DOUBTFUL = "the answer of its acknowledgement was lost"
    FREED = "its client gave it back"
    LEFT = "its client let its time pass"
    CUT = "its client was killed or cut while it held it"


SENT_AGAIN = "its producer repeated a send whose answer was lost"
FREED_AGAIN = "its client gave it back again because an answer was lost"
ASKED_AGAIN = "its broker had not written down its end yet and asked, and the end was told again"
ENDED_AGAIN = "its transaction was committed again because an answer was lost"


@dataclass(slots=True, eq=False)
class Delivery:
    """`asked`: when its receive began; `answer` and `place`: in which answer it came, and where in it.

    `hold_s`: for how long it is surely hidden from others. `acking`: when its acknowledgement was first sent;
    `settled`: when that was answered.
    """

    group: str
    body: str
    attempt: int
    client: str
    asked: float
    arrived: float
    answer: object
    place: int
    hold_s: float
    fate: Fate = Fate.HELD
    acking: float = NEVER
    settled: float = NEVER

    def told(self) -> str:
        return (
            f"{self.client} attempt {self.attempt} asked {self.asked:.3f} got {self.arrived:.3f}"
            f" acked {self.acking:.3f}-{self.settled:.3f} {self.fate.name}"
        )


@dataclass
class Ledger:
    """Filled while a run goes on. `rocketmq`: the broker stores a repeated send twice, and may take what the
    gateway told as too late."""

    rocketmq: bool
    tried: set[str] = field(default_factory=set)
    sends: dict[str, Send] = field(default_factory=dict)
    """By body: those that were answered."""
    unsure: set[str] = field(default_factory=set)
    """Bodies whose producer gave up."""
    lost_answers: Counter[str] = field(default_factory=Counter)
    """By body: how often it was sent without an answer that says what became of it."""
    lost_ends: Counter[str] = field(default_factory=Counter)
    """By body: how often its transaction was committed without an answer that says what became of it."""
    ends: dict[str, list[str]] = field(default_factory=dict)
    """By body: each time that its transaction was ended: by whom, how that was answered, and when."""
    deliveries: list[Delivery] = field(default_factory=list)
    readers: dict[str, str] = field(default_factory=dict)
    """The topic that each consumer group reads."""
    freed_again: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By group and body: how often it was given back again because an answer was lost."""
    stored: list[Stored] = field(default_factory=list)
    ordered: set[str] = field(default_factory=set)
    """The groups that keep order."""
    counts: Counter[str] = field(default_factory=Counter)
    odd: list[str] = field(default_factory=list)
    """Answers that nothing explains."""

    doubted: set[Delivery] = field(default_factory=set)
    """Those of which an acknowledgement was told, and an answer was lost."""

    def missing(self) -> set[tuple[str, str]]:
        """(group, body) of what was sent and is not consumed yet.

        What was doubted, and refused when it was told again, had been finished by the first one.
        """
        finishing = {Fate.DONE, Fate.DOUBTFUL, *([Fate.REFUSED] if self.rocketmq else [])}
        finished = {
            (one.group, one.body) for one in self.deliveries if one.fate in finishing or one in self.doubted
        }
        wanted = {
            (group, send.body)
            for group, topic in self.readers.items()
            for send in self.sends.values()
            if send.topic == topic and send.delivered
        }
        return wanted - finished

    # -- the verdict ----------------------------------------------------------------------------

    def complaints(self) -> list[str]:
        """One sentence for everything that should not be; empty when all is well."""
        return [*self.odd, *self._of_losses(), *self._of_copies(), *self._of_deliveries(), *self._of_order()]

    def causes(self) -> Counter[str]:
        """How often each cause made a message come once more."""
        return Counter(cause for _, cause in self._repeats() if cause)

    def _of_losses(self) -> Iterable[str]:
        stored = {one.body for one in self.stored}
        for send in self.sends.values():
            if send.delivered and send.body not in stored:
                yield f"{send.body} was answered and is not stored"
        for group, body in sorted(self.missing()):
            told = "; ".join(one.told() for one in self.deliveries if (one.group, one.body) == (group, body))
            yield f"{group} could not finish {body}: {told or 'it never came'}"

    def _of_copies(self) -> Iterable[str]:
        for body, count in self._copies().items():
            if body not in self.tried:
                yield f"{body} is stored, and nobody sent it"
            send = self.sends.get(body)
            if send is not None and send.delivered is False:
                yield f"{body} was rolled back, and is there"
            most = 1
            if self.rocketmq:
                most += self.lost_answers[body] + self.lost_ends[body] + self._asked_again(body)
            if count > most:
                lost = self.lost_answers[body]
                told = f"; {', '.join(self.ends[body])}" if body in self.ends else ""
                yield f"{body} is stored {count} times, {lost} answers of its send were lost{told}"

    def _of_deliveries(self) -> Iterable[str]:
        for delivery, cause in self._repeats():
            if not cause:
                mates = (o for o in self.deliveries if (o.group, o.body) == (delivery.group, delivery.body))
                told = "; ".join(one.told() for one in mates)
                yield f"{delivery.group} got {delivery.body} once more, without a cause: {told}"

    def _repeats(self) -> Iterable[tuple[Delivery, str]]:
        """Deliveries of what its group had had before, each with its cause; empty where there is none."""
        copies = self._copies()
        seen: dict[tuple[str, str], list[Delivery]] = defaultdict(list)
        for delivery in sorted(self.deliveries, key=lambda one: one.arrived):
            earlier = seen[delivery.group, delivery.body]
            if earlier:
                yield delivery, self._cause(delivery, earlier, max(copies[delivery.body], 1))
            earlier.append(delivery)

    def _cause(self, delivery: Delivery, earlier: list[Delivery], copies: int) -> str:
        """Each copy comes once, and once more for each time that it was not finished."""
        unfinished = [one for one in earlier if self._comes_again(one, delivery)]
        if copies + len(unfinished) <= len(earlier):
            again = self.freed_again[delivery.group, delivery.body]
            return FREED_AGAIN if copies + len(unfinished) + again > len(earlier) else ""
        if unfinished:
            return unfinished[-1].fate.value
        if self._asked_again(delivery.body):
            return ASKED_AGAIN
        return ENDED_AGAIN if self.lost_ends[delivery.body] else SENT_AGAIN

    def _asked_again(self, body: str) -> int:
        """How often a check came, and was answered, after an end that was answered with OK."""
        done = [end for end in self.ends.get(body, ()) if " OK " in end]
        return sum(end.startswith("a check") for end in done[1:])

    @staticmethod
    def _comes_again(one: Delivery, later: Delivery) -> bool:
        if one.fate not in (Fate.DONE, Fate.HELD):
            return True
        # The time of a delivery begins somewhere between the question and the answer.
        finished = one.fate is Fate.DONE and one.settled < later.asked
        return not finished and later.arrived >= one.asked + one.hold_s

    def _copies(self) -> Counter[str]:
        return Counter(one.body for one in self.stored)

    def _of_order(self) -> Iterable[str]:
        lanes: dict[str, dict[int, str]] = defaultdict(dict)
        for send in self.sends.values():
            if send.lane:
                lanes[send.lane][send.number] = send.body
        for group in self.ordered:
            mine = [one for one in self.deliveries if one.group == group]
            first_ack: dict[str, float] = {}
            for one in mine:
                first_ack[one.body] = min(first_ack.get(one.body, NEVER), one.acking)
            together = {(one.answer, one.body): one.place for one in mine}
            for one in mine:
                send = self.sends.get(one.body)
                if send is None or not send.lane:
                    continue
                for number, earlier in lanes[send.lane].items():
                    if number >= send.number or first_ack.get(earlier, NEVER) < one.arrived:
                        continue
                    if together.get((one.answer, earlier), NEVER) >= one.place:
                        yield f"{group} got {one.body} before {earlier} was acknowledged"
        yield from self._of_stored_order(lanes)

    def _of_stored_order(self, lanes: dict[str, dict[int, str]]) -> Iterable[str]:
        """Of what is stored more than once the first one counts."""
        first: dict[str, tuple[int, int]] = {}
        for one in self.stored:
            first[one.body] = min(first.get(one.body, (one.queue_id, one.offset)), (one.queue_id, one.offset))
        for lane, bodies in lanes.items():
            places = [first[bodies[number]] for number in sorted(bodies) if bodies[number] in first]
            if places != sorted(places) or len({queue_id for queue_id, _ in places}) > 1:
                yield f"the messages of {lane} are not stored in their order"
