"""A scripted broker and links to it, by a clock that tests move."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from brokers.remote.links import Links
from brokers.remote.settings import RemoteSettings
from popgate.testing.clock import MovableClock
from popgate.testing.peers import ScriptedPeer


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
