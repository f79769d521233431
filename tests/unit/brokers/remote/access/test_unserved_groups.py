from __future__ import annotations

import pytest

from brokers.remote.access.unserved_groups import UnservedGroups
from popgate.testing import MovableClock

WHY = "there is no such group"


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def unserved(clock: MovableClock) -> UnservedGroups:
    return UnservedGroups(clock)


def test_it_is_told_until_the_group_is_served_there(
    unserved: UnservedGroups, caplog: pytest.LogCaptureFixture
):
    for _ in range(3):
        unserved.refused("G", "broker-b", WHY)
    assert unserved.now() == {("G", "broker-b"): WHY}
    assert [record.getMessage() for record in caplog.records] == [
        f"broker broker-b gives group G nothing, what it has waits: {WHY}"
    ]
    unserved.served("G", "broker-a")
    assert unserved.now()
    unserved.served("G", "broker-b")
    assert unserved.now() == {}


def test_what_nobody_asked_for_lately_is_over(unserved: UnservedGroups, clock: MovableClock):
    unserved.refused("G", "broker-b", WHY)
    clock.advance(200)
    unserved.refused("H", "broker-b", WHY)
    clock.advance(200)
    assert list(unserved.now()) == [("H", "broker-b")]


def test_it_is_bounded(unserved: UnservedGroups):
    for number in range(3_000):
        unserved.refused(f"G{number}", "broker-b", WHY)
    assert len(unserved.now()) == 1_024
