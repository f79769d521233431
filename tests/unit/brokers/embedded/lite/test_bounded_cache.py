"""A bounded memory of what stands in the store, too."""

from __future__ import annotations

from brokers.embedded.lite.bounded_cache import BoundedCache


class Thing:
    def __init__(self, turn: int = -1) -> None:
        self.turn = turn

    def busy(self, turn: int) -> bool:
        return self.turn == turn


def test_the_one_used_longest_ago_is_forgotten() -> None:
    keeping: BoundedCache[str, Thing] = BoundedCache(2, lambda: 1)
    first = keeping.add("a", Thing())
    keeping.add("b", Thing())
    assert keeping.get("a") is first
    keeping.add("c", Thing())
    assert (keeping.get("b"), keeping.get("a"), len(keeping)) == (None, first, 2)


def test_what_the_store_does_not_have_yet_is_never_forgotten() -> None:
    turn = 7
    keeping: BoundedCache[int, Thing] = BoundedCache(4, lambda: turn)
    for number in range(50):
        keeping.add(number, Thing(7))
    assert len(keeping) == 50
    turn = 8
    for number in range(50, 150):
        keeping.add(number, Thing())
    assert len(keeping) == 4, "what is written makes room again, also for what was too much"


def test_what_was_just_added_stays_though_everything_else_is_busy() -> None:
    """Else the next look would find in the store what its owner has changed since."""
    keeping: BoundedCache[str, Thing] = BoundedCache(2, lambda: 7)
    for name in ("a", "b"):
        keeping.add(name, Thing(7))
    added = keeping.add("c", Thing())
    assert keeping.get("c") is added
    assert len(keeping) == 3


def test_what_belongs_to_something_deleted_is_dropped() -> None:
    keeping: BoundedCache[tuple[int, str], Thing] = BoundedCache(9, lambda: 1)
    for key in ((1, "a"), (1, "b"), (2, "a")):
        keeping.add(key, Thing())
    keeping.drop_if(lambda key: key[0] == 1)
    assert (len(keeping), keeping.drop((1, "a"))) == (1, None)
