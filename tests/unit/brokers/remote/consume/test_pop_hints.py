"""Whom to ask first, and for how much."""

from __future__ import annotations

import pytest

from brokers.remote.consume.pop_hints import PopHints, UnservedGroups
from popgate.testing import MovableClock

SHELF = ("T", "G")
WHY = "there is no such group"


@pytest.fixture
def recent(clock) -> PopHints:
    return PopHints(clock)


def test_a_broker_had_something_for_a_moment(recent, clock):
    assert not recent.had(SHELF, "a")
    recent.told(SHELF, "a", with_messages=True)
    assert recent.had(SHELF, "a")
    assert not recent.had(SHELF, "b")
    assert not recent.had(("T", "H"), "a")
    clock.advance(2.0)
    assert not recent.had(SHELF, "a")


def test_one_that_was_found_empty_has_nothing(recent):
    recent.told(SHELF, "a", with_messages=True)
    recent.told(SHELF, "a", with_messages=False)
    recent.told(SHELF, "a", with_messages=False)
    assert not recent.had(SHELF, "a")


def test_one_that_had_nothing_is_asked_now_and_then_and_one_that_failed_less_often(recent, clock):
    assert recent.is_due(SHELF, "a")
    assert not recent.is_due(SHELF, "a")
    assert recent.is_due(("T", "H"), "a")
    recent.told(SHELF, "a", with_messages=False)
    assert not recent.is_due(SHELF, "a")
    clock.advance(1.0)
    assert recent.is_due(SHELF, "a")
    recent.told(SHELF, "a", with_messages=True)
    recent.failed(SHELF, "a")
    assert not recent.had(SHELF, "a")
    clock.advance(9.9)
    assert not recent.is_due(SHELF, "a")
    clock.advance(0.2)
    assert recent.is_due(SHELF, "a")


def test_one_that_has_yet_to_answer_is_not_asked_by_others_too(recent, clock):
    assert recent.is_due(SHELF, "a")
    for _ in range(9):
        clock.advance(1.0)
        assert not recent.is_due(SHELF, "a")
    clock.advance(1.0)
    assert recent.is_due(SHELF, "a")


def test_sizes_follow_what_comes(recent):
    assert recent.size_of("T") == 1_024
    recent.sized("T", 100.0)
    assert recent.size_of("T") == 100
    for _ in range(50):
        recent.sized("T", 4_000_000.0)
    assert recent.size_of("T") == pytest.approx(4_000_000, rel=0.01)
    recent.sized("U", 0.0)
    assert recent.size_of("U") == 1


def test_it_is_bounded(recent):
    for number in range(20_000):
        recent.told((str(number), "G"), "a", with_messages=True)
        recent.sized(str(number), 5.0)
        recent.is_due((str(number), "G"), "a")
    assert len(recent._found) <= 8_192
    assert len(recent._due) <= 8_192
    assert len(recent._sizes) <= 8_192


@pytest.fixture
def unserved(clock: MovableClock) -> UnservedGroups:
    return UnservedGroups(clock)


def test_a_refusal_is_told_until_the_group_is_served_there(
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


def test_a_refusal_that_is_not_repeated_is_obsolete(unserved: UnservedGroups, clock: MovableClock):
    unserved.refused("G", "broker-b", WHY)
    clock.advance(200)
    unserved.refused("H", "broker-b", WHY)
    clock.advance(200)
    assert list(unserved.now()) == [("H", "broker-b")]


def test_refusals_are_bounded(unserved: UnservedGroups):
    for number in range(3_000):
        unserved.refused(f"G{number}", "broker-b", WHY)
    assert len(unserved.now()) == 1_024
