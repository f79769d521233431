"""brokers.remote.clients.link_slots: who of a group is told on which link."""

from __future__ import annotations

from brokers.remote.clients.link_slots import LinkSlots, Membership, Role

G = Membership(Role.CONSUMER, "g")
P = Membership(Role.PRODUCER, "g")


def test_the_first_of_every_group_has_the_first_seat() -> None:
    seats = LinkSlots(4)
    assert [seats.take(G, name) for name in "abc"] == [0, 1, 2]
    assert seats.take(P, "a") == 0
    assert seats.highest() == 2
    assert repr(seats) == "<LinkSlots of 2 groups, merged 0>"


def test_a_seat_is_free_only_when_brokers_were_told() -> None:
    seats = LinkSlots(4)
    seats.take(G, "a")
    seats.leave(G, "a", 0)
    assert G not in seats
    assert seats.take(G, "b") == 1
    assert G in seats
    assert seats.vacated(G, 0) is None
    assert seats.take(G, "c") == 0


def test_a_merged_client_has_the_seat_of_one_that_went() -> None:
    seats = LinkSlots(2)
    assert [seats.take(G, name) for name in "abcde"] == [0, 1, None, None, None]
    assert seats.merged == 3
    seats.leave(G, "c", None)
    seats.leave(G, "a", 0)
    assert seats.vacated(G, 0) == "d"
    assert seats.merged == 1
    seats.leave(G, "d", 0)
    seats.leave(G, "e", None)
    assert seats.vacated(G, 0) is None
    assert seats.merged == 0


def test_a_group_without_clients_is_forgotten() -> None:
    seats = LinkSlots(1)
    seats.take(G, "a")
    seats.leave(G, "a", 0)
    seats.vacated(G, 0)
    assert G not in seats
    assert seats.highest() == -1


def test_who_sits_where() -> None:
    seats = LinkSlots(2)
    for name in "abc":
        seats.take(G, name)
    assert [seats.seated(G, seat) for seat in range(3)] == ["a", "b", None]
    assert seats.seated(P, 0) is None
    seats.leave(G, "a", 0)
    assert seats.seated(G, 0) is None
    seats.vacated(G, 0)
    assert seats.seated(G, 0) == "c"


def test_a_free_seat_can_be_reserved_until_brokers_were_told() -> None:
    seats = LinkSlots(2)
    assert seats.reserve(G, 0)
    assert not seats.reserve(G, 0)
    assert G not in seats
    assert seats.take(G, "a") == 1
    assert not seats.reserve(G, 1)
    assert seats.take(G, "b") is None
    assert seats.vacated(G, 0) == "b"
    assert seats.seated(G, 0) == "b"
    assert seats.reserve(P, 1)
    assert seats.vacated(P, 1) is None
    assert P not in seats
