"""proxy.cli.domain.receive: how often a gateway is asked that has nothing."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.cli.domain import receive
from proxy.cli.domain.receive import _await_messages


class Time:
    """Stands still but for sleeps, and for what a request takes."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Impatient:
    """An admin port that lets nobody wait. It has a message `after` so many requests; 0: never."""

    def __init__(self, time: Time, after: int = 0) -> None:
        self.time, self.after = time, after
        self.asked: list[float] = []

    def post(self, *_path: str, body: dict[str, Any], wait_s: float) -> dict[str, Any]:
        assert body["wait_ms"] == round(wait_s * 1000)
        self.asked.append(self.time.now)
        self.time.now += 0.01
        return {"messages": [{}] if len(self.asked) == self.after else []}


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(receive, "time", made)
    return made


def test_a_gateway_that_lets_nobody_wait_is_asked_now_and_then(time: Time) -> None:
    gateway = Impatient(time)
    assert _await_messages(gateway, "t", {}, 60.0, follow=False) == []  # type: ignore[arg-type]
    assert 160.0 <= time.now < 161.0
    assert len(gateway.asked) < 200


def test_who_follows_rests_too(time: Time) -> None:
    gateway = Impatient(time, after=100)
    assert _await_messages(gateway, "t", {}, 0.0, follow=True) == [{}]  # type: ignore[arg-type]
    assert time.now > 140.0


def test_who_does_not_wait_asks_once(time: Time) -> None:
    gateway = Impatient(time)
    assert _await_messages(gateway, "t", {}, 0.0, follow=False) == []  # type: ignore[arg-type]
    assert gateway.asked == [100.0]
