"""Places in the logs of several brokers as one number: the number of the broker stands in its highest bits.

The first broker has number 0, so that its places are as they are; where there is one broker nothing changes.
"""

from __future__ import annotations

from typing import Final

from popgate.queue_numbers import QueueNumbers

OFFSET_BITS: Final = 54
"""Of a place in one log: 16 PiB, which a broker that writes 100 MB in each second has after five years."""
MOST_BROKERS: Final = (1 << (63 - OFFSET_BITS)) - 1
"""Brokers that may ever have a number; the highest one stands for all others."""
_NOBODY: Final = MOST_BROKERS
_OFFSET: Final = (1 << OFFSET_BITS) - 1


class Marks:
    """Marks places with the numbers that brokers have."""

    def __init__(self, brokers: QueueNumbers) -> None:
        self._brokers = brokers

    def __repr__(self) -> str:
        return f"<Marks {[broker for broker, _ in self._brokers.queues]}>"

    @property
    def are_needed(self) -> bool:
        """Whether there ever was more than one broker."""
        return len(self._brokers) > 1

    def has_all(self, brokers: set[str]) -> bool:
        return self._brokers.has_all((broker, 0) for broker in brokers)

    def marked(self, broker: str, offset: int) -> int:
        """A place as clients are told it. One that cannot be said is one that no broker has."""
        if offset < 0:
            return offset
        number = self._brokers.number_of(broker, 0)
        if number is None or number >= _NOBODY or offset > _OFFSET:
            number, offset = _NOBODY, offset & _OFFSET
        return number << OFFSET_BITS | offset

    def broker_of(self, place: int) -> tuple[str | None, int]:
        """The broker that a place is of, None if no one's, and its offset there."""
        if place < 0:
            return None, place
        found = self._brokers.queue_of(place >> OFFSET_BITS)
        return found[0] if found is not None else None, place & _OFFSET
