from __future__ import annotations

from typing import Any

from popgate.model import StoredMessage, TransactionCheck
from popgate.testing.clock import MovableClock
from processors.clients.check_router import CheckRouter
from processors.clients.client_registry import ClientKind, ClientRegistry
from processors.messaging import MessagingProcessor

HALF = StoredMessage("orders", "b", 0, 0, 0, 0, 0, 0, "", 0, "", b"half", b"")
CHECK = TransactionCheck("orders", "orders", "t1", HALF, 1)


def everybody(*_: Any, **__: Any) -> None:
    """Where nobody asks for permissions."""


def made(clients: ClientRegistry, make_client: Any, *names: str) -> list[Any]:
    producers = [make_client(n, kind=ClientKind.PRODUCER, topics=frozenset({"orders"})) for n in names]
    for producer in producers:
        clients.register(producer)
    return producers


def test_producers_are_asked_in_turns(clock: MovableClock, make_client: Any, observer: Any) -> None:
    clients = ClientRegistry(clock)
    producers = made(clients, make_client, "p1", "p2", "p3")
    checking = CheckRouter(clients, observer, everybody)
    assert all(checking.ask(CHECK) for _ in range(6))
    assert [len(producer.checks) for producer in producers] == [2, 2, 2]
    assert observer.of("checked") == [("orders", True)] * 6


def test_scenario_06_the_next_producer_is_asked_when_one_cannot_take_it(
    clock: MovableClock, make_client: Any, observer: Any
) -> None:
    clients = ClientRegistry(clock)
    full, dead, good = made(clients, make_client, "full", "dead", "good")
    full.full = True
    dead.alive = False
    checking = CheckRouter(clients, observer, everybody)
    assert checking.ask(CHECK)
    assert checking.ask(CHECK)
    assert (len(full.checks), len(dead.checks), len(good.checks)) == (0, 0, 2)


def test_a_check_that_nobody_can_take_is_not_asked(
    clock: MovableClock, make_client: Any, observer: Any
) -> None:
    clients = ClientRegistry(clock)
    checking = CheckRouter(clients, observer, everybody)
    assert not checking.ask(CHECK)
    clients.register(make_client("reader", group="g", topics=frozenset({"orders"})))
    (full,) = made(clients, make_client, "full")
    full.full = True
    assert not checking.ask(CHECK)
    assert observer.of("checked") == [("orders", False)] * 2


def test_a_classic_producer_is_asked_about_half_messages_of_its_group_and_no_others(
    clock: MovableClock, make_client: Any, observer: Any
) -> None:
    clients = ClientRegistry(clock)
    (grpc,) = made(clients, make_client, "grpc")
    first, second = (
        make_client(name, key=f"{name}\npayers", kind=ClientKind.PRODUCER, producer_group="payers")
        for name in ("p1", "p2")
    )
    clients.register(first)
    clients.register(second)
    checking = CheckRouter(clients, observer, everybody)
    theirs = TransactionCheck("orders", "payers", "t2", HALF, 1)
    assert all(checking.ask(theirs) for _ in range(4))
    assert [len(one.checks) for one in (first, second, grpc)] == [2, 2, 0]
    assert not checking.ask(TransactionCheck("orders", "others", "t3", HALF, 1))
    assert checking.ask(CHECK)
    assert grpc.checks == [CHECK]


async def test_the_broker_asks_through_the_processor(
    processor: MessagingProcessor, broker: Any, make_client: Any
) -> None:
    assert not broker.handler(CHECK)
    (producer,) = made(processor.clients, make_client, "p1")
    assert broker.handler(CHECK)
    assert producer.checks == [CHECK]
