"""TLS connections: each is counted from the moment it is accepted, before its handshake is complete."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from protocols.handed_connections import Adopt

_AT_ONCE: Final = 64
"""Connections taken in one turn of the loop."""
_REST_S: Final = 0.5
"""After which it is tried again to accept, when there was no room for a connection."""
_BACKLOG: Final = 1024
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Takes(Protocol):
    """Serves an accepted connection; returns, and never raises, when it is open or has failed."""

    def __call__(self, connection: socket.socket, /) -> Coroutine[Any, Any, None]: ...


class TlsAcceptor:
    """Accepts by itself, where asyncio would first shake hands and then say who came."""

    def __init__(self, links: Sequence[socket.socket], take: Takes, loop: asyncio.AbstractEventLoop) -> None:
        self._links = list(links)
        self._take = take
        self._loop = loop
        self._taking: set[asyncio.Task[None]] = set()
        self._resting: dict[socket.socket, asyncio.TimerHandle] = {}
        for link in self._links:
            link.setblocking(False)
            link.listen(_BACKLOG)
            loop.add_reader(link.fileno(), self._accept, link)

    def __repr__(self) -> str:
        return f"<TlsAcceptor at {len(self._links)} handshakes {len(self._taking)}>"

    def copies(self) -> list[socket.socket]:
        """Of its sockets; they listen as long as one of both is open."""
        return [link.dup() for link in self._links]

    async def taken(self, longest_s: float) -> None:
        """Wait for accepted connections that are not open yet."""
        if self._taking:
            await asyncio.wait(self._taking, timeout=longest_s)

    def close(self) -> None:
        """Accept no more. Who was accepted goes on."""
        for link in self._links:
            self._loop.remove_reader(link.fileno())
            link.close()
        self._links.clear()
        for timer in self._resting.values():
            timer.cancel()
        self._resting.clear()

    def _accept(self, link: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                came, _ = link.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._loop.remove_reader(link.fileno())
                    self._resting[link] = self._loop.call_later(_REST_S, self._again, link)
                    return
                continue  # it is gone already
            came.setblocking(False)
            with suppress(OSError):
                came.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._take(came))
            self._taking.add(task)
            task.add_done_callback(self._taking.discard)

    def _again(self, link: socket.socket) -> None:
        del self._resting[link]
        self._loop.add_reader(link.fileno(), self._accept, link)


class HandedOver:
    """Continues to accept at the sockets of a door that closes: a `protocols.handed_connections.Listener`.

    Both accept until that door has closed its own, so no client is refused meanwhile.
    """

    def __init__(self, links: Sequence[socket.socket]) -> None:
        """`links` are copies, which are closed here."""
        self._links = list(links)
        self._accepting: TlsAcceptor | None = None

    def __repr__(self) -> str:
        return f"<HandedOver {self._accepting or len(self._links)}>"

    async def start(self, adopt: Adopt) -> int:
        async def take(connection: socket.socket) -> None:
            try:
                await adopt(connection)
            except OSError:  # it is gone already
                connection.close()

        port: int = self._links[0].getsockname()[1]
        self._accepting = TlsAcceptor(self._links, take, asyncio.get_running_loop())
        return port

    async def taken(self, longest_s: float) -> None:
        """See `TlsAcceptor.taken`."""
        if self._accepting is not None:
            await self._accepting.taken(longest_s)

    def stop(self) -> None:
        """May be repeated."""
        if self._accepting is not None:
            self._accepting.close()
        for link in self._links:
            link.close()

    def copies(self) -> list[socket.socket]:
        """Of its sockets, for the next one."""
        return self._accepting.copies() if self._accepting is not None else []


def taken_over(server: asyncio.Server) -> list[socket.socket]:
    """The sockets of a server that has not begun to listen, which it has no more."""
    links = copies_of(server)
    server.close()
    return links


def copies_of(server: asyncio.Server) -> list[socket.socket]:
    """Of the sockets of a server; they listen as long as one of both is open."""
    return [socket.socket(fileno=os.dup(listening.fileno())) for listening in server.sockets]
