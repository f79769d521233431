"""How long to wait before the next attempt."""

from __future__ import annotations


class Exponential:
    """`initial` × `multiplier`^(attempt-1) seconds, at most `longest`."""

    __slots__ = ("_initial", "_longest", "_multiplier")

    def __init__(self, *, initial: float = 0.1, longest: float = 5.0, multiplier: float = 2.0) -> None:
        if not (initial > 0 and longest >= initial and multiplier >= 1):
            raise ValueError("a backoff needs initial > 0, longest >= initial, multiplier >= 1")
        self._initial = initial
        self._longest = longest
        self._multiplier = multiplier

    def delay(self, attempt: int, now: float) -> float:
        # The exponent is bounded so that a long outage does not overflow the power.
        return float(min(self._longest, self._initial * self._multiplier ** min(max(attempt, 1) - 1, 64)))
