"""The clock that tests move."""

from __future__ import annotations

import pytest

from popgate.testing import MovableClock


def test_a_movable_clock_stands_still_until_it_is_moved():
    clock = MovableClock(now_ms=5_000, monotonic=7.0)
    assert (clock.now_ms(), clock.monotonic()) == (5_000, 7.0)
    clock.advance(1.5)
    assert (clock.now_ms(), clock.monotonic()) == (6_500, 8.5)


@pytest.mark.parametrize("steps", [1, 3, 7, 1_000])
def test_many_small_steps_end_where_one_large_step_does(steps):
    clock = MovableClock()
    for _ in range(steps):
        clock.advance(0.3)
    assert clock.now_ms() == 1_700_000_000_000 + 300 * steps


def test_what_falls_due_is_called_in_order_at_its_own_time():
    clock = MovableClock()
    seen = []
    begin = clock.now_ms()
    for ms in (30, 10, 20):
        clock.call_later(ms / 1000, lambda ms=ms: seen.append((ms, clock.now_ms() - begin)))
    clock.advance(0.025)
    assert seen == [(10, 10), (20, 20)]
    clock.advance(0.005)
    assert seen == [(10, 10), (20, 20), (30, 30)]


def test_what_is_due_now_waits_for_the_next_move():
    clock = MovableClock()
    seen = []
    clock.call_later(-5, lambda: seen.append("late"))
    assert seen == []
    clock.advance(0)
    assert seen == ["late"]


def test_what_was_set_on_the_way_is_called_on_the_way():
    clock = MovableClock()
    seen = []

    def again() -> None:
        seen.append(clock.now_ms())
        clock.call_later(1, again)

    clock.call_later(1, again)
    clock.advance(5)
    assert len(seen) == 5


def test_what_rings_without_time_passing_is_told():
    clock = MovableClock()

    def again() -> None:
        clock.call_later(0, again)

    clock.call_later(0, again)
    with pytest.raises(AssertionError, match="again and again"):
        clock.advance(1)


def test_what_was_called_off_is_not_called():
    clock = MovableClock()
    seen = []
    clock.call_later(1, lambda: seen.append("no")).cancel()
    clock.advance(2)
    assert seen == []


async def test_the_loop_works_between_what_is_due():
    clock = MovableClock()
    seen = []

    async def turn() -> None:
        if clock.until_next() is None and len(seen) < 3:
            clock.call_later(1, lambda: seen.append(clock.monotonic()))

    begin = clock.monotonic()
    await clock.run(10, turn)
    assert [at - begin for at in seen] == [1, 2, 3]
    assert clock.monotonic() == begin + 10


async def test_what_rings_without_end_is_told():
    clock = MovableClock()

    async def turn() -> None:
        clock.call_later(0, lambda: None)

    with pytest.raises(AssertionError, match="alarms rang"):
        await clock.run(1, turn)


def test_the_wall_clock_can_be_set_while_the_other_time_goes_on():
    clock = MovableClock(now_ms=1_000_000, monotonic=5.0)
    clock.set_wall(400_000)
    assert (clock.now_ms(), clock.monotonic()) == (400_000, 5.0)
    clock.advance(1)
    assert (clock.now_ms(), clock.monotonic()) == (401_000, 6.0)
