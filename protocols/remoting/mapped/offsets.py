"""The numbers of messages for one client on one queue, and the messages that it holds by them.

A virtual offset has bit 60 set, which no offset of a broker has, so that it is recognised without any state.
Numbers only grow, also across connections and gateways: an old number that a client sends late
never means a current message. Nothing here sends requests, and times (loop seconds) are arguments.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from enum import Enum, unique
from typing import Any, Final, NamedTuple

VIRTUAL: Final = 1 << 60
END: Final = 1 << 61
"""No number is given from here on."""
_AHEAD_MS: Final = 365 * 86_400_000
"""So far may the clock of another gateway be ahead of ours. Higher numbers are made up."""
_PER_MS: Final = 18
"""Bits of numbers for each millisecond: no queue gives so many, so later beginnings have higher ones."""

LEAST_WINDOW: Final = 32
MOST_WINDOW: Final = 1024
"""As many as a classic consumer holds of a queue by its own account (`pullThresholdForQueue`: 1000)."""
_RATE_S: Final = 10


def is_virtual(offset: int) -> bool:
    return offset >= VIRTUAL


def beginning(now_ms: int) -> int:
    """The number to begin with at this wall time."""
    return VIRTUAL + (now_ms << _PER_MS) % (1 << 60) if now_ms > 0 else VIRTUAL


def is_possible(number: int, now_ms: int) -> bool:
    """Whether a client may continue from a number; else it starts again, so that numbers never run out."""
    return number < min(beginning(now_ms + _AHEAD_MS), END)


class QueueKey(NamedTuple):
    """What numbers are counted for, of one connection."""

    group: str
    topic: str
    broker: str
    queue_id: int


@unique
class Fate(Enum):
    HELD = "held"
    FINISHED = "finished"
    """Its client committed it: it is acknowledged, or will be."""
    FREED = "freed"
    """It goes back, for anybody to have."""
    GONE = "gone"
    """Nothing is to be done with it any more."""


class Held:
    """A message that a client got, by its number.

    `places`: its broker and physical offset, as its record says. `until`: to that loop time it is surely
    hidden. `asked`: the request about it that is under way, after which its receipt may be another one.
    """

    __slots__ = (
        "asked",
        "attempt",
        "broker",
        "delivered",
        "failed",
        "fate",
        "number",
        "physical",
        "queue",
        "receipt",
        "until",
    )

    def __init__(
        self,
        queue: QueueHoldings,
        number: int,
        receipt: str,
        broker: str,
        physical: int,
        attempt: int,
        delivered: float,
        until: float,
    ) -> None:
        self.queue = queue
        self.number = number
        self.receipt = receipt
        self.broker = broker
        self.physical = physical
        self.attempt = attempt
        self.delivered = delivered
        self.until = until
        self.fate = Fate.HELD
        self.failed = False
        """Whether the last try to acknowledge it failed."""
        self.asked: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Held {self.number - VIRTUAL} {self.fate.value}>"


class QueueHoldings:
    """What one client holds of one queue. `next` is the number of the next message."""

    __slots__ = (
        "_finished",
        "committed",
        "ending",
        "heard",
        "held",
        "key",
        "next",
        "pauses",
        "turn",
        "waits",
        "watchers",
    )

    def __init__(self, key: QueueKey) -> None:
        self.key = key
        self.next = VIRTUAL
        self.held: dict[int, Held] = {}
        """In the order of their numbers."""
        self.committed = VIRTUAL
        """All below it is finished, as its client says."""
        self.ending: dict[int, Held] = {}
        """What is finished, until it is acknowledged."""
        self.watchers: list[asyncio.Future[None]] = []
        """Told when some of that is over."""
        self.waits: asyncio.Task[Any] | None = None
        """The pull that waits."""
        self.turn = 0
        """Counts pulls: only the last one gets something."""
        self.heard = 0.0
        """When its client pulled or told its position last: it does one of both every few seconds."""
        self.pauses = 0
        """Pulls in a row that met a full window while nothing was finished."""
        self._finished: deque[tuple[int, int]] = deque()
        """How many were finished, by the second."""

    def __repr__(self) -> str:
        return f"<QueueHoldings {self.key} held {len(self.held)}>"

    def restart(self, now_ms: int) -> list[Held]:
        """The client has dropped the queue, and starts again: returns what it held."""
        self.next = max(self.next, beginning(now_ms))
        return self._free_from(VIRTUAL)

    def asked(self, number: int) -> list[Held]:
        """The client wants what has this number, or a higher one: what has one already never reached it.

        An unknown number is that of another connection: it goes on from there.
        """
        self.next = max(self.next, number)
        return self._free_from(number)

    def commit(self, number: int) -> list[Held]:
        """The client has finished what has lower numbers. One that was never given says nothing."""
        if not self.committed < number <= self.next:
            return []
        self.committed = number
        done: list[Held] = []
        for at, delivery in self.held.items():
            if at >= number:
                break
            done.append(delivery)
        for delivery in done:
            del self.held[delivery.number]
            delivery.fate = Fate.FINISHED
        return done

    def take(
        self,
        messages: Iterable[tuple[str, str, int, int]],
        delivered: float,
        until: float,
    ) -> list[Held]:
        """Number messages, each given as receipt, broker, physical offset and attempt."""
        taken: list[Held] = []
        for receipt, broker, physical, attempt in messages:
            delivery = Held(self, self.next, receipt, broker, physical, attempt, delivered, until)
            self.held[delivery.number] = delivery
            self.next += 1
            taken.append(delivery)
        return taken

    def drop(self, delivery: Held, fate: Fate) -> bool:
        """Remove a held message. False: it was not held any more."""
        if self.held.get(delivery.number) is not delivery:
            return False
        del self.held[delivery.number]
        delivery.fate = fate
        return True

    def free_all(self) -> list[Held]:
        """Everything goes back."""
        return self._free_from(VIRTUAL)

    def finished(self, count: int, now: float) -> None:
        """So many were finished, of which the window is made."""
        self.pauses = 0
        second = int(now)
        rates = self._finished
        if rates and rates[-1][0] == second:
            rates[-1] = second, rates[-1][1] + count
        else:
            rates.append((second, count))
            self._forget(second)

    def window(self, now: float) -> int:
        """How many its client may hold: a little more than what it surely works off soon."""
        self._forget(int(now))
        return max(LEAST_WINDOW, min(2 * sum([count for _, count in self._finished]), MOST_WINDOW))

    def room(self, now: float) -> int:
        return self.window(now) - len(self.held)

    @property
    def first(self) -> int:
        """The lowest number that is held, else the next one."""
        return next(iter(self.held), self.next)

    def _free_from(self, number: int) -> list[Held]:
        freed: list[Held] = []
        for at in reversed(self.held):
            if at < number:
                break
            freed.append(self.held[at])
        freed.reverse()
        for delivery in freed:
            del self.held[delivery.number]
            delivery.fate = Fate.FREED
        return freed

    def _forget(self, second: int) -> None:
        rates = self._finished
        while rates and rates[0][0] <= second - _RATE_S:
            rates.popleft()
