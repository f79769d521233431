"""brokers.remote.clients.departures: brokers are told of each client that left once more, a while later."""

from __future__ import annotations

import pytest

from brokers.remote.clients import departures
from brokers.remote.clients.departures import AGAIN_S, Departure, Departures
from brokers.remote.clients.link_slots import Membership, Role


def departure(group: str, client_id: str = "c", seat: int = 0) -> Departure:
    return Departure(client_id, Membership(Role.PRODUCER, group), seat, frozenset({"10.0.0.1:10911"}))


def test_each_is_due_once_in_the_order_of_the_departures() -> None:
    left = Departures()
    for at, group in enumerate("gh"):
        left.add(departure(group), float(at))
    assert left.take_due(AGAIN_S - 0.5) == []
    assert left.take_due(AGAIN_S + 0.5) == [departure("g")._replace(again=True)]
    assert left.take_due(AGAIN_S + 1.5) == [departure("h")._replace(again=True)]
    assert left.take_due(AGAIN_S + 99.0) == []


def test_of_each_seat_the_last_one_counts() -> None:
    left = Departures()
    left.add(departure("g", "one"), 0.0)
    left.add(departure("g", "other", seat=1), 1.0)
    left.add(departure("g", "two"), 2.0)
    assert [one.client_id for one in left.take_due(AGAIN_S + 1.5)] == ["other"]
    assert [one.client_id for one in left.take_due(AGAIN_S + 2.5)] == ["two"]


def test_of_too_many_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departures, "_MOST", 2)
    left = Departures()
    for at, group in enumerate("ghi"):
        left.add(departure(group), float(at))
    assert [one.membership.group for one in left.take_due(AGAIN_S + 9.0)] == ["h", "i"]
