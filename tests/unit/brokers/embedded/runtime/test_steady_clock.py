from brokers.embedded.runtime.steady_clock import CarefulClock, MonotonicWallClock
from popgate.testing import MovableClock

HOUR = 3_600_000


def test_it_is_the_wall_clock_while_nobody_sets_that() -> None:
    clock = MovableClock()
    steady = MonotonicWallClock(clock)
    for seconds in (0, 0.001, 1, 3_600):
        clock.advance(seconds)
        assert steady.now_ms() == clock.now_ms()


def test_it_goes_on_when_the_wall_clock_is_set_back() -> None:
    clock = MovableClock()
    steady = MonotonicWallClock(clock)
    before = steady.now_ms()
    clock.set_wall(before - HOUR)
    assert steady.now_ms() == before
    clock.advance(10)
    assert steady.now_ms() == before + 10_000


def test_it_comes_together_with_the_wall_clock_when_that_is_right_again() -> None:
    clock = MovableClock()
    steady = MonotonicWallClock(clock)
    right = clock.now_ms()
    clock.set_wall(right - HOUR)
    steady.now_ms()
    clock.set_wall(right)
    assert steady.now_ms() == right
    clock.advance(5)
    assert steady.now_ms() == right + 5_000 == clock.now_ms()


def test_it_goes_on_when_the_wall_clock_is_set_forward() -> None:
    clock = MovableClock()
    steady = MonotonicWallClock(clock)
    before = clock.now_ms()
    clock.set_wall(before + HOUR)
    assert steady.now_ms() == before
    clock.advance(10)
    assert steady.now_ms() == before + 10_000
    clock.set_wall(before + 10_000)
    assert steady.now_ms() == before + 10_000 == clock.now_ms()


def test_it_never_decreases_not_even_by_a_little() -> None:
    clock = MovableClock()
    steady = MonotonicWallClock(clock)
    before = steady.now_ms()
    clock.set_wall(before - 500)  # drift: followed, once the clock is there again
    assert steady.now_ms() == before
    clock.advance(0.3)
    assert steady.now_ms() == before
    clock.advance(1)
    assert steady.now_ms() == before + 800 == clock.now_ms()


def test_deleting_believes_a_jump_forward_only_when_it_has_lasted() -> None:
    clock = MovableClock()
    careful = CarefulClock(clock)
    before = careful.now_ms()
    assert before == clock.now_ms()
    clock.set_wall(before + 100 * HOUR)
    assert careful.now_ms() == before
    clock.advance(3_599)
    assert careful.now_ms() == before + 3_599_000
    clock.advance(2)
    assert careful.now_ms() == clock.now_ms()


def test_a_jump_that_is_taken_back_was_never_believed() -> None:
    clock = MovableClock()
    careful = CarefulClock(clock)
    before = careful.now_ms()
    clock.set_wall(before + 100 * HOUR)
    careful.now_ms()
    clock.set_wall(before)
    assert careful.now_ms() == before
    clock.advance(7_200)
    assert careful.now_ms() == clock.now_ms() == before + 2 * HOUR


def test_deleting_follows_a_clock_that_is_set_back() -> None:
    clock = MovableClock()
    careful = CarefulClock(clock)
    clock.set_wall(clock.now_ms() - HOUR)
    assert careful.now_ms() == clock.now_ms()
