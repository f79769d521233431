"""A scripted broker and links to it, by a clock that tests move."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from brokers.remote.facet import Facet
from brokers.remote.links import Links
from brokers.remote.settings import RemoteSettings
from popgate.testing.clock import MovableClock
from popgate.testing.peers import ScriptedNameServer, ScriptedPeer, scripted_cluster


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def peer() -> AsyncIterator[ScriptedPeer]:
    async with ScriptedPeer() as one:
        yield one


@pytest.fixture
async def make_links(clock: MovableClock) -> AsyncIterator[Callable[..., Links]]:
    """Links by the movable clock, closed in the end."""
    made: list[Links] = []

    def make(**settings: Any) -> Links:
        links = Links(RemoteSettings(**settings), clock, chance=random.Random(7))
        made.append(links)
        return links

    yield make
    for links in made:
        await links.close()


@pytest.fixture
def links(make_links: Callable[..., Links]) -> Links:
    return make_links()


Turns = Callable[[], Awaitable[None]]


async def turns() -> None:
    """Let the loop do what is ready, sockets included."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
def loop_turns() -> Turns:
    return turns


@pytest.fixture
def signs_of(clock: MovableClock) -> Callable[[Links], Turns]:
    """Turns of the loop until what was asked for a sign of life has given one."""

    async def given(links: Links) -> None:
        await turns()
        async with asyncio.timeout(20.0):
            while links.figures()["links_silent"]:
                await asyncio.sleep(0)

    return lambda links: lambda: given(links)


@pytest.fixture
async def asking_cluster() -> AsyncIterator[tuple[ScriptedNameServer, dict[str, ScriptedPeer]]]:
    """A name server, masters `broker-a` and `broker-b`, and topic T on both."""
    async with scripted_cluster("broker-a", "broker-b", topics=["T"]) as made:
        yield made


@pytest.fixture
async def make_facet(
    clock: MovableClock, asking_cluster: tuple[ScriptedNameServer, dict[str, ScriptedPeer]]
) -> AsyncIterator[Callable[..., Any]]:
    """Start a facet, or several in one class, on that cluster; stopped in the end."""
    made: list[Any] = []

    async def make(kind: type[Facet], **settings: Any) -> Any:
        one = kind(RemoteSettings(name_servers=(asking_cluster[0].address,), **settings), clock=clock)
        await one.start()
        made.append(one)
        return one

    yield make
    for one in made:
        await one.stop()
