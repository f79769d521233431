"""popgate.spark.read.pull_size: pulls as large as what the broker gives at once."""

from __future__ import annotations

from popgate.spark.read.pull_size import PullSize


def asked_for(size: PullSize, *, limit: int, pulls: int) -> list[int]:
    """What pulls ask for one after the other, of a broker that gives so many at most."""
    asked = []
    for _ in range(pulls):
        asked.append(size.next())
        size.learn(min(asked[-1], limit))
    return asked


def test_the_first_answer_tells_it() -> None:
    assert asked_for(PullSize(1024), limit=32, pulls=3) == [1024, 32, 32]
    assert asked_for(PullSize(1024), limit=2000, pulls=3) == [1024] * 3
    assert asked_for(PullSize(5), limit=32, pulls=3) == [5] * 3


def test_there_is_a_least() -> None:
    assert asked_for(PullSize(1024), limit=1, pulls=2) == [1024, 8]
    assert asked_for(PullSize(5), limit=1, pulls=2) == [5, 5]


def test_one_pull_of_many_tries_more() -> None:
    asked = asked_for(PullSize(1024), limit=32, pulls=100)
    assert [at for at, most in enumerate(asked) if most == 64] == [31, 63, 95]


def test_it_follows_what_a_broker_gives() -> None:
    size = PullSize(1024)
    asked_for(size, limit=32, pulls=10)
    assert asked_for(size, limit=2000, pulls=32 * 5)[-1] == 1024
    assert asked_for(size, limit=8, pulls=9)[-1] == 8


def test_a_short_answer_among_others_makes_no_smaller_ones() -> None:
    size = PullSize(1024)
    for given in (1024, 3, 1, 2, 3, 4, 5, 6):
        size.learn(given)
    assert size.next() == 1024
