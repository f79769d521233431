"""What may be under way: whose budget refuses, with which sentence, and that nothing stays counted."""

from __future__ import annotations

import pytest

from popgate.errors import TooManyRequests
from processors.budgets import Budgets

MB = 1024 * 1024


def budgets(process: int = 1000, group: int = 400, connection: int = 300) -> Budgets:
    return Budgets(process_bytes=process, group_bytes=group, connection_bytes=connection)


def test_what_was_taken_is_counted_until_it_is_released() -> None:
    all_of_them = budgets()
    first, second = all_of_them.allowance("a"), all_of_them.allowance("a")
    first.take(100)
    second.for_group("g")
    second.take(50)
    assert (all_of_them.used, all_of_them.of_connection("a"), all_of_them.of_group("g")) == (150, 150, 50)
    first.release()
    first.release()
    assert (all_of_them.used, all_of_them.of_connection("a"), all_of_them.of_group("g")) == (50, 50, 50)
    second.add(-50)
    second.release()
    assert (all_of_them.used, len(all_of_them)) == (0, 0)


def test_what_was_taken_before_the_group_was_known_is_of_no_group() -> None:
    all_of_them = budgets()
    with all_of_them.allowance("a") as held:
        held.take(10)
        held.for_group("g")
        held.add(20)
        assert (all_of_them.of_group("g"), all_of_them.of_connection("a")) == (20, 30)
        held.for_group("g")
        with pytest.raises(ValueError, match="'g'"):
            held.for_group("h")
    assert (all_of_them.used, len(all_of_them)) == (0, 0)


@pytest.mark.parametrize(
    ("limits", "names"),
    [
        ({"connection": 100}, "connection 10.0.0.1:5 has 90 of its 100 bytes"),
        ({"group": 100}, "consumer group g has 90 of its 100 bytes"),
        ({"process": 100}, "the gateway has 90 of its 100 bytes"),
    ],
)
def test_a_refusal_names_the_budget_its_limit_and_its_use(limits: dict[str, int], names: str) -> None:
    all_of_them = budgets(**limits)
    held = all_of_them.allowance("10.0.0.1:5")
    held.for_group("g")
    held.take(90)
    again = all_of_them.allowance("10.0.0.1:5")
    again.for_group("g")
    with pytest.raises(TooManyRequests, match=names) as refused:
        again.take(20)
    assert "20 more" in refused.value.sentence
    assert refused.value.retryable
    assert refused.value.alone == ("connection" in limits)
    assert again.size == 0
    assert all_of_them.used == 90


def test_one_message_above_every_limit_passes_while_nothing_else_is_under_way() -> None:
    all_of_them = budgets(process=10, group=10, connection=10)
    held = all_of_them.allowance("a")
    held.for_group("g")
    held.take(4 * MB)
    other = all_of_them.allowance("b")
    with pytest.raises(TooManyRequests, match="the gateway"):
        other.take(1)
    held.release()
    other.take(5 * MB)


def test_room_is_the_smallest_of_what_the_budgets_leave() -> None:
    all_of_them = budgets(process=1000, group=400, connection=300)
    held = all_of_them.allowance("a")
    assert held.room() == 300
    held.for_group("g")
    held.add(250)
    assert held.room() == 50
    other = all_of_them.allowance("b")
    other.for_group("g")
    assert other.room() == 150
    other.add(149)
    assert other.room() == 1
    other.add(1)
    with pytest.raises(TooManyRequests, match="consumer group g has 400 of its 400"):
        other.room()
    third = all_of_them.allowance("c")
    third.for_group("h")
    assert third.room() == 300


def test_a_greedy_group_leaves_as_much_free_as_it_has() -> None:
    all_of_them = budgets(process=1000, group=1000, connection=1000)
    greedy = all_of_them.allowance("a")
    greedy.for_group("g")
    while True:
        try:
            greedy.take(10)
        except TooManyRequests as refused:
            assert "which may not hold more than is left free" in refused.sentence  # noqa: PT017
            break
    assert greedy.size == 500
    second = all_of_them.allowance("b")
    second.for_group("h")
    assert second.room() == 500
    second.add(250)
    with pytest.raises(TooManyRequests, match="the gateway has 750 of its 1000"):
        second.room()
    third = all_of_them.allowance("c")
    third.for_group("i")
    third.take(125)
    assert all_of_them.used == 875
