"""The brokers' clocks: known from their answers, never trusted beyond them."""

from __future__ import annotations

import pytest

from brokers.remote.settle.broker_clocks import BrokerClocks
from popgate.testing.clock import MovableClock

AHEAD_MS = 3_600_000
"""The broker's clock is an hour ahead of ours."""


@pytest.fixture
def clocks(clock: MovableClock) -> BrokerClocks:
    return BrokerClocks(clock)


def broker_ms(clock: MovableClock) -> int:
    return clock.now_ms() + AHEAD_MS


def answer(clocks: BrokerClocks, clock: MovableClock, before_s: float, after_s: float) -> None:
    """The broker tells its time `before_s` after the question and `after_s` before the answer."""
    asked = clock.monotonic()
    clock.advance(before_s)
    told = broker_ms(clock)
    clock.advance(after_s)
    clocks.told("a", told, asked, clock.monotonic())


async def test_the_time_that_is_surely_over_is_never_in_the_brokers_future(clocks, clock):
    for before_s, after_s in ((0.0, 0.4), (0.3, 0.0), (0.1, 0.1), (2.0, 0.05)):
        answer(clocks, clock, before_s, after_s)
        assert clocks.surely_past_ms("a") <= broker_ms(clock)
        clock.advance(7.0)
        assert clocks.surely_past_ms("a") <= broker_ms(clock)


async def test_several_answers_are_better_than_one(clocks, clock):
    answer(clocks, clock, 0.0, 2.0)
    assert broker_ms(clock) - clocks.surely_past_ms("a") == pytest.approx(2_000, abs=2)
    answer(clocks, clock, 0.2, 0.001)
    assert broker_ms(clock) - clocks.surely_past_ms("a") <= 2
    answer(clocks, clock, 0.0, 5.0)
    assert broker_ms(clock) - clocks.surely_past_ms("a") <= 2


async def test_a_clock_that_was_set_counts_from_then_on(clocks, clock):
    answer(clocks, clock, 0.0, 0.01)
    now = clock.monotonic()
    set_ms = broker_ms(clock) - 600_000
    clocks.told("a", set_ms, now, now)
    assert clocks.surely_past_ms("a") == pytest.approx(set_ms, abs=2)


async def test_of_a_stranger_a_minute_is_not_known(clocks, clock):
    assert clocks.surely_past_ms("never heard of") == clock.now_ms() - 60_000
    assert clocks.ours_ms("never heard of", 77) == 77


async def test_an_answer_without_a_time_says_nothing(clocks, clock):
    clocks.told("a", 0, clock.monotonic(), clock.monotonic())
    assert clocks.surely_past_ms("a") == clock.now_ms() - 60_000


async def test_a_brokers_time_is_told_in_ours(clocks, clock):
    answer(clocks, clock, 0.0, 0.0)
    assert clocks.ours_ms("a", broker_ms(clock) + 10_000) == pytest.approx(clock.now_ms() + 10_000, abs=2)
