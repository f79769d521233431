import logging

import pytest

from brokers.embedded.groups.entries import Entry
from brokers.embedded.groups.invisibility_heap import InvisibilityHeap


class FakeLedger:
    """Notes what it is told; `cost` looks each, and fails while it is told to."""

    def __init__(self, cost: int = 1) -> None:
        self.entries: dict[int, Entry] = {}
        self.told: list[int] = []
        self.cost = cost
        self.fails: set[int] = set()

    def hold(self, schedule: InvisibilityHeap, due_ms: int, *offsets: int) -> Entry:
        entry = Entry(due_ms, 1, 1, True)
        for offset in offsets:
            self.entries[offset] = entry
        schedule.add(due_ms, self, entry, offsets)
        return entry

    def fall_due(self, offset: int, entry: Entry, now_ms: int) -> int:
        if offset in self.fails:
            raise OSError("unreadable")
        self.told.append(offset)
        return self.cost


def test_what_falls_due_is_told_in_the_order_of_its_time() -> None:
    schedule, ledger = InvisibilityHeap(), FakeLedger()
    ledger.hold(schedule, 300, 1)
    ledger.hold(schedule, 100, 2, 3)
    ledger.hold(schedule, 200, 4)
    assert schedule.deadline() == 100
    schedule.tick(99, 1_000)
    assert ledger.told == []
    schedule.tick(200, 1_000)
    assert ledger.told == [2, 3, 4]
    assert schedule.deadline() == 300


def test_what_was_finished_or_renewed_since_is_not_told_at_the_old_time() -> None:
    schedule, ledger = InvisibilityHeap(), FakeLedger()
    ledger.hold(schedule, 100, 1, 2, 3)
    del ledger.entries[1]
    ledger.hold(schedule, 500, 2)
    schedule.tick(100, 1_000)
    assert ledger.told == [3]
    schedule.tick(500, 1_000)
    assert ledger.told == [3, 2]


def test_without_an_entry_the_time_of_the_current_one_decides() -> None:
    schedule, ledger = InvisibilityHeap(), FakeLedger()
    ledger.entries = {1: Entry(100, 1, 1, True), 2: Entry(100, 1, 1, True), 3: Entry(400, 1, 1, True)}
    schedule.add(100, ledger, None, [1, 2, 3, 4])
    schedule.tick(1_000, 1_000)
    assert ledger.told == [1, 2]


def test_a_tick_stops_when_it_has_cost_enough_and_goes_on_where_it_was() -> None:
    schedule, ledger = InvisibilityHeap(), FakeLedger(cost=10)
    ledger.hold(schedule, 100, *range(10))
    schedule.tick(100, 35)
    assert ledger.told == [0, 1, 2, 3]
    assert schedule.deadline() == 100
    schedule.tick(100, 1_000)
    assert ledger.told == list(range(10))
    assert schedule.deadline() is None


def test_what_fails_is_tried_again_a_second_later_and_keeps_nobody_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    schedule, ledger, other = InvisibilityHeap(), FakeLedger(), FakeLedger()
    ledger.hold(schedule, 100, 1, 2)
    other.hold(schedule, 101, 7)
    ledger.fails = {1}
    with caplog.at_level(logging.ERROR):
        schedule.tick(101, 1_000)
    assert (ledger.told, other.told) == ([2], [7])
    assert "offset 1" in caplog.text
    assert schedule.deadline() == 1_101
    ledger.fails = set()
    schedule.tick(1_101, 1_000)
    assert ledger.told == [2, 1]


def test_items_of_finished_messages_do_not_pile_up() -> None:
    schedule, ledger = InvisibilityHeap(), FakeLedger()
    for offset in range(100_000):
        ledger.hold(schedule, 1_000_000 + offset, offset)
        del ledger.entries[offset]
    assert len(schedule) <= 4_096


def test_a_sweep_keeps_everything_that_will_fall_due() -> None:
    schedule, ledger = InvisibilityHeap(), FakeLedger()
    for offset in range(0, 9_000, 3):
        ledger.hold(schedule, 1_000 + offset, offset, offset + 1, offset + 2)
        if offset % 2:
            del ledger.entries[offset]
    schedule.tick(1_000_000, 1_000_000)
    assert ledger.told == sorted(ledger.entries)
