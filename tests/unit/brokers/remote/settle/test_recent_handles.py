"""A bounded memory of handles."""

from __future__ import annotations

from brokers.remote.settle.recent_handles import RecentHandles


def test_what_was_added_is_known_until_it_is_discarded():
    spent = RecentHandles()
    spent.add("one")
    assert "one" in spent
    assert "two" not in spent
    spent.discard("one")
    spent.discard("two")
    assert "one" not in spent


def test_the_newest_are_remembered_and_no_more_than_two_generations():
    spent = RecentHandles(most=100)
    for number in range(1_000):
        spent.add(str(number))
        assert len(spent) <= 200
    assert all(str(number) in spent for number in range(900, 1_000))
    assert "0" not in spent


def test_also_one_of_the_older_generation_can_be_discarded():
    spent = RecentHandles(most=2)
    for handle in "abc":
        spent.add(handle)
    spent.discard("a")
    assert "a" not in spent
    assert "b" in spent
