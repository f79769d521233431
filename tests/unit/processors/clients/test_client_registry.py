from __future__ import annotations

from typing import Any

import pytest

from popgate.context import Context
from popgate.errors import TooManyRequests
from popgate.model import Reading
from popgate.testing.clock import MovableClock
from processors.clients.client_registry import ClientHandle, ClientKind, ClientRegistry, connection_of


@pytest.fixture
def clients(clock: MovableClock) -> ClientRegistry:
    return ClientRegistry(clock, max_clients=3, max_topics=4, expiry_s=120.0)


@pytest.fixture
def leavings(clients: ClientRegistry) -> list[tuple[str, bool]]:
    seen: list[tuple[str, bool]] = []

    def listen(handle: ClientHandle, said_so: bool) -> None:
        seen.append((handle.client_id, said_so))

    clients.on_leave = listen
    return seen


def producer(make_client: Any, name: str, *topics: str) -> Any:
    return make_client(name, kind=ClientKind.PRODUCER, topics=frozenset(topics))


def test_producers_are_found_by_topic_and_consumers_by_group(
    clients: ClientRegistry, make_client: Any
) -> None:
    one, two = producer(make_client, "p1", "orders", "bills"), producer(make_client, "p2", "orders")
    reader = make_client("c1", group="readers", topics=frozenset({"orders"}))
    for handle in (one, two, reader):
        clients.register(handle)
    assert clients.producers_of("orders") == [one, two]
    assert clients.producers_of("bills") == [one]
    assert clients.producers_of("nothing") == []
    assert clients.consumers_of("readers") == [reader]
    assert clients.get("c1") is reader
    assert len(clients) == 3


def test_the_producer_that_was_asked_goes_to_the_end(clients: ClientRegistry, make_client: Any) -> None:
    one, two = producer(make_client, "p1", "orders"), producer(make_client, "p2", "orders")
    clients.register(one)
    clients.register(two)
    clients.rotate(clients.producers_of("orders")[0], "orders")
    clients.rotate(producer(make_client, "stranger"), "orders")
    assert clients.producers_of("orders") == [two, one]


def test_newer_settings_replace_the_older_and_keep_what_was_sent_to(
    clients: ClientRegistry, make_client: Any
) -> None:
    old, new = producer(make_client, "p1", "orders"), producer(make_client, "p1", "bills")
    clients.register(old)
    clients.produces("p1", "seen")
    clients.register(new)
    for topic in ("orders", "bills", "seen"):
        assert clients.producers_of(topic) == [new]


def test_the_end_of_an_older_stream_does_not_remove_the_newer(
    clients: ClientRegistry, make_client: Any, leavings: list[tuple[str, bool]]
) -> None:
    old, new = make_client("c1", group="g"), make_client("c1", group="g")
    clients.register(old)
    clients.register(new)
    clients.disconnected(old)
    assert not clients.unregister("c1", old)
    assert clients.consumers_of("g") == [new]
    assert leavings == []


def test_scenario_06_a_producer_is_known_for_what_it_sends_to(
    clients: ClientRegistry, make_client: Any
) -> None:
    clients.register(producer(make_client, "p1"))
    clients.register(make_client("c1", group="g"))
    clients.produces("p1", "orders")
    clients.produces("c1", "orders")
    clients.produces("stranger", "orders")
    assert [handle.client_id for handle in clients.producers_of("orders")] == ["p1"]


def test_a_producer_is_known_for_what_it_sent_before_its_settings_came(
    clients: ClientRegistry, make_client: Any
) -> None:
    changes: list[tuple[str, frozenset[str]]] = []
    clients.on_change = lambda handle, topics: changes.append((handle.client_id, topics))
    for topic in ("orders", "bills"):
        clients.produces("p1", topic)
    clients.produces("c1", "orders")
    clients.register(producer(make_client, "p1", "named"))
    clients.register(make_client("c1", group="g"))
    assert [handle.client_id for handle in clients.producers_of("orders")] == ["p1"]
    assert changes == [("p1", frozenset({"named", "orders", "bills"})), ("c1", frozenset())]
    # Once: who comes anew has told all.
    clients.unregister("p1")
    clients.register(producer(make_client, "p1"))
    assert clients.producers_of("orders") == []


def test_a_client_that_says_good_bye_is_gone_everywhere(
    clients: ClientRegistry, make_client: Any, leavings: list[tuple[str, bool]]
) -> None:
    clients.register(producer(make_client, "p1", "orders"))
    clients.register(make_client("c1", group="g"))
    assert clients.unregister("p1")
    assert clients.unregister("c1")
    assert not clients.unregister("c1")
    assert clients.producers_of("orders") == []
    assert clients.consumers_of("g") == []
    assert leavings == [("p1", True), ("c1", True)]
    assert "topics-produced-to 0 groups 0" in repr(clients)


def test_a_client_without_stream_and_heartbeat_expires_after_120_seconds(
    clients: ClientRegistry, make_client: Any, clock: MovableClock, leavings: list[tuple[str, bool]]
) -> None:
    gone, quiet, beating = (make_client(name, group="g") for name in ("gone", "quiet", "beating"))
    for handle in (gone, quiet, beating):
        clients.register(handle)
    gone.alive = beating.alive = False
    clock.advance(60)
    assert clients.touch("beating", clock.monotonic())
    clock.advance(60)
    assert clients.expire(clock.monotonic()) == 1
    assert clients.get("gone") is None
    assert clients.consumers_of("g") == [quiet, beating]
    assert leavings == [("gone", False)]
    assert not clients.touch("gone", clock.monotonic())


def test_scenario_24_the_register_is_bounded(clients: ClientRegistry, make_client: Any) -> None:
    with pytest.raises(TooManyRequests, match="5 topics, the limit is 4"):
        clients.register(producer(make_client, "greedy", *"abcde"))
    for name in ("c1", "c2", "c3"):
        clients.register(make_client(name, group="g"))
    with pytest.raises(TooManyRequests, match="limit of 3 clients"):
        clients.register(make_client("c4", group="g"))
    clients.register(make_client("c3", group="g"))
    clients.unregister("c1")
    clients.register(producer(make_client, "p1", *"abcd"))
    clients.produces("p1", "one-more")
    assert clients.producers_of("one-more") == []


def test_a_connection_is_what_the_door_says_or_the_peer() -> None:
    assert connection_of(Context(peer="1.2.3.4:5")) == "1.2.3.4:5"
    assert connection_of(Context(peer="1.2.3.4:5", connection=7)) == 7


def test_a_classic_client_is_kept_once_for_each_of_its_memberships(
    clients: ClientRegistry, make_client: Any, leavings: list[tuple[str, bool]]
) -> None:
    one = make_client("c", key="c\ng1", group="g1")
    two = make_client("c", key="c\ng2", group="g2", alive=False)
    sender = make_client("c", key="c\np", kind=ClientKind.PRODUCER, producer_group="g1")
    for handle in (two, one, sender):
        clients.register(handle)
    assert len(clients) == 3
    assert (clients.consumers_of("g1"), clients.consumers_of("g2")) == ([one], [two])
    assert clients.producers_in("g1") == [sender]
    assert (clients.find("c", "g2"), clients.find("c", "g1")) == (two, one)
    assert clients.find("c") is one
    assert clients.find("other") is None
    assert clients.unregister("c\ng1")
    assert clients.lost(sender)
    assert not clients.lost(sender)
    assert leavings == [("c", True), ("c", False)]
    assert clients.find("c") is two
    assert clients.producers_in("g1") == []


def test_who_joins_and_leaves_a_group_is_told_and_nothing_else(
    clients: ClientRegistry, make_client: Any
) -> None:
    changed: list[str] = []
    clients.on_members.add(changed.append)
    clients.register(make_client("c", group="g"))
    clients.register(make_client("c", group="g", topics=frozenset({"orders"})))
    clients.register(producer(make_client, "p", "orders"))
    assert changed == ["g"]
    clients.register(make_client("c", group="h"))
    assert changed == ["g", "g", "h"]
    clients.unregister("c")
    clients.unregister("p")
    assert changed == ["g", "g", "h", "h"]


def test_who_moves_what_came_back_is_told_of_classic_consumers_only(
    clients: ClientRegistry, make_client: Any
) -> None:
    """Others come in crowds, and a look at all of a group for each of them would be too much."""
    told: list[str] = []
    clients.on_retries = told.append
    clients.register(make_client("c", group="g"))
    clients.register(producer(make_client, "p", "orders"))
    clients.members_changed("g")
    assert told == []
    clients.register(make_client("d", group="g", reading=Reading.UNKNOWN))
    assert told == ["g"]
    clients.unregister("d")
    assert told == ["g"]


def test_of_the_memberships_of_one_client_the_one_that_can_be_asked_is_found(
    clients: ClientRegistry, make_client: Any
) -> None:
    """A classic client has one id for all of them, and its producers answer nothing."""
    producer = make_client("c", kind=ClientKind.PRODUCER, producer_group="p", key="c/p")
    gone = make_client("c", group="old", alive=False, key="c/old")
    consumer = make_client("c", group="g", key="c/g")
    for handle in (producer, gone, consumer):
        clients.register(handle)
    assert clients.find("c") is consumer
    assert clients.find("c", "old") is gone
    assert clients.find("c", "unknown") is consumer
    clients.unregister("c/g")
    assert clients.find("c") is producer
    assert clients.find("d") is None
