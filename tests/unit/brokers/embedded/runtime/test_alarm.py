from brokers.embedded.runtime.alarm import Alarm
from popgate.testing import MovableClock


def make() -> tuple[MovableClock, Alarm, list[float]]:
    clock = MovableClock()
    rings: list[float] = []
    begin = clock.monotonic()
    return clock, Alarm(clock, lambda: rings.append(round(clock.monotonic() - begin, 6))), rings


def test_it_rings_once_at_the_earliest_time_it_was_set_to() -> None:
    clock, alarm, rings = make()
    alarm.set(10)
    alarm.set(3)
    alarm.set(7)
    clock.advance(60)
    assert rings == [3]


def test_it_can_be_set_again_after_it_rang() -> None:
    clock, alarm, rings = make()
    alarm.set(1)
    clock.advance(1)
    alarm.set(1)
    clock.advance(1)
    assert rings == [1, 2]


def test_it_is_silent_when_it_is_off() -> None:
    clock, alarm, rings = make()
    alarm.set(1)
    alarm.off()
    clock.advance(100)
    assert rings == []


def test_it_rings_after_a_minute_at_the_latest_because_wall_clocks_jump() -> None:
    clock, alarm, rings = make()
    alarm.set(100_000)
    clock.advance(100)
    assert rings == [60]
