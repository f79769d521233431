"""Numbers of messages for one client on one queue: they grow, and what was said of older ones stays true."""

from __future__ import annotations

import pytest

from protocols.remoting.mapped.offsets import (
    END,
    LEAST_WINDOW,
    MOST_WINDOW,
    VIRTUAL,
    Fate,
    QueueHoldings,
    QueueKey,
    beginning,
    is_possible,
    is_virtual,
)

NOW_MS = 1_700_000_000_000
YEAR_MS = 365 * 86_400_000


@pytest.fixture
def queue() -> QueueHoldings:
    return QueueHoldings(QueueKey("readers", "orders", "b", 0))


def take(queue: QueueHoldings, count: int) -> list[int]:
    """Numbers of so many new messages."""
    messages = [(f"r{n}", "b", 100 + n, 1) for n in range(count)]
    return [one.number for one in queue.take(messages, 1.0, 61.0)]


def test_numbers_have_a_bit_that_no_offset_has() -> None:
    assert not is_virtual(VIRTUAL - 1)
    assert not is_virtual(-1)
    assert is_virtual(VIRTUAL)
    assert is_virtual((1 << 63) - 1)
    assert VIRTUAL == 1 << 60


def test_later_beginnings_are_higher_than_all_that_was_given() -> None:
    first, second = beginning(NOW_MS), beginning(NOW_MS + 1)
    assert VIRTUAL < first < second < END
    assert second - first > 200_000
    # For decades, and also where a clock is wrong.
    assert beginning(NOW_MS + 60 * YEAR_MS) < END
    assert beginning(0) == beginning(-5) == VIRTUAL


def test_numbers_of_a_far_future_are_made_up() -> None:
    assert is_possible(beginning(NOW_MS + YEAR_MS // 2), NOW_MS)
    assert not is_possible(beginning(NOW_MS + 2 * YEAR_MS), NOW_MS)
    assert not is_possible(END, NOW_MS + 200 * YEAR_MS)
    assert is_possible(5, NOW_MS)


def test_messages_are_numbered_upwards(queue: QueueHoldings) -> None:
    queue.asked(VIRTUAL + 7)
    assert take(queue, 2) == [VIRTUAL + 7, VIRTUAL + 8]
    assert queue.first == VIRTUAL + 7
    assert queue.next == VIRTUAL + 9
    assert take(queue, 1) == [VIRTUAL + 9]


def test_a_lower_number_brings_none_back(queue: QueueHoldings) -> None:
    queue.asked(VIRTUAL + 100)
    numbers = take(queue, 3)
    freed = queue.asked(numbers[1])
    assert [one.number for one in freed] == numbers[1:]
    assert {one.fate for one in freed} == {Fate.FREED}
    assert list(queue.held) == numbers[:1]
    assert take(queue, 1) == [numbers[-1] + 1]


def test_a_new_beginning_gives_everything_back(queue: QueueHoldings) -> None:
    queue.restart(NOW_MS)
    numbers = take(queue, 3)
    assert numbers[0] == beginning(NOW_MS)
    assert len(queue.restart(NOW_MS)) == 3
    assert take(queue, 1) == [numbers[-1] + 1]
    # Time alone takes it further.
    queue.restart(NOW_MS + 1000)
    assert queue.next == beginning(NOW_MS + 1000)


def test_a_commit_finishes_what_is_below_once(queue: QueueHoldings) -> None:
    queue.restart(NOW_MS)
    numbers = take(queue, 4)
    assert [one.number for one in queue.commit(numbers[2])] == numbers[:2]
    assert queue.commit(numbers[2]) == queue.commit(numbers[0]) == []
    assert [one.number for one in queue.commit(queue.next)] == numbers[2:]
    assert not queue.held
    assert queue.first == queue.next


@pytest.mark.parametrize("number", [0, -1, 99, VIRTUAL, END, (1 << 63) - 1])
def test_a_commit_of_what_was_never_given_finishes_nothing(queue: QueueHoldings, number: int) -> None:
    queue.restart(NOW_MS)
    take(queue, 2)
    assert queue.commit(number) == []
    assert queue.commit(queue.next + 1) == []
    assert len(queue.held) == 2


def test_what_is_dropped_is_nobody_elses(queue: QueueHoldings) -> None:
    queue.restart(NOW_MS)
    take(queue, 1)
    (one,) = queue.held.values()
    assert queue.drop(one, Fate.GONE)
    assert not queue.drop(one, Fate.FREED)
    assert one.fate is Fate.GONE


def test_the_window_follows_what_was_finished_lately(queue: QueueHoldings) -> None:
    assert queue.window(1.0) == LEAST_WINDOW
    queue.finished(100, 1.2)
    queue.finished(50, 1.9)
    queue.finished(50, 3.0)
    assert queue.window(3.0) == 400
    assert queue.window(10.9) == 400
    assert queue.window(11.0) == 100
    assert queue.window(13.0) == LEAST_WINDOW
    queue.finished(5000, 20.0)
    assert queue.window(20.0) == MOST_WINDOW
    take(queue, 24)
    assert queue.room(20.0) == 1000


def test_what_is_finished_ends_the_pauses(queue: QueueHoldings) -> None:
    queue.pauses = 5
    queue.finished(1, 1.0)
    assert queue.pauses == 0
