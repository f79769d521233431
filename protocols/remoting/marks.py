"""Places in the logs of several brokers as one number: the number of the broker stands in its highest bits.

The first broker has number 0, so that its places are as they are; where there is one broker nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from popgate.message_id import encode_offset_message_id
from popgate.queue_numbers import QueueNumbers

OFFSET_BITS: Final = 54
"""Of a place in one log: 16 PiB, which a broker that writes 100 MB in each second has after five years."""
MOST_BROKERS: Final = (1 << (63 - OFFSET_BITS)) - 1
"""Brokers that may ever have a number; the highest one stands for all others."""
_OFFSET: Final = (1 << OFFSET_BITS) - 1
_NOBODY: Final = MOST_BROKERS << OFFSET_BITS


class Marks:
    """Marks places with the numbers that brokers have."""

    def __init__(self, brokers: QueueNumbers) -> None:
        self._brokers = brokers
        self._bits = {
            broker: number << OFFSET_BITS
            for number, (broker, queue_id) in enumerate(brokers.queues[:MOST_BROKERS])
            if queue_id == 0
        }

    def __repr__(self) -> str:
        return f"<Marks {[broker for broker, _ in self._brokers.queues]}>"

    @property
    def are_known(self) -> bool:
        """Whether any broker has a number."""
        return len(self._brokers) > 0

    @property
    def are_needed(self) -> bool:
        """Whether there ever was more than one broker."""
        return len(self._brokers) > 1

    def has_all(self, brokers: set[str]) -> bool:
        return self._brokers.has_all((broker, 0) for broker in brokers)

    def marked(self, broker: str, offset: int) -> int:
        """A place as clients are told it. One that cannot be said is one that no broker has."""
        if 0 <= offset <= _OFFSET:
            return self._bits.get(broker, _NOBODY) | offset
        return offset if offset < 0 else _NOBODY | offset & _OFFSET

    def broker_of(self, place: int) -> tuple[str | None, int]:
        """The broker that a place is of, None if no one's, and its offset there."""
        if place < 0:
            return None, place
        number = place >> OFFSET_BITS
        found = self._brokers.queue_of(number) if number < MOST_BROKERS else None
        return found[0] if found is not None else None, place & _OFFSET


def offset_in(place: int) -> int:
    """The offset in its broker's log, whoever that is; a place without a mark is that already."""
    return place & _OFFSET if place >= 0 else place


@dataclass(slots=True)
class Origin:
    """How a client is told where messages lie: here, at `host` ("host:port"), whichever broker has them.

    `marks` say which one it is; None where only one can be meant. So what a client looks up, sends back or
    ends by a place comes to this door, and no address of a broker is told.
    """

    host: str
    marks: Marks | None = None

    def place(self, broker: str, offset: int) -> int:
        """A place in a broker's log."""
        return self.marks.marked(broker, offset) if self.marks is not None else offset

    def says(self, broker: str) -> bool:
        """Whether a place tells that it is of this broker."""
        return self.marks is None or self.marks.has_all({broker})

    def message_id(self, broker: str, offset: int) -> str:
        """The id of what lies there."""
        return encode_offset_message_id(self.host, self.place(broker, offset))
