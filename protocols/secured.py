"""Connections by TLS: each is counted from the moment it is accepted, not when its handshake is over."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

_AT_ONCE: Final = 64
"""Connections taken in one turn of the loop."""
_REST_S: Final = 0.5
"""After which it is tried again to accept, when there was no room for a connection."""
_BACKLOG: Final = 1024
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Takes(Protocol):
    """Serves an accepted connection; returns, and never raises, when it is open or has failed."""

    def __call__(self, connection: socket.socket, /) -> Coroutine[Any, Any, None]: ...


class Accepting:
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
        return f"<Accepting at {len(self._links)} handshakes {len(self._taking)}>"

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


def taken_over(server: asyncio.Server) -> list[socket.socket]:
    """The sockets of a server that has not begun to listen, which it has no more."""
    links = [socket.socket(fileno=os.dup(one.fileno())) for one in server.sockets]
    server.close()
    return links
