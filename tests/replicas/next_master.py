"""What the next master of a RocketMQ gives out once more, since it has not heard all from the one that died.

It reads on from where it had heard that a group was, twice: by positions that are seconds old, and again
within `CLEARED_S`. It revives pops whose end it has not heard of, and those whose revival it has not heard of
once more: the timer that brings them into its revive log begins at a time of which it had heard, too. A
gateway can neither prevent nor cause that. A pop may be one of which no client knows: its answer was lost,
and its gateway gave back what was in it.

Which pop a revived message comes from stands in its properties. Seen on 5.5.0, in its logs and in the handles
of deliveries, which have the time of their pop and its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from popgate.ids.receipt import OF_TOPIC, parse_receipt
from tests.cluster.records import UNHEARD_S, UNWRITTEN_S, Fault

if TYPE_CHECKING:
    from tests.replicas.ledger import Delivery

CLEARED_S = 6.0
"""So long after a slave has become the master it may forget what it gave out since. The thread that writes
positions down sleeps for 5 s while its broker is a slave, and throws away what there is when it wakes up
(`PopBufferMergeService.run`, which logs "clear all data"; 3.4 to 5.3 s after a death)."""

READ_WITHIN_S = 30.0
"""So long after that clients may still be busy with what is read anew (14 s were seen)."""

_SAME_S = 0.05
"""Between a pop as its broker's clock tells it and as its client's does, on one machine."""


@dataclass(slots=True, frozen=True)
class Revival:
    """A message that was stored anew, as a broker's books have it: at `place`, which is a queue and an
    offset of the group's retries, and when.

    `popped`: when the pop was that it comes from, or when a gateway gave that back. `times`: how often it
    was delivered before; of what was revived more than once `popped` is still the first pop.
    """

    place: tuple[int, int]
    popped: float
    stored: float
    times: int

    @property
    def is_told(self) -> bool:
        """Whether `popped` is that of the pop it comes from."""
        return self.times < 2


@dataclass(slots=True)
class Story:
    """Of one message and group: its deliveries in their order, and all its revivals."""

    deliveries: Sequence[Delivery]
    revivals: Sequence[Revival]

    def revival(self, delivery: Delivery) -> Revival | None:
        """Where a delivery comes from; None: it was read from the topic itself."""
        if not self.revivals:
            return None
        receipt = parse_receipt(delivery.handle)
        place = (receipt.queue_id, receipt.offset)
        retried = (one for one in self.revivals if receipt.topic_type != OF_TOPIC and one.place == place)
        return next(retried, None)

    def pop_of(self, at: int) -> Delivery | None:
        """The delivery that one was revived of, if no other revival of that was given out before."""
        mine = self.revival(self.deliveries[at])
        earlier = self.deliveries[:at]
        if mine is None or not mine.is_told:
            return None
        if any(_is_alike(mine, one) for one in map(self.revival, earlier) if one is not None):
            return None
        popped = (one for one in earlier if one.asked - _SAME_S < mine.popped < one.arrived + _SAME_S)
        return next(popped, None)

    def is_of_the_next_master(self, at: int, fault: Fault) -> bool:
        """Whether a delivery comes of the death of a master, by the next one's books."""
        delivery = self.deliveries[at]
        mine = self.revival(delivery)
        read = [one for one in self.deliveries[:at] if self.revival(one) == mine]
        if mine is None or read:
            return self._is_read_anew(delivery, read, fault)
        if not mine.is_told or mine.stored <= fault.at:
            return False
        if any(_is_alike(mine, one) and one.stored < mine.stored for one in self.revivals):
            if mine.stored < fault.over + UNHEARD_S:
                return True
        elif self._is_near(mine, delivery, fault):
            return True
        # Nobody got one that was stored before: a gateway gave that back.
        return any(
            one.times == mine.times
            and one.stored < mine.stored
            and (_is_alike(mine, one) or self._is_near(one, delivery, fault))
            for one in self._unseen()
        )

    def _is_near(self, revival: Revival, delivery: Delivery, fault: Fault) -> bool:
        earliest = fault.at - UNWRITTEN_S - delivery.hold_s
        return revival.is_told and earliest < revival.popped < fault.over + CLEARED_S

    def _unseen(self) -> list[Revival]:
        seen = [self.revival(one) for one in self.deliveries]
        return [one for one in self.revivals if one not in seen]

    def _is_read_anew(self, delivery: Delivery, read: Sequence[Delivery], fault: Fault) -> bool:
        """Whether it was popped shortly before, or by the next master before that forgot; twice at most.

        `read`: the earlier deliveries from the same place. Of the topic itself others may be nobody's.
        """
        popped = [(one.asked, one.arrived) for one in read]
        if self.revival(delivery) is None:
            told = (one for one in self.revivals if one.is_told and one.stored < delivery.asked)
            popped += [(one.popped, one.popped) for one in told]
        since, until = fault.at - UNWRITTEN_S, fault.over + CLEARED_S
        return (
            fault.at < delivery.asked < until + READ_WITHIN_S
            and any(began < until and arrived > since for began, arrived in popped)
            and sum(one.arrived > fault.at for one in read) < 2
        )


def _is_alike(one: Revival, other: Revival) -> bool:
    """Whether two are of the same pop."""
    return (one.popped, one.times) == (other.popped, other.times)
