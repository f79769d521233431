"""Consumers that wait for messages: one line per topic and group, woken one by one.

An arrival wakes as many consumers as it may supply. A consumer that was woken and takes nothing while
messages are left passes the wake-up on, to those that have not looked since. One timer serves all waiting
consumers.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from brokers.embedded.settings import EmbeddedSettings
from popgate.clock import Clock, Timer
from popgate.errors import TooManyRequests

_SMALLEST_SWEEP = 1_024
_SOON_S = 0.0005
"""Timers ring a little early, and floats are not exact: who has less time left than this has none."""

_FULL = "polling full"
"""RocketMQ's words for that."""


class Waiter:
    """A waiting consumer. `queue_id` -1: any queue. `room`: how many messages it would take.

    `seen`: the last wake-up before it found nothing. `wake`: the number of its own wake-up, 0 for none.
    """

    __slots__ = ("future", "line", "queue_id", "room", "seen", "wake")

    def __init__(self, line: Line, future: asyncio.Future[None], queue_id: int, room: int, seen: int) -> None:
        self.line = line
        self.future = future
        self.queue_id = queue_id
        self.room = room
        self.seen = seen
        self.wake = 0


class Line:
    """Those who wait for the same, in the order in which they came."""

    __slots__ = ("key", "waiters")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.waiters: OrderedDict[Waiter, None] = OrderedDict()


class WaitQueue:
    """All lines, by topic and by a key within the topic. Wakes are numbered from 1."""

    def __init__(self, clock: Clock, settings: EmbeddedSettings) -> None:
        self._clock = clock
        self._settings = settings
        self._topics: dict[int, dict[Hashable, Line]] = {}
        self._ends: list[tuple[float, int, Waiter]] = []
        self._count = count()
        self._size = 0
        self._wakes = 0
        self._timer: Timer | None = None
        self._timer_at = 0.0

    def __repr__(self) -> str:
        return f"<WaitQueue {self._size}>"

    def __len__(self) -> int:
        return self._size

    async def wait(
        self, topic_id: int, key: Hashable, until: float, *, queue_id: int = -1, room: int = 1
    ) -> int:
        """Wait for a wake, or until `until` (loop seconds); the number of the wake, 0 for none.

        A caller that is cancelled after it was woken passes the wake on. Raises TooManyRequests.
        """
        if self._size >= self._settings.max_waiting_pops:
            raise TooManyRequests(
                f"{self._size} requests wait for messages already, the limit is reached", known_as=_FULL
            )
        line = self._line(topic_id, key)
        if len(line.waiters) >= self._settings.max_waiting_pops_per_group:
            raise TooManyRequests(
                f"{len(line.waiters)} requests wait for the same messages already, the limit is reached",
                known_as=_FULL,
            )
        waiter = Waiter(line, asyncio.get_running_loop().create_future(), queue_id, room, self._wakes)
        line.waiters[waiter] = None
        self._size += 1
        self._end_at(until, waiter)
        try:
            await waiter.future
        except asyncio.CancelledError:
            if waiter.wake:
                self._wake_one(line, queue_id, waiter.wake)
            else:
                self._leave(waiter)
            raise
        finally:
            self._close_line(topic_id, line)
        return waiter.wake

    def keys(self, topic_id: int) -> Sequence[Hashable]:
        """The keys of a topic with waiting consumers."""
        lines = self._topics.get(topic_id)
        return [key for key, line in lines.items() if line.waiters] if lines else ()

    def count(self, topic_id: int, key: Hashable) -> int:
        """How many wait for the same."""
        line = self._topics.get(topic_id, {}).get(key)
        return len(line.waiters) if line is not None else 0

    def anybody(self, topic_id: int, key: Hashable) -> bool:
        """Whether a consumer waits in this line."""
        return key in self._topics.get(topic_id, {})

    def wake(self, topic_id: int, key: Hashable, queue_id: int, messages: int) -> None:
        """There are `messages` new or free again on a queue: wake who may take them."""
        line = self._topics.get(topic_id, {}).get(key)
        if line is None or not line.waiters:
            return
        self._wakes += 1
        while messages > 0:
            waiter = self._wake_one(line, queue_id, self._wakes)
            if waiter is None:
                return
            messages -= waiter.room

    def pass_on(self, topic_id: int, key: Hashable, wake: int) -> None:
        """Wake-up number `wake` brought its waiter nothing: wake another one that has not looked since."""
        line = self._topics.get(topic_id, {}).get(key)
        if line is not None:
            self._wake_one(line, -1, wake)

    def wake_all(self, topic_id: int | None = None, key: Hashable = None) -> None:
        """Wake everybody: of one key, of a topic, or of all."""
        self._wakes += 1
        topics = list(self._topics.values()) if topic_id is None else [self._topics.get(topic_id, {})]
        for lines in topics:
            for line in list(lines.values()):
                if key is None or line.key == key:
                    for waiter in list(line.waiters):
                        self._resolve(waiter, self._wakes)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ends.clear()

    # -- inside -------------------------------------------------------------------------------

    def _line(self, topic_id: int, key: Hashable) -> Line:
        lines = self._topics.setdefault(topic_id, {})
        line = lines.get(key)
        if line is None:
            line = lines[key] = Line(key)
        return line

    def _close_line(self, topic_id: int, line: Line) -> None:
        """Remove an empty line."""
        if not line.waiters:
            lines = self._topics.get(topic_id, {})
            if lines.get(line.key) is line:
                del lines[line.key]
                if not lines:
                    del self._topics[topic_id]

    def _wake_one(self, line: Line, queue_id: int, wake: int) -> Waiter | None:
        """Wake the first who has not looked since `wake` and takes from this queue (-1: from any)."""
        for waiter in line.waiters:
            if waiter.seen >= wake:
                return None  # those behind came later still
            if waiter.future.done():
                continue  # cancelled in this very turn: it will not come back to pass the wake on
            if queue_id < 0 or waiter.queue_id in (-1, queue_id):
                self._resolve(waiter, wake)
                return waiter
        return None

    def _resolve(self, waiter: Waiter, wake: int) -> None:
        self._leave(waiter)
        if not waiter.future.done():
            waiter.wake = wake
            waiter.future.set_result(None)

    def _leave(self, waiter: Waiter) -> None:
        if waiter.line.waiters.pop(waiter, False) is None:
            self._size -= 1

    def _end_at(self, until: float, waiter: Waiter) -> None:
        ends = self._ends
        if len(ends) >= max(_SMALLEST_SWEEP, 2 * self._size):
            ends[:] = [end for end in ends if not end[2].future.done()]
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
        while ends and (ends[0][2].future.done() or ends[0][0] <= now):
            self._resolve(heappop(ends)[2], 0)
        if ends:
            self._arm(ends[0][0])
