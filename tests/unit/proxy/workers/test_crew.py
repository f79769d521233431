"""proxy.workers.crew: who gets the next connection, how the gateway is, and how long a start is put off."""

from __future__ import annotations

import itertools
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.workers.channel import Channel
from proxy.workers.crew import (
    LIVED_S,
    Backoff,
    Member,
    Role,
    Stage,
    choose,
    choose_for_admin,
    end_told,
    state_of,
)

_numbers = itertools.count(1)
NOBODY: Any = None


def member(role: Role = Role.WORKER, stage: Stage = Stage.READY, **more: Any) -> Member:
    channel: Channel = NOBODY
    usual: dict[str, Any] = {"serves": frozenset({0}), "generation": 0, "since": 0.0, "has_admin": True}
    return Member(next(_numbers), role, 1, channel, stage=stage, **{**usual, **more})


@given(st.integers(1, 6), st.lists(st.one_of(st.none(), st.integers(0, 100)), max_size=60))
def test_connections_never_differ_by_more_than_one_while_only_new_ones_come(
    count: int, events: list[int | None]
) -> None:
    """None: a connection comes. A number: one of those that are there goes."""
    members = [member() for _ in range(count)]
    only_came = True
    for turn, event in enumerate(events):
        if event is None:
            chosen = choose(members, 0)[0]
            assert chosen.connections == min(one.connections for one in members)
            chosen.connections += 1
            chosen.turn = turn
        else:
            there = [one for one in members if one.connections]
            if there:
                there[event % len(there)].connections -= 1
                only_came = False
        if only_came:
            counts = [one.connections for one in members]
            assert max(counts) - min(counts) <= 1


def test_four_connections_of_two_workers_are_two_each() -> None:
    members = [member(), member()]
    for turn in range(4):
        chosen = choose(members, 0)[0]
        chosen.connections, chosen.turn = chosen.connections + 1, turn
    assert [one.connections for one in members] == [2, 2]


def test_only_who_serves_the_door_gets_its_connections() -> None:
    fit = member(connections=9)
    others = [
        member(stage=Stage.STARTING),
        member(stage=Stage.DRAINING),
        member(serves=frozenset({7})),
        member(gone=True),
        member(Role.HOST, serves=frozenset()),
    ]
    assert choose([*others, fit], 0) == [fit]
    assert choose(others, 0) == []


def test_operators_are_sent_to_the_host_then_to_the_oldest_that_serves() -> None:
    host = member(Role.HOST)
    ready, younger = member(connections=50), member()
    starting, draining = member(stage=Stage.STARTING), member(stage=Stage.DRAINING)
    silent, gone = member(has_admin=False), member(gone=True)
    everybody = [gone, silent, draining, starting, younger, ready, host]
    assert choose_for_admin(everybody) == [host, ready, younger, starting, draining]
    host.stage = Stage.DRAINING
    assert choose_for_admin(everybody)[0] is ready


@pytest.mark.parametrize(
    ("members", "leaving", "state"),
    [
        ([], False, "starting"),
        ([member(Role.HOST)], False, "starting"),
        ([member(stage=Stage.STARTING), member(stage=Stage.DRAINING)], False, "starting"),
        ([member(stage=Stage.STARTING), member()], False, "ready"),
        ([member()], True, "draining"),
        ([], True, "draining"),
    ],
)
def test_a_gateway_is_ready_while_one_of_its_workers_is(
    members: list[Member], leaving: bool, state: str
) -> None:
    assert state_of(members, leaving=leaving) == state


def test_the_first_death_costs_no_time_and_a_row_of_them_more_and_more() -> None:
    backoff = Backoff()
    rests = [backoff.after(member(ready_at=None), 10.0 * turn) for turn in range(12)]
    assert rests[:5] == [0.0, 0.25, 0.5, 1.0, 2.0]
    assert rests[-1] == 30.0


def test_who_served_for_a_while_is_replaced_at_once_again() -> None:
    backoff = Backoff()
    for _ in range(4):
        backoff.after(member(ready_at=None), 1.0)
    assert backoff.after(member(ready_at=0.0), LIVED_S - 0.1) > 0.0
    assert backoff.after(member(ready_at=0.0), LIVED_S) == 0.0
    assert backoff.after(member(ready_at=None), LIVED_S) == 0.25


def test_an_end_is_told_in_words() -> None:
    assert end_told(-signal.SIGSEGV) == "killed by SIGSEGV"
    assert end_told(-63) == "killed by signal 63"
    assert end_told(3) == "ended with 3"
