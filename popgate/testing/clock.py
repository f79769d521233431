"""A clock that stands still until somebody moves it."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class _Alarm:
    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class MovableClock:
    """Implements `popgate.clock.Clock`; `advance` runs what falls due, in order, at its own time."""

    def __init__(self, now_ms: int = 1_700_000_000_000, monotonic: float = 1_000.0) -> None:
        self._ms = float(now_ms)
        self._monotonic = monotonic
        self._alarms: list[tuple[float, int, _Alarm]] = []
        self._count = itertools.count()

    def now_ms(self) -> int:
        return int(self._ms)

    def monotonic(self) -> float:
        return self._monotonic

    def call_later(self, delay: float, callback: Callable[[], None]) -> _Alarm:
        alarm = _Alarm(callback)
        heapq.heappush(self._alarms, (self._monotonic + max(delay, 0.0), next(self._count), alarm))
        return alarm

    def advance(self, seconds: float) -> None:
        """Move both times forward by `seconds`, calling what is due on the way."""
        end = self._monotonic + seconds
        while self._alarms and self._alarms[0][0] <= end:
            due, _, alarm = heapq.heappop(self._alarms)
            self._move_to(due)
            if not alarm.cancelled:
                alarm.callback()
        self._move_to(end)

    def _move_to(self, monotonic: float) -> None:
        if monotonic > self._monotonic:
            self._ms += (monotonic - self._monotonic) * 1000.0
            self._monotonic = monotonic
