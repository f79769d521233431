"""`popgate dead-letter redrive` goes no faster than it was asked to."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.cli.domain import dead_letters
from proxy.cli.domain.dead_letters import _steps


class Time:
    """Stands still but for sleeps and what requests take."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.slept.append(seconds)
        self.now += seconds


class Letters:
    """An admin port with so many dead letters; each request takes `takes_s`."""

    def __init__(self, time: Time, count: int, takes_s: float = 0.0) -> None:
        self.time, self.left, self.takes_s = time, count, takes_s
        self.moved: list[tuple[float, int]] = []

    def post(self, *_path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.time.now += self.takes_s
        count = min(body["limit"], self.left)
        self.left -= count
        self.moved.append((self.time.now, count))
        return {"moved": [{}] * count, "refused": [], "next": 1 if self.left else None, "until": 2}


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(dead_letters, "time", made)
    return made


def run(letters: Letters, limit: int | None, per_second: float | None) -> None:
    body: dict[str, Any] = {"messages": [], "topic": "", "dry_run": False}
    assert list(_steps(letters, "g", body, limit, per_second))  # type: ignore[arg-type]


@pytest.mark.parametrize("takes_s", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("rate", [0.5, 3.0, 20.0, 100.0])
def test_never_more_than_a_steps_worth_is_ahead_of_the_rate(time: Time, rate: float, takes_s: float) -> None:
    letters = Letters(time, 50, takes_s)
    began = time.now
    run(letters, None, rate)
    assert (letters.left, sum(count for _, count in letters.moved)) == (0, 50)
    done = 0
    for at, count in letters.moved:
        assert done <= rate * (at - began) + 1e-6
        done += count
    # Steps are small, so that the letters come one after the other and not in lumps of seconds.
    assert max(count for _, count in letters.moved) <= max(rate / 4, 1)


def test_a_limit_holds_with_a_rate(time: Time) -> None:
    letters = Letters(time, 50)
    run(letters, 7, 20.0)
    assert letters.left == 43


def test_without_a_rate_nobody_waits(time: Time) -> None:
    letters = Letters(time, 1_000)
    run(letters, None, None)
    assert (letters.left, time.slept) == (0, [])
