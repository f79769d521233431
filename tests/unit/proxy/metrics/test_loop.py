"""proxy.metrics.loop: how late the loop is."""

from __future__ import annotations

from popgate.testing.clock import MovableClock
from proxy.metrics.loop import LoopLag, task_count


def test_a_timer_that_rings_late_is_told_by_how_much() -> None:
    clock = MovableClock()
    lag = LoopLag(clock)
    lag.start()
    clock.advance(0.5)
    assert lag.seconds.count == 1
    assert lag.seconds.total < 0.001
    lag._due -= 0.3  # as if the loop had stood still
    clock.advance(0.5)
    assert lag.seconds.count == 2
    assert 0.29 < lag.seconds.total < 0.31


def test_it_stops() -> None:
    clock = MovableClock()
    lag = LoopLag(clock)
    lag.start()
    lag.stop()
    clock.advance(10)
    assert lag.seconds.count == 0


async def test_tasks_are_counted_where_a_loop_runs() -> None:
    assert task_count() >= 1


def test_outside_of_a_loop_there_are_none() -> None:
    assert task_count() == 0
