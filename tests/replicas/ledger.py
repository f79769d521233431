"""What all clients of a run before several replicas were told, and what must hold of it afterwards.

It is kept outside of the gateways and of the official clients, by the process that runs the test. Times are
seconds of the machine's monotonic clock, which all processes share. A message is known by its body, which
no two sends have; what consumers do with it is kept by consumer group.
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.cluster.records import UNHEARD_S, UNWRITTEN_S, Fault
from tests.crash.records import Send, Stored
from tests.replicas.next_master import Revival, Story

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
LATE_AND_LOST = "its acknowledgement was answered with OK after its time, and its broker had dropped it"
DROPPED = "its acknowledgement is in the books of its broker, which gave it out all the same"
REVIVED = "an earlier pop of it was ended in time, as its broker's books say, and was revived all the same"
ENDED_TOGETHER = "its producer answered two questions at once, through two gateways"
MASTER_LOST = "a master died near it, and the next one had heard of its group's positions seconds before"
NEXT_MASTER = "a master died near a pop of it, and the next one read it anew or revived it, as its books say"
FREED_AGAIN = "its client gave it back again because an answer was lost, or when its time was over"


UNSEEN_S = 3.0
"""For so long after it was answered, or given up, an end may not be seen by another gateway: a broker's index
is behind, and a gateway waits so long for a broker when its client has gone."""


@dataclass(slots=True, frozen=True)
class End:
    """A transaction was ended: by whom, how that was answered, when it was told and when answered."""

    who: str
    code: str
    began: float
    at: float

    def told(self) -> str:
        return f"{self.who} {self.code} {self.began:.3f}-{self.at:.3f}"


@dataclass(slots=True, eq=False)
class Delivery:
    """`asked`: when its receive began; `answer` and `place`: in which answer it came, and where in it.

    `hold_s`: for how long it is surely hidden from others; `renewed`: a gateway keeps it for its client, and
    may give it back in its place before that. `acking`: when its acknowledgement was first sent; `settled`:
    when that was answered.
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
    handle: str = ""
    renewed: bool = False

    def told(self) -> str:
        return (
            f"{self.client} attempt {self.attempt} asked {self.asked:.3f} got {self.arrived:.3f}"
            f" acked {self.acking:.3f}-{self.settled:.3f} {self.fate.name}"
        )


@dataclass
class Ledger:
    """Filled while a run goes on. `rocketmq`: the broker stores a repeated send twice, and may have taken an
    acknowledgement without an answer whose repetition the gateway refuses as too late."""

    rocketmq: bool
    tried: set[str] = field(default_factory=set)
    sends: dict[str, Send] = field(default_factory=dict)
    """By body: those that were answered."""
    unsure: set[str] = field(default_factory=set)
    """Bodies whose producer gave up."""
    lost_answers: Counter[str] = field(default_factory=Counter)
    """By body: how often it was sent without an answer that says what became of it."""
    ends: dict[str, list[End]] = field(default_factory=dict)
    """By body: each time that its transaction was ended."""
    deliveries: list[Delivery] = field(default_factory=list)
    readers: dict[str, str] = field(default_factory=dict)
    """The topic that each consumer group reads."""
    freed_again: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By group and body: how often it was given back again because an answer was lost, or taken back by its
    broker when its time was over, which looks at nothing then (any-replica, section 1): it comes for both."""
    stored: list[Stored] = field(default_factory=list)
    ordered: set[str] = field(default_factory=set)
    """The groups that keep order."""
    counts: Counter[str] = field(default_factory=Counter)
    odd: list[str] = field(default_factory=list)
    """Answers that nothing explains."""

    faults: list[Fault] = field(default_factory=list)
    """Masters that died."""
    doubted: set[Delivery] = field(default_factory=set)
    """Those of which an acknowledgement was told, and an answer was lost."""
    proven: set[Delivery] = field(default_factory=set)
    """Of `unproven`, those whose acknowledgement the books of their broker have."""
    dropped: set[Delivery] = field(default_factory=set)
    """Of `undone`, those whose acknowledgement the books of their broker have: no gateway kept it back."""
    revived: set[Delivery] = field(default_factory=set)
    """Of `unexplained`, those of a pop that was ended in time, as the books of their broker say; maybe
    one that no client knows of: what a gateway cannot deliver it gives back."""
    revivals: dict[tuple[str, str], list[Revival]] = field(default_factory=dict)
    """By group and body: all revivals of some of `mates`, as the books of their broker say."""

    def missing(self) -> set[tuple[str, str]]:
        """(group, body) of what was sent and is not surely consumed yet.

        An acknowledgement that was refused, or not answered, finishes nothing, unless the broker's own
        books have it.
        """
        finished = {
            (one.group, one.body)
            for one in self.deliveries
            if (one.fate is Fate.DONE and self._is_sure(one)) or one in self.proven
        }
        wanted = {
            (group, send.body)
            for group, topic in self.readers.items()
            for send in self.sends.values()
            if send.topic == topic and send.delivered
        }
        return wanted - finished

    def unproven(self) -> list[Delivery]:
        """Deliveries of what is missing that may be finished, though no answer says so: look them up."""
        missing = self.missing()
        return [
            one
            for one in self.deliveries
            if (one.group, one.body) in missing
            and (one.fate in (Fate.REFUSED, Fate.DOUBTFUL, Fate.DONE) or one in self.doubted)
        ]

    def undone(self) -> list[Delivery]:
        """Deliveries that were finished in time, of what came once more without a cause: look them up.

        A RocketMQ that stood still revives a check point before it has read the acknowledgement of it, which
        is in its revive log by then (seen on 5.5.0). Positions of ordered groups prove nothing afterwards.
        """
        again = {(one.group, one.body) for one, cause in self._repeats() if not cause}
        return [
            one
            for one in self.deliveries
            if self.rocketmq
            and (one.group, one.body) in again
            and one.group not in self.ordered
            and one.fate is Fate.DONE
        ]

    def unexplained(self) -> list[Delivery]:
        """Deliveries of a RocketMQ that came once more without a cause: look up which pop they come from."""
        if not self.rocketmq:
            return []
        return [one for one, cause in self._repeats() if not cause and one.group not in self.ordered]

    def mates(self) -> dict[tuple[str, str], list[Delivery]]:
        """By group and body: all deliveries of what came once more without a cause while masters died."""
        again = {(one.group, one.body) for one in self.unexplained()} if self.faults else set()
        return {one: [d for d in self.deliveries if (d.group, d.body) == one] for one in again}

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
                most += self.lost_answers[body] + self._ended_together(body)
            if count > most:
                lost = self.lost_answers[body]
                told = f"; {', '.join(end.told() for end in self.ends[body])}" if body in self.ends else ""
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
        of_one: dict[tuple[str, str], list[Delivery]] = defaultdict(list)
        for delivery in self.deliveries:
            of_one[delivery.group, delivery.body].append(delivery)
        for (group, body), all_of_it in of_one.items():
            all_of_it.sort(key=functools.cmp_to_key(self._compared))
            story = Story(all_of_it, self.revivals.get((group, body), ()))
            due = max(copies[body], 1)
            for at, delivery in enumerate(all_of_it[1:], start=1):
                cause = self._cause(delivery, all_of_it[:at], due)
                if not cause and self.faults:
                    cause = self._told_by_books(story, at)
                    due += bool(cause)
                yield delivery, cause

    def _compared(self, one: Delivery, other: Delivery) -> float:
        """Less than 0 when the first of two deliveries of a message was given out before the other.

        What was asked for after the other had come is later. Else the attempt tells, which their broker
        counts: an answer may lie for seconds before it is read, while another is given out, read and settled.
        Of a queue of an ordered group RocketMQ counts anew when a pop between had other messages of it.
        """
        if one.arrived <= other.asked or other.arrived <= one.asked:
            return one.arrived - other.arrived
        return one.attempt - other.attempt or one.arrived - other.arrived

    def _cause(self, delivery: Delivery, earlier: list[Delivery], copies: int) -> str:
        """Each copy comes once, and once more for each time that it was not finished."""
        unfinished = [one for one in earlier if self._comes_again(one, delivery)]
        due = copies + len(unfinished) + sum(one in self.revived for one in earlier)
        if due <= len(earlier):
            if delivery in self.revived:
                return REVIVED
            due += self.freed_again[delivery.group, delivery.body]
            if due > len(earlier):
                return FREED_AGAIN
            due += sum(self._is_forgotten(one, delivery) for one in earlier)
            return MASTER_LOST if due > len(earlier) else ""
        if not unfinished:
            return SENT_AGAIN if self.lost_answers[delivery.body] else ENDED_TOGETHER
        last = unfinished[-1]
        if last in self.dropped:
            return DROPPED
        lost = last.fate is Fate.DONE and last.settled < delivery.asked
        return LATE_AND_LOST if lost else last.fate.value

    def _is_forgotten(self, one: Delivery, later: Delivery) -> bool:
        """Whether a master died near a delivery or its acknowledgement: the next one may know neither."""
        latest = one.arrived if one.settled == NEVER else one.settled
        return any(
            fault.at < later.arrived
            and one.asked < fault.over + UNHEARD_S
            and latest > fault.at - UNWRITTEN_S
            for fault in self.faults
        )

    def _told_by_books(self, story: Story, at: int) -> str:
        """The cause of one that the arithmetic of `_cause` does not explain."""
        delivery = story.deliveries[at]
        if delivery.group in self.ordered:
            return ""
        popped = story.pop_of(at)
        if popped is not None and self._comes_again(popped, delivery):
            return popped.fate.value
        return NEXT_MASTER if any(story.is_of_the_next_master(at, one) for one in self.faults) else ""

    def _ended_together(self, body: str) -> int:
        """How many of its ends were told while the end before them could not be seen yet."""
        ends = sorted(self.ends.get(body, ()), key=lambda end: end.began)
        return sum(later.began < end.at + UNSEEN_S for end, later in itertools.pairwise(ends))

    def _is_sure(self, one: Delivery) -> bool:
        """Whether an acknowledgement that was answered with OK is done.

        A RocketMQ says so also of one that comes too late, and does nothing (any-replica, section 1); a
        gateway knows better only when it knows that broker's clock.
        """
        return not self.rocketmq or one.settled < one.asked + one.hold_s

    def freed(self, one: Delivery) -> None:
        """Note that a broker took back what a client gave back, now that it is `settled`."""
        if self.rocketmq and one.group not in self.ordered and one.settled >= one.asked + one.hold_s:
            self.freed_again[one.group, one.body] += 1

    def _comes_again(self, one: Delivery, later: Delivery) -> bool:
        # The time of a delivery begins somewhere between the question and the answer.
        over = later.arrived >= one.asked + one.hold_s
        if one.fate in (Fate.CUT, Fate.FREED):
            return True
        if one.fate not in (Fate.DONE, Fate.HELD):
            # An ordered group is freed as a whole.
            return over or one.renewed or one.group in self.ordered
        finished = one.fate is Fate.DONE and one.settled < later.asked and self._is_sure(one)
        finished = finished and one not in self.dropped
        return not finished and over

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
