"""One timer for everything that the broker does by time."""

from __future__ import annotations

from collections.abc import Callable

from popgate.clock import Clock, Timer

_LONGEST_S = 60.0
"""Rings at least so often: wall clocks jump, and nobody says so."""


class Alarm:
    """Calls `ring` once, at the earliest time it was set to since it rang last."""

    __slots__ = ("_at", "_clock", "_ring", "_timer")

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._timer: Timer | None = None
        self._at = 0.0

    def __repr__(self) -> str:
        return f"<Alarm {'at ' + str(self._at) if self._timer else 'off'}>"

    def set(self, delay_s: float) -> None:
        """Ring in `delay_s` seconds at the latest."""
        at = self._clock.monotonic() + min(delay_s, _LONGEST_S)
        if self._timer is not None:
            if self._at <= at:
                return
            self._timer.cancel()
        self._at = at
        self._timer = self._clock.call_later(min(delay_s, _LONGEST_S), self._rings)

    def off(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rings(self) -> None:
        self._timer = None
        self._ring()
