"""Trying again for a while what may be done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from popgate.context import Context
from popgate.errors import BrokerTimeout, BrokerUnavailable, Fault
from popgate.testing import MovableClock
from processors.consume.ack_retry import insist
from processors.policies.backoff import Exponential


class Work:
    """Fails so many times, then works."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.tries = 0

    async def __call__(self) -> str:
        self.tries += 1
        if self.tries <= self.failures:
            raise BrokerTimeout("again")
        return "done"


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


async def run(
    work: Work, clock: MovableClock, seconds: float, told: Callable[[Fault], None], **context: object
) -> str:
    made = Context(**context)  # type: ignore[arg-type]
    trying = asyncio.ensure_future(
        insist(
            work,
            BrokerUnavailable("at first"),
            made,
            clock=clock,
            backoff=Exponential(),
            budget_s=2.0,
            failed=told,
        )
    )
    for _ in range(int(seconds * 100)):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        clock.advance(0.01)
    assert trying.done()
    return await trying


async def test_it_is_done_as_soon_as_that_is_possible(clock: MovableClock) -> None:
    told: list[Fault] = []
    assert await run(Work(2), clock, 1.0, told.append) == "done"
    assert told == [Fault.BROKER_UNAVAILABLE, Fault.BROKER_TIMEOUT, Fault.BROKER_TIMEOUT]


async def test_scenario_04_when_the_budget_is_used_up_the_last_error_is_told(clock: MovableClock) -> None:
    work = Work(1_000)
    with pytest.raises(BrokerTimeout, match="again"):
        await run(work, clock, 3.0, lambda fault: None)
    assert 2 <= work.tries <= 6


async def test_nobody_waits_longer_than_the_client(clock: MovableClock) -> None:
    work = Work(1_000)
    with pytest.raises(BrokerUnavailable, match="at first"):
        await run(work, clock, 0.5, lambda fault: None, deadline=clock.monotonic() + 0.25)
    assert work.tries == 0


async def test_who_is_cancelled_leaves_nothing_behind(clock: MovableClock) -> None:
    work = Work(5)
    trying = asyncio.ensure_future(
        insist(
            work,
            BrokerUnavailable("at first"),
            Context(),
            clock=clock,
            backoff=Exponential(),
            budget_s=2.0,
            failed=lambda fault: None,
        )
    )
    await asyncio.sleep(0)
    trying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trying
    assert clock.until_next() is None
