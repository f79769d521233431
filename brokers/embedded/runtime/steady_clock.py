"""Clocks for due times and for retention that do not jump when the wall clock does.

Due times are wall times, because they must mean the same after a restart. But a wall clock that is
set back by an hour would hide every held message for an hour more, and one that is set forward
would deliver a message while another consumer processes it, and delete young messages. So both clocks here
advance evenly: the clock of held messages ignores a jump until the next start; that of retention accepts
a clock that was set forward once it has stayed so for an hour.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from popgate.clock import Clock, Timer

_log = logging.getLogger(__name__)
_STEP_MS = 1_000
"""Less is drift, which is followed."""
_GRACE_S = 3_600.0
"""How long a jump forward must last before anything is deleted by it."""


class _Steps:
    """Tells by how many ms the wall clock jumped since the last look; 0 for drift."""

    __slots__ = ("_clock", "_monotonic", "_wall")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall = clock.now_ms()
        self._monotonic = clock.monotonic()

    def look(self) -> tuple[int, int]:
        """(wall time, jump)."""
        wall, monotonic = self._clock.now_ms(), self._clock.monotonic()
        step = wall - self._wall - (monotonic - self._monotonic) * 1000.0
        self._wall, self._monotonic = wall, monotonic
        return wall, int(step) if not -_STEP_MS <= step <= _STEP_MS else 0


class MonotonicWallClock:
    """Milliseconds since the epoch that never decrease and never jump while this object lives."""

    __slots__ = ("_ahead", "_last", "_steps")

    def __init__(self, clock: Clock) -> None:
        self._steps = _Steps(clock)
        self._last = clock.now_ms()
        self._ahead = 0

    def __repr__(self) -> str:
        return f"<MonotonicWallClock {self._ahead} ms ahead of the wall clock>"

    def now_ms(self) -> int:
        wall, jump = self._steps.look()
        if jump:
            self._ahead -= jump
            _log.warning("the wall clock jumped by %d ms; what is held goes on as if it had not", jump)
        now = wall + self._ahead
        if now > self._last:
            self._last = now
        return self._last


class CarefulClock:
    """A `Clock` for deleting: its wall time follows a jump forward only when that has lasted."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._steps = _Steps(clock)
        self._behind = 0
        self._believe_at = 0.0

    def __repr__(self) -> str:
        return f"<CarefulClock {self._behind} ms behind the wall clock>"

    def now_ms(self) -> int:
        wall, jump = self._steps.look()
        if jump > 0:
            self._behind += jump
            self._believe_at = self._clock.monotonic() + _GRACE_S
            _log.warning(
                "the wall clock jumped forward by %d ms; nothing is deleted by that for %d s", jump, _GRACE_S
            )
        elif jump < 0:
            self._behind = max(self._behind + jump, 0)
        if self._behind and self._clock.monotonic() >= self._believe_at:
            self._behind = 0
        return wall - self._behind

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return self._clock.call_later(delay, callback)
