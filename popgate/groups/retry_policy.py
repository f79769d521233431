"""The delay between two deliveries of a message: from a list of durations, or by a formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from popgate.groups.delay_levels import LEVELS_MS


class RetryPolicy(Protocol):
    """How long a message rests after a failed delivery."""

    def delay_ms(self, attempt: int) -> int:
        """The rest after delivery number `attempt` (from 1) failed."""
        ...


@dataclass(slots=True, frozen=True)
class CustomizedRetry:
    """A list of rests; RocketMQ's default ladder from 1 s to 2 h. A retry starts two steps up.

    Source: RocketMQ's subscription group retry policy CUSTOMIZED: next[min(retries + 2, last)].
    """

    delays_ms: tuple[int, ...] = LEVELS_MS
    first_step: int = 2

    def delay_ms(self, attempt: int) -> int:
        return self.delays_ms[min(max(attempt, 1) - 1 + self.first_step, len(self.delays_ms) - 1)]

    def steps_ms(self) -> tuple[int, ...]:
        """The rests after delivery 1, 2 and so on; the last one stays."""
        return self.delays_ms[min(self.first_step, len(self.delays_ms) - 1) :]


@dataclass(slots=True, frozen=True)
class ExponentialRetry:
    """initial × multiplier^(attempt-1), at most `max_ms`. Source: RocketMQ's EXPONENTIAL policy."""

    initial_ms: int = 5_000
    max_ms: int = 7_200_000
    multiplier: float = 2.0

    def delay_ms(self, attempt: int) -> int:
        return int(min(self.max_ms, self.initial_ms * self.multiplier ** min(max(attempt, 1) - 1, 32)))


DEFAULT_RETRY = CustomizedRetry()
