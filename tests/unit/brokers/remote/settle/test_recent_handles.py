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


def test_of_several_it_is_known_whether_one_was_there():
    spent = RecentHandles(most=3)
    assert not spent.add_all(["a", "b"])
    assert spent.add_all(["b", "c"])
    assert spent.add_all(["d", "d"])  # in a new generation
    assert spent.add_all(["e", "a"])  # of the older one
    assert not spent.add_all(["f", "g"])  # in a new one again
    assert not spent.add_all([])
    assert spent.add_all(["g"])
    assert "b" not in spent
