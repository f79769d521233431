"""Time as a parameter: code that waits takes a `Clock`, so that tests move time instead of sleeping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """Something that will happen once and can be called off."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Wall time for stored timestamps, monotonic time for timeouts."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, by the wall clock."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back: the time base of deadlines (loop time)."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, `delay` seconds from now, in the running loop."""
        ...


class SystemClock:
    """The machine's own time."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
    """The function itself: every request reads it several times."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay if delay > 0 else 0, callback)


async def pause(clock: Clock, seconds: float) -> None:
    """Return after so long."""
    over = asyncio.Event()
    timer = clock.call_later(seconds, over.set)
    try:
        await over.wait()
    finally:
        timer.cancel()
