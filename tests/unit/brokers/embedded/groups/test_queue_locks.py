from brokers.embedded.groups.queue_locks import QueueLocks
from popgate.testing import MovableClock

PLACE = ("T", 0)


def test_a_lock_is_its_clients_until_its_time_is_over() -> None:
    clock = MovableClock()
    locks = QueueLocks(clock, lock_ms=60_000, most=10)
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
    locks = QueueLocks(MovableClock(), lock_ms=60_000, most=10)
    locks.take("G", "a", PLACE)
    locks.give_up("G", "b", PLACE)
    assert not locks.take("G", "b", PLACE)
    locks.give_up("G", "a", PLACE)
    assert locks.take("G", "b", PLACE)


def test_whoever_it_is_may_give_up_a_lock_that_nobody_has() -> None:
    locks = QueueLocks(MovableClock(), lock_ms=60_000, most=10)
    locks.give_up("", "", ("", 0))
    locks.take("G", "a", PLACE)
    locks.give_up("G", "", ("T", 1))
    assert not locks.take("G", "b", PLACE)


def test_there_are_only_so_many_locks_and_old_ones_make_room() -> None:
    clock = MovableClock()
    locks = QueueLocks(clock, lock_ms=60_000, most=3)
    assert [locks.take("G", "a", ("T", queue)) for queue in range(4)] == [True, True, True, False]
    assert locks.take("G", "a", ("T", 0))
    clock.advance(61)
    assert locks.take("G", "b", ("T", 9))
    assert repr(locks) == "<QueueLocks 1>"


def test_a_table_that_is_full_of_locks_is_looked_through_once_until_one_is_over() -> None:
    clock = MovableClock()
    locks = QueueLocks(clock, lock_ms=60_000, most=3)
    assert locks.take("G", "a", ("T", 0))
    clock.advance(30)
    assert locks.take("G", "a", ("T", 1))
    assert locks.take("H", "a", PLACE)
    looked = []
    look = locks._forget_old
    locks._forget_old = lambda now: (looked.append(now), look(now))[1]  # type: ignore[method-assign, func-returns-value]
    assert not any(locks.take("J", "b", ("T", queue)) for queue in range(1_000))
    assert len(looked) == 1
    clock.advance(30)
    assert locks.take("J", "b", PLACE)
    assert not locks.take("J", "b", ("T", 1))


def test_a_group_reads_in_order_while_one_of_its_locks_is_held() -> None:
    clock = MovableClock()
    locks = QueueLocks(clock, lock_ms=60_000, most=10)
    assert not locks.any_of("G")
    locks.take("G", "a", ("T", 0))
    clock.advance(30)
    locks.take("G", "a", ("T", 1))
    locks.take("H", "a", ("T", 1))
    clock.advance(30)
    assert (locks.any_of("G"), locks.any_of("other group"), repr(locks)) == (True, False, "<QueueLocks 2>")
    locks.give_up("G", "a", ("T", 1))
    assert (locks.any_of("G"), locks.any_of("H")) == (False, True)
    clock.advance(30)
    assert not locks.any_of("H")
    assert repr(locks) == "<QueueLocks 0>"
