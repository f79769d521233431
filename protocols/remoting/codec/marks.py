"""Places in the logs of several brokers as one number: its highest bits are the number of the broker.

The first broker has number 0, so that its places stay unchanged; with one broker nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from brokers.numbering import MOST_BROKERS
from popgate.ids.message_id import encode_offset_message_id
from popgate.ids.queue_numbers import QueueNumbers
from popgate.wire.messages.hosts import pack_host

OFFSET_BITS: Final = 63 - MOST_BROKERS.bit_length()
"""Of a place in one log: 16 PiB, which a broker that writes 100 MB in each second has after five years."""
_OFFSET: Final = (1 << OFFSET_BITS) - 1
_NOBODY: Final = MOST_BROKERS << OFFSET_BITS
"""The mark of all brokers that have no number."""


class Marks:
    """Marks places with the numbers that brokers have.

    `only`: the one broker that there is. While no numbers are known it is taken for the first.
    """

    def __init__(self, brokers: QueueNumbers, only: str = "") -> None:
        self._brokers = brokers
        self._names = [broker for broker, _ in brokers.queues[:MOST_BROKERS]]
        if only and not self._names:
            self._names.append(only)
        self._bits = {broker: number << OFFSET_BITS for number, broker in enumerate(self._names)}

    def __repr__(self) -> str:
        return f"<Marks {self._names}>"

    @property
    def are_known(self) -> bool:
        """Whether any broker has a number."""
        return len(self._brokers) > 0

    @property
    def are_needed(self) -> bool:
        """Whether there ever was more than one broker."""
        return len(self._brokers) > 1

    def has_all(self, brokers: set[str]) -> bool:
        """Whether none of them has yet to get a number."""
        return len(self._names) >= MOST_BROKERS or self._brokers.has_all((broker, 0) for broker in brokers)

    def has_number(self, broker: str) -> bool:
        """Whether a place can say that it is of this broker."""
        return broker in self._bits

    def leave(self, broker: str) -> bool:
        """Whether the places of a broker are told as they are, as those of the first one."""
        return self._bits.get(broker) == 0

    def marked(self, broker: str, offset: int) -> int:
        """A place as clients see it. A place that cannot be encoded becomes one that no broker has."""
        if 0 <= offset <= _OFFSET:
            return self._bits.get(broker, _NOBODY) | offset
        return offset if offset < 0 else _NOBODY | offset & _OFFSET

    def broker_of(self, place: int) -> tuple[str | None, int]:
        """The broker that a place is of, None if no one's, and its offset there."""
        if place < 0:
            return None, place
        number = place >> OFFSET_BITS
        return self._names[number] if number < len(self._names) else None, place & _OFFSET


def offset_in(place: int) -> int:
    """The offset in its broker's log, whoever that is; a place without a mark is that already."""
    return place & _OFFSET if place >= 0 else place


@dataclass(slots=True, init=False)
class Origin:
    """The place of messages as clients see it: at `host` ("host:port"), this door, for every broker.

    `marks` identify the broker; None where there is only one. So requests of a client that name a place
    come to this door, and no broker's address is exposed.
    """

    host: str
    marks: Marks | None

    # Written out, because mypyc does not compile what a dataclass makes: most answers need one.
    def __init__(self, host: str, marks: Marks | None = None) -> None:
        self.host = host
        self.marks = marks

    def place(self, broker: str, offset: int) -> int:
        """A place in a broker's log."""
        return self.marks.marked(broker, offset) if self.marks is not None else offset

    def leaves(self, broker: str) -> bool:
        """Whether the places of a broker are told as they are."""
        return self.marks is None or self.marks.leave(broker)

    def has_number(self, broker: str) -> bool:
        """Whether a place can say that it is of this broker."""
        return self.marks is None or self.marks.has_number(broker)

    def message_id(self, broker: str, offset: int) -> str:
        """The offset message id of the message at that place."""
        return encode_offset_message_id(self.host, self.place(broker, offset))

    def message_ids(self, broker: str, offsets: Iterable[int]) -> list[str]:
        """`message_id` of several messages of one broker, whose offsets are not below 0."""
        address = pack_host(self.host).hex().upper()
        if self.marks is not None:
            offsets = [self.place(broker, offset) for offset in offsets]
        return [f"{address}{offset:016X}" for offset in offsets]
