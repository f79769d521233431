"""A scripted broker and links to it, by a clock that tests move."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import selectors
import socket
import sys
import termios
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from brokers.remote.facet import Facet
from brokers.remote.links import Links
from brokers.remote.settings import RemoteSettings
from popgate.testing.clock import MovableClock
from popgate.testing.peers import ScriptedNameServer, ScriptedPeer, scripted_cluster

T = TypeVar("T")


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
_LONGEST_WAY_S = 1.0
"""Some sockets are not answered, or not read, on purpose."""
_ON_THEIR_WAY = (2, 4, 9, 11)
"""States of TCP in Linux: a SYN or a FIN was sent that has not arrived."""


async def turns() -> None:
    """Let the loop do what is ready, and what is on its way through sockets.

    A busy system delivers later what was written, also on the loopback device, while here no time passes.
    """
    end = time.monotonic() + _LONGEST_WAY_S
    while True:
        for _ in range(50):
            await asyncio.sleep(0)
        if not _is_under_way(asyncio.get_running_loop()) or time.monotonic() > end:
            return
        await asyncio.sleep(0.0005)


async def moving(clock: MovableClock, work: Coroutine[Any, Any, T], *, step: float = 0.05) -> T:
    """The outcome of `work`, while the clock goes on."""
    task = asyncio.ensure_future(work)
    async with asyncio.timeout(60):
        while not task.done():
            await turns()
            clock.advance(step)
    return await task


def _is_under_way(loop: Any) -> bool:
    """Whether a socket of the loop connects, has sent what has not arrived, or has got what is not read."""
    return any(
        _is_busy(one.fd, reads=bool(one.events & selectors.EVENT_READ))
        for one in list(loop._selector.get_map().values())
    )


def _is_busy(descriptor: int, *, reads: bool) -> bool:
    try:
        if _left(descriptor, termios.TIOCOUTQ) or (reads and _left(descriptor, termios.FIONREAD)):
            return True
        with socket.socket(fileno=os.dup(descriptor)) as link:
            return link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _ON_THEIR_WAY
    except OSError:  # it listens, or is none
        return False


def _left(descriptor: int, request: int) -> int:
    return int.from_bytes(fcntl.ioctl(descriptor, request, bytes(4)), sys.byteorder)


@pytest.fixture
def loop_turns() -> Turns:
    return turns


@pytest.fixture
def signs_of(clock: MovableClock) -> Callable[[Links], Turns]:
    """Turns of the loop until what was asked for a sign of life has given one."""

    async def given(links: Links) -> None:
        await turns()
        async with asyncio.timeout(60):
            while links.figures()["links_silent"]:
                await asyncio.sleep(0)

    return lambda links: lambda: given(links)


@pytest.fixture
def calm_of(clock: MovableClock) -> Callable[[Links], Turns]:
    """Turns of the loop until all is connected or refused, answered, and what follows from that is done.

    For times that pass step by step where each step brings about something: sockets take time of their own.
    """

    async def calm(links: Links) -> None:
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
