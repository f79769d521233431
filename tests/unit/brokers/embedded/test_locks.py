from brokers.embedded.locks import Locks
from popgate.testing import MovableClock

PLACE = ("T", 0)


def test_a_lock_is_its_clients_until_its_time_is_over() -> None:
    clock = MovableClock()
    locks = Locks(clock, lock_ms=60_000, most=10)
    assert locks.take("G", "a", PLACE)
    assert not locks.take("G", "b", PLACE)
    assert locks.take("other group", "b", PLACE)
    clock.advance(59)
    assert locks.take("G", "a", PLACE)  # renewed
    clock.advance(59)
    assert not locks.take("G", "b", PLACE)
    clock.advance(1)
    assert locks.take("G", "b", PLACE)


def test_only_its_holder_gives_a_lock_up() -> None:
    locks = Locks(MovableClock(), lock_ms=60_000, most=10)
    locks.take("G", "a", PLACE)
    locks.give_up("G", "b", PLACE)
    assert not locks.take("G", "b", PLACE)
    locks.give_up("G", "a", PLACE)
    assert locks.take("G", "b", PLACE)


def test_there_are_only_so_many_locks_and_old_ones_make_room() -> None:
    clock = MovableClock()
    locks = Locks(clock, lock_ms=60_000, most=3)
    assert [locks.take("G", "a", ("T", queue)) for queue in range(4)] == [True, True, True, False]
    assert locks.take("G", "a", ("T", 0))
    clock.advance(61)
    assert locks.take("G", "b", ("T", 9))
    assert repr(locks) == "<Locks 1>"
