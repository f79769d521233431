"""Clients that wait for messages: one line per topic, group and queue, woken one by one.

Waiting clients hold no messages. A woken client pops from the broker that has messages and reports the
result; if more messages are left, the next client is woken.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from popgate.clock import Clock, Timer
from popgate.errors import TooManyRequests

_SMALLEST_SWEEP: Final = 1_024
_SOON_S: Final = 0.0005
"""Timers fire slightly early, and floats are inexact: less remaining time than this counts as none."""


@dataclass(slots=True, frozen=True)
class LineKey:
    """What its waiters wait for. An empty `broker`: any; `queue_id` -1: any queue."""

    topic: str
    group: str
    ordered: bool
    broker: str = ""
    queue_id: int = -1


class Waiter:
    """A waiting client. `call`: the broker to pop from, "" for all of them; None after its time is over.

    `look` is set while the client pops; it receives the result of that pop. `is_back`: its client looked
    before and waits on.
    """

    __slots__ = ("call", "is_back", "line", "look")

    def __init__(self, line: Line, future: asyncio.Future[str | None], *, is_back: bool = False) -> None:
        self.line = line
        self.is_back = is_back
        self.call = future
        self.look: asyncio.Future[int] | None = None

    def looked(self, result: int) -> None:
        """It looked: -1 nothing there, -2 it went away before it knew, else how many more there are."""
        look, self.look = self.look, None
        if look is not None and not look.done():
            look.set_result(result)


NOTHING, GONE = -1, -2


class Line:
    """Those who wait for the same, in the order in which they came; `watched`: the brokers that are asked."""

    __slots__ = ("brokers", "key", "until", "waiters", "watched")

    def __init__(self, key: LineKey) -> None:
        self.key = key
        self.waiters: OrderedDict[Waiter, None] = OrderedDict()
        self.watched: set[str] = set()
        self.brokers: Sequence[str] = ()
        """Those that have the queues, as who joined last knows it."""
        self.until = 0.0
        """When the last of those who ever stood here goes, in loop seconds."""

    def __repr__(self) -> str:
        return f"<Line {self.key.topic} {self.key.group} waiters {len(self.waiters)}>"

    def wake(self, broker: str) -> asyncio.Future[int] | None:
        """Wake the consumer that has waited longest; returns the outcome. None: none waits."""
        while self.waiters:
            waiter, _ = self.waiters.popitem(last=False)
            if not waiter.call.done():
                look: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                waiter.look = look
                waiter.call.set_result(broker)
                return look
        return None

    def wake_all(self) -> None:
        """Everybody looks for himself, at all brokers."""
        while self.waiters:
            waiter, _ = self.waiters.popitem(last=False)
            if not waiter.call.done():
                waiter.call.set_result("")

    def wake_newcomers(self) -> None:
        """All who have not looked yet look for themselves, at all brokers; the others wait on."""
        for waiter in [waiter for waiter in self.waiters if not waiter.is_back]:
            del self.waiters[waiter]
            if not waiter.call.done():
                waiter.call.set_result("")


class WaitQueue:
    """All lines. One timer serves all who wait."""

    def __init__(self, clock: Clock, most: int) -> None:
        self._clock = clock
        self._most = most
        self._lines: dict[LineKey, Line] = {}
        self._ends: list[tuple[float, int, Waiter]] = []
        self._count = count()
        self._size = 0
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self._ended = False

    def __repr__(self) -> str:
        return f"<WaitQueue {self._size} in {len(self._lines)} lines>"

    def __len__(self) -> int:
        return self._size

    def join(self, key: LineKey, until: float, *, first: bool = False) -> Waiter:
        """Stand in a line; `wait` must follow. `first`: before all others, back from a look.

        Raises TooManyRequests.
        """
        if self._size >= self._most:
            raise TooManyRequests(
                f"{self._size} requests wait for messages already, the limit is reached",
                known_as="polling full",
            )
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(key)
        waiter = Waiter(line, asyncio.get_running_loop().create_future(), is_back=first)
        self._size += 1
        if self._ended:
            _end(waiter)
            return waiter
        line.waiters[waiter] = None
        if first:
            line.waiters.move_to_end(waiter, last=False)
        line.until = max(line.until, until)
        self._end_at(until, waiter)
        return waiter

    async def wait(self, waiter: Waiter) -> str | None:
        """The broker to look at, "" for all; None when the time is over.

        A caller who is cancelled after it was woken passes the wake on.
        """
        try:
            return await waiter.call
        except asyncio.CancelledError:
            waiter.looked(GONE)
            raise
        finally:
            waiter.line.waiters.pop(waiter, None)
            self._size -= 1
            self.tidy(waiter.line)

    def tidy(self, line: Line) -> None:
        """Remove an empty line for which no broker request is pending."""
        if not line.waiters and not line.watched and self._lines.get(line.key) is line:
            del self._lines[line.key]

    def wake_all(self, *, topic: str = "", group: str = "") -> None:
        """Something changed: those of the topic, or of the group, or everybody look for themselves."""
        for key, line in list(self._lines.items()):
            if (not topic or key.topic == topic) and (not group or key.group == group):
                line.wake_all()

    def end_all(self) -> None:
        """Everybody's time is over, also of those who come from now on."""
        self._ended = True
        for line in list(self._lines.values()):
            while line.waiters:
                _end(line.waiters.popitem(last=False)[0])
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ends.clear()

    def _end_at(self, until: float, waiter: Waiter) -> None:
        ends = self._ends
        if len(ends) >= max(_SMALLEST_SWEEP, 2 * self._size):
            ends[:] = [end for end in ends if not end[2].call.done()]
            heapify(ends)
        heappush(ends, (until, next(self._count), waiter))
        if self._timer is None or until < self._timer_at:
            self._arm(until)

    def _arm(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = until
        self._timer = self._clock.call_later(max(until - self._clock.monotonic(), 0.0), self._time_is_over)

    def _time_is_over(self) -> None:
        self._timer = None
        now = self._clock.monotonic() + _SOON_S
        ends = self._ends
        while ends and (ends[0][2].call.done() or ends[0][0] <= now):
            waiter = heappop(ends)[2]
            waiter.line.waiters.pop(waiter, None)
            _end(waiter)
        if ends:
            self._arm(ends[0][0])


def _end(waiter: Waiter) -> None:
    if not waiter.call.done():
        waiter.call.set_result(None)
