"""brokers.remote.cluster.name_servers: any one that is alive suffices."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from brokers.remote.cluster.name_servers import NameServers
from brokers.remote.rpc.connection_pool import ConnectionPool
from brokers.remote.settings import RemoteSettings
from popgate.errors import BrokerUnavailable
from popgate.testing.clock import MovableClock
from popgate.testing.peers import ScriptedNameServer
from popgate.wire.frames.codes import RequestCode, ResponseCode

ROUTE = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)


@pytest.fixture
async def three() -> AsyncIterator[list[ScriptedNameServer]]:
    servers = [ScriptedNameServer() for _ in range(3)]
    for one in servers:
        await one.start()
        one.add_broker("a", "127.0.0.1:1")
        one.add_topic("t")
    yield servers
    for one in servers:
        await one.stop()


Make = Callable[..., NameServers]


@pytest.fixture
async def make(links: ConnectionPool, clock: MovableClock) -> AsyncIterator[Make]:
    made: list[NameServers] = []

    def make_one(*addresses: str, **more: Any) -> NameServers:
        settings = RemoteSettings(name_servers=addresses)
        made.append(NameServers(links, settings, clock, chance=random.Random(3), **more))
        return made[-1]

    yield make_one
    for one in made:
        await one.stop()


async def ask(servers: NameServers, topic: str = "t", timeout_s: float = 3.0) -> int:
    return (await servers.ask(ROUTE, {"topic": topic}, timeout_s=timeout_s)).code


async def test_one_of_them_is_asked_and_kept(make: Make, three: list[ScriptedNameServer]) -> None:
    servers = make(*(one.address for one in three))
    await servers.start()
    for _ in range(10):
        assert await ask(servers) == 0
    assert sorted(len(one.requests) for one in three) == [0, 0, 10]
    assert servers.age() == 0.0


async def test_gateways_do_not_all_ask_the_same_one(links: ConnectionPool, clock: MovableClock) -> None:
    addresses = tuple(f"10.0.0.{one}:9876" for one in range(3))
    first = set()
    for seed in range(20):
        servers = NameServers(
            links, RemoteSettings(name_servers=addresses), clock, chance=random.Random(seed)
        )
        await servers.start()
        assert sorted(servers.addresses) == sorted(addresses)
        first.add(servers.addresses[0])
        await servers.stop()
    assert len(first) == 3


async def test_any_one_that_is_alive_suffices(make: Make, three: list[ScriptedNameServer]) -> None:
    servers = make(*(one.address for one in three))
    await servers.start()
    assert await ask(servers) == 0
    alive = list(three)
    for _ in range(2):
        (asked,) = (one for one in alive if one.address == servers.addresses[0])
        await asked.stop()
        alive.remove(asked)
        assert await ask(servers) == 0
        assert await ask(servers) == 0
    assert servers.addresses[0] == alive[0].address
    await alive[0].stop()
    with pytest.raises(BrokerUnavailable, match=r"no name server can be reached: .*Connection refused"):
        await ask(servers)
    await three[1].start()
    for _ in range(5):
        # They rest a moment before they are tried again.
        servers._clock.advance(1.0)  # type: ignore[attr-defined]
        try:
            assert await ask(servers) == 0
            break
        except BrokerUnavailable:
            continue
    assert servers.addresses[0] == three[1].address


async def test_one_that_is_silent_costs_a_part_of_the_time_only(
    make: Make, three: list[ScriptedNameServer], clock: MovableClock, loop_turns: Callable[[], Any]
) -> None:
    servers = make(*(one.address for one in three))
    await servers.start()
    for one in three:
        one.silent = one.address == servers.addresses[0]
    asking = asyncio.create_task(ask(servers, timeout_s=3.0))
    while not asking.done():
        await clock.run(0.25, loop_turns)
    assert await asking == 0
    assert clock.monotonic() - 1000.0 <= 1.5
    assert not next(one for one in three if one.address == servers.addresses[0]).silent


async def test_what_one_does_not_know_another_may(make: Make, three: list[ScriptedNameServer]) -> None:
    servers = make(*(one.address for one in three))
    await servers.start()
    first = next(one for one in three if one.address == servers.addresses[0])
    first.topics.clear()
    assert await ask(servers) == 0
    for one in three:
        one.topics.clear()
    assert await ask(servers) == ResponseCode.TOPIC_NOT_EXIST


async def test_no_such_topic_counts_more_than_trouble(make: Make, three: list[ScriptedNameServer]) -> None:
    servers = make(*(one.address for one in three))
    await servers.start()
    by_address = {one.address: one for one in three}
    order = [by_address[address] for address in servers.addresses]
    order[0].on(ROUTE, lambda request: request.answer(1, "name server not ready"))
    order[1].topics.clear()
    order[2].on(ROUTE, lambda request: request.answer(1, "name server not ready"))
    assert await ask(servers) == ResponseCode.TOPIC_NOT_EXIST
    order[1].on(ROUTE, lambda request: request.answer(1, "name server not ready"))
    assert await ask(servers) == ResponseCode.SYSTEM_ERROR


class Book:
    """Names and the addresses behind them, as a test writes them."""

    def __init__(self, **names: Sequence[str]) -> None:
        self.names = dict(names)
        self.looks = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.looks += 1
        if host not in self.names:
            raise OSError(-2, "Name or service not known")
        return self.names[host]


async def test_a_name_that_cannot_be_one_leaves_the_other_servers(
    make: Make, three: list[ScriptedNameServer]
) -> None:
    servers = make(three[0].address, "ns..2:9876")
    await servers.start()
    assert await ask(servers) == 0
    assert "the name ns..2 cannot be looked up" in servers.nameless["ns..2:9876"]


async def test_a_name_stands_for_several_servers_and_is_looked_up_again(
    make: Make, three: list[ScriptedNameServer], clock: MovableClock, loop_turns: Callable[[], Any]
) -> None:
    book = Book(ns=[three[0].address, three[1].address])
    servers = make("ns:9876", look_up=book)
    await servers.start()
    assert set(servers.addresses) == set(book.names["ns"])
    await ask(servers)
    kept = servers.addresses[0]
    book.names["ns"] = [three[2].address, kept]
    await clock.run(31.0, loop_turns)
    assert servers.addresses == (kept, three[2].address)
    # A failing look-up changes nothing.
    del book.names["ns"]
    await clock.run(31.0, loop_turns)
    assert servers.addresses == (kept, three[2].address)
    assert book.looks == 3


async def test_when_none_answers_their_names_are_looked_up_at_once(
    make: Make, three: list[ScriptedNameServer], clock: MovableClock
) -> None:
    book = Book(ns=[three[0].address])
    servers = make("ns:9876", look_up=book)
    await servers.start()
    assert await ask(servers) == 0
    await three[0].stop()
    book.names["ns"] = [three[1].address]
    clock.advance(2.0)
    assert await ask(servers) == 0
    assert servers.addresses == (three[1].address,)


async def test_a_name_that_nobody_knows_is_told_at_the_start(make: Make) -> None:
    servers = make("nowhere:9876", look_up=Book())
    with pytest.raises(BrokerUnavailable, match="the name nowhere cannot be looked up: Name or service not"):
        await servers.start()


async def test_one_name_that_nobody_knows_keeps_no_other_server_away(
    make: Make, three: list[ScriptedNameServer]
) -> None:
    servers = make("nowhere:9876", three[0].address, look_up=Book())
    await servers.start()
    assert await ask(servers) == 0


async def test_a_slow_look_up_holds_back_nobody_beyond_his_time(
    make: Make, three: list[ScriptedNameServer], clock: MovableClock
) -> None:
    going = asyncio.Event()

    async def slow(host: str, port: int) -> Sequence[str]:
        if servers.addresses:
            await going.wait()
        return [three[0].address]

    servers = make("ns:9876", look_up=slow)
    await servers.start()
    await three[0].stop()
    clock.advance(2.0)
    with pytest.raises(BrokerUnavailable, match="no name server can be reached"):
        await ask(servers, timeout_s=0.05)
    going.set()
