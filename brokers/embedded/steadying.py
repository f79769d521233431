"""Wall time for what falls due, without steps back.

Due times are wall times, because they must mean the same after a restart. A wall clock that is
set back by an hour would keep every held message away for an hour more; so the broker goes on
from where it was, and comes together with the wall clock again when that is set forward.
"""

from __future__ import annotations

from popgate.clock import Clock

_STEP_MS = 1_000
"""Less is drift, which is followed."""


class SteadyTime:
    """Milliseconds since the epoch that never decrease while this object lives."""

    __slots__ = ("_ahead", "_clock", "_last", "_monotonic", "_wall")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall = self._last = clock.now_ms()
        self._monotonic = clock.monotonic()
        self._ahead = 0

    def __repr__(self) -> str:
        return f"<SteadyTime {self._ahead} ms ahead of the wall clock>"

    def now_ms(self) -> int:
        wall, monotonic = self._clock.now_ms(), self._clock.monotonic()
        step = wall - self._wall - (monotonic - self._monotonic) * 1000.0
        self._wall, self._monotonic = wall, monotonic
        if step < -_STEP_MS:
            self._ahead -= int(step)
        elif step > _STEP_MS and self._ahead:
            self._ahead = max(self._ahead - int(step), 0)
        now = wall + self._ahead
        if now > self._last:
            self._last = now
        return self._last
