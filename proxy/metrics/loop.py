"""Measures the lag of the event loop: one timer, twice a second."""

from __future__ import annotations

import asyncio

from popgate.clock import Clock, Timer
from proxy.metrics.histograms import Histogram

_INTERVAL_S = 0.5


class LoopLag:
    """From `start` to `stop`."""

    def __init__(self, clock: Clock) -> None:
        self.seconds = Histogram()
        self._clock = clock
        self._timer: Timer | None = None
        self._due = 0.0

    def __repr__(self) -> str:
        return f"<LoopLag {self.seconds!r}>"

    def start(self) -> None:
        self._due = self._clock.monotonic() + _INTERVAL_S
        self._timer = self._clock.call_later(_INTERVAL_S, self._ring)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self.seconds.add(max(self._clock.monotonic() - self._due, 0.0))
        self.start()


def task_count() -> int:
    """Tasks of the running loop; 0 outside of one."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0
