"""A scripted broker and links to it, by a clock that tests move."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import pytest

from brokers.remote.rpc.connection_pool import ConnectionPool
from brokers.remote.settings import RemoteSettings
from popgate.testing.clock import MovableClock
from popgate.testing.peers import ScriptedNameServer, ScriptedPeer, scripted_cluster
from tests.support.memory_network import MemoryNetwork
from tests.support.open_broker import OpenBroker

T = TypeVar("T")


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def peer() -> AsyncIterator[ScriptedPeer]:
    async with ScriptedPeer() as one:
        yield one


@pytest.fixture
async def make_links(clock: MovableClock) -> AsyncIterator[Callable[..., ConnectionPool]]:
    """Links by the movable clock, closed in the end."""
    made: list[ConnectionPool] = []

    def make(**settings: Any) -> ConnectionPool:
        links = ConnectionPool(RemoteSettings(**settings), clock, chance=random.Random(7))
        made.append(links)
        return links

    yield make
    for links in made:
        await links.close()


@pytest.fixture
def links(make_links: Callable[..., ConnectionPool]) -> ConnectionPool:
    return make_links()


Turns = Callable[[], Awaitable[None]]
_networks: WeakKeyDictionary[asyncio.AbstractEventLoop, MemoryNetwork] = WeakKeyDictionary()


@pytest.fixture(autouse=True)
async def memory_network() -> MemoryNetwork:
    """Time stands still here, and what is on its way through the system's sockets takes time."""
    loop = asyncio.get_running_loop()
    network = _networks[loop] = MemoryNetwork()
    network.serve(loop)
    return network


async def turns() -> None:
    """Let the loop do what is ready, and what is on its way between the ends of connections."""

    async def work() -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    await _networks[asyncio.get_running_loop()].turn(work)


async def moving(clock: MovableClock, work: Coroutine[Any, Any, T], *, step: float = 0.05) -> T:
    """The outcome of `work`, while the clock goes on."""
    task = asyncio.ensure_future(work)
    async with asyncio.timeout(60):
        while not task.done():
            await turns()
            clock.advance(step)
    return await task


@pytest.fixture
def loop_turns() -> Turns:
    return turns


@pytest.fixture
def signs_of(clock: MovableClock) -> Callable[[ConnectionPool], Turns]:
    """Turns of the loop until what was asked for a sign of life has given one."""

    async def given(links: ConnectionPool) -> None:
        await turns()
        async with asyncio.timeout(60):
            while links.figures()["links_silent"]:
                await asyncio.sleep(0)

    return lambda links: lambda: given(links)


@pytest.fixture
def calm_of(clock: MovableClock) -> Callable[[ConnectionPool], Turns]:
    """Turns of the loop until all is connected or refused, answered, and what follows from that is done.

    For times that pass step by step where each step brings about something: sockets take time of their own.
    """

    async def calm(links: ConnectionPool) -> None:
        await turns()
        async with asyncio.timeout(60):
            while any(one.in_flight or one.queued or one._connecting for one in links._links.values()):
                await asyncio.sleep(0.0005)
        await turns()

    return lambda links: lambda: calm(links)


@pytest.fixture
async def asking_cluster() -> AsyncIterator[tuple[ScriptedNameServer, dict[str, ScriptedPeer]]]:
    """A name server, masters `broker-a` and `broker-b`, and topic T on both."""
    async with scripted_cluster("broker-a", "broker-b", topics=["T"]) as made:
        yield made


@pytest.fixture
async def make_broker(
    clock: MovableClock, asking_cluster: tuple[ScriptedNameServer, dict[str, ScriptedPeer]]
) -> AsyncIterator[Callable[..., Any]]:
    """Start a broker on that cluster; stopped in the end."""
    made: list[OpenBroker] = []

    async def make(*, quiet: bool = False, **settings: Any) -> OpenBroker:
        remote = RemoteSettings(name_servers=(asking_cluster[0].address,), **settings)
        one = OpenBroker(remote, clock=clock, quiet=quiet)
        await one.start()
        made.append(one)
        return one

    yield make
    for one in made:
        await one.stop()
