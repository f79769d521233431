"""The wall clocks of the brokers, estimated from their pop responses."""

from __future__ import annotations

from typing import Final

from popgate.clock import Clock

_STRANGER_MS: Final = 60_000
"""So far the clock of a broker that has not told its time yet may be from ours."""
_MOST: Final = 4_096


class BrokerClocks:
    """For each broker an interval in which its clock is ahead of our monotonic one.

    A pop is stamped by the broker somewhere between the question and the answer, so every answer is an
    interval, and all of them together are a smaller one. Clocks drift and are set: when an answer does
    not fit, it alone counts from then on.
    """

    __slots__ = ("_ahead", "_clock")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead: dict[str, tuple[float, float]] = {}

    def __repr__(self) -> str:
        return f"<BrokerClocks {len(self._ahead)}>"

    def told(self, broker: str, wall_ms: int, asked: float, answered: float) -> None:
        """A broker's time, read between `asked` and `answered` (loop seconds); 0: the response had none."""
        if wall_ms <= 0:
            return
        low, high = wall_ms - answered * 1000, wall_ms - asked * 1000
        known = self._ahead.get(broker)
        if known is not None:
            both = max(low, known[0]), min(high, known[1])
            if both[0] <= both[1]:
                low, high = both
        elif len(self._ahead) >= _MOST:
            self._ahead.clear()
        self._ahead[broker] = low, high

    def surely_past_ms(self, broker: str) -> int:
        """A wall time that is over at the broker without doubt."""
        known = self._ahead.get(broker)
        if known is None:
            return self._clock.now_ms() - _STRANGER_MS
        return int(self._clock.monotonic() * 1000 + known[0])

    def ours_ms(self, broker: str, wall_ms: int) -> int:
        """What our wall clock shows, or somewhat less, when the broker's shows `wall_ms`."""
        known = self._ahead.get(broker)
        if known is None:
            return wall_ms
        return int(self._clock.now_ms() + wall_ms - known[1] - self._clock.monotonic() * 1000)
