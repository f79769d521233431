"""A clock that moves only when a test moves it."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Awaitable, Callable

_NS = 1_000_000_000
_MOST_RINGS = 100_000


class _Alarm:
    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class MovableClock:
    """Implements `popgate.clock.Clock`; `advance` runs what falls due, in order, at its own time.

    It counts whole nanoseconds, so that many small steps and one large one end at the same time.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000, monotonic: float = 1_000.0) -> None:
        self._monotonic_ns = round(monotonic * _NS)
        self._wall_ns = now_ms * 1_000_000 - self._monotonic_ns
        """The offset from the monotonic time to the wall clock."""
        self._alarms: list[tuple[int, int, _Alarm]] = []
        self._count = itertools.count()

    def now_ms(self) -> int:
        return (self._wall_ns + self._monotonic_ns) // 1_000_000

    def monotonic(self) -> float:
        return self._monotonic_ns / _NS

    def call_later(self, delay: float, callback: Callable[[], None]) -> _Alarm:
        alarm = _Alarm(callback)
        due = self._monotonic_ns + round(max(delay, 0.0) * _NS)
        heapq.heappush(self._alarms, (due, next(self._count), alarm))
        return alarm

    def advance(self, seconds: float) -> None:
        """Move both times forward by `seconds`, running timers when they are due.

        Raises AssertionError for a timer that fires again and again without time passing.
        """
        end = self._monotonic_ns + round(seconds * _NS)
        rings = 0
        while self._alarms and self._alarms[0][0] <= end:
            due, _, alarm = heapq.heappop(self._alarms)
            rings = 0 if due > self._monotonic_ns else rings + 1
            assert rings < _MOST_RINGS, f"{alarm.callback} rings again and again"  # noqa: S101
            self._monotonic_ns = max(due, self._monotonic_ns)
            if not alarm.cancelled:
                alarm.callback()
        self._monotonic_ns = max(end, self._monotonic_ns)

    def until_next(self) -> float | None:
        """The seconds until something is due; None when nothing is."""
        while self._alarms and self._alarms[0][2].cancelled:
            heapq.heappop(self._alarms)
        if not self._alarms:
            return None
        return max(self._alarms[0][0] - self._monotonic_ns, 0) / _NS

    async def run(self, seconds: float, turn: Callable[[], Awaitable[None]]) -> None:
        """Move both times forward as `advance` does, but let the loop run after each timer.

        `turn` runs the loop, so that the work of one timer is finished before the next one fires. Raises
        AssertionError for timers that fire without end.
        """
        end = self._monotonic_ns + round(seconds * _NS)
        rings = 0
        while True:
            await turn()
            left = self.until_next()
            if left is None or self._monotonic_ns + round(left * _NS) > end:
                break
            self.advance(left)
            rings += 1
            assert rings <= 1_000 + 2 * seconds, f"{rings} alarms rang in {seconds} s"  # noqa: S101
        self._monotonic_ns = max(end, self._monotonic_ns)

    def set_wall(self, now_ms: int) -> None:
        """Set the wall clock, as an operator does: forwards or back, while the other time goes on."""
        self._wall_ns = now_ms * 1_000_000 - self._monotonic_ns
