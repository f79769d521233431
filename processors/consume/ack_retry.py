"""Retries for a while what the broker could not do: the client has done its part.

Only for operations that can be repeated without harm, like finishing a delivery; never for a send (scenario
4).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from popgate.clock import Clock, pause
from popgate.context import Context
from popgate.errors import BrokerTimeout, BrokerUnavailable, Fault
from popgate.kinds import Backoff

Result = TypeVar("Result")

_MARGIN_S = 0.2
"""So much before the client gives up it is told how it stands."""


async def insist(
    work: Callable[[], Awaitable[Result]],
    error: BrokerUnavailable | BrokerTimeout,
    context: Context,
    *,
    clock: Clock,
    backoff: Backoff,
    budget_s: float,
    failed: Callable[[Fault], None],
) -> Result:
    """The result of another try of `work`, which failed with `error`; `failed` hears of each failure.

    Raises the last error when `budget_s`, or the client's patience, is over.
    """
    until = clock.monotonic() + budget_s
    if context.deadline is not None:
        until = min(until, context.deadline - _MARGIN_S)
    tries = 0
    while True:
        tries += 1
        failed(error.fault)
        now = clock.monotonic()
        rest = backoff.delay(tries, now)
        if now + rest > until:
            raise error
        await pause(clock, rest)
        try:
            return await work()
        except (BrokerUnavailable, BrokerTimeout) as again:
            error = again
