"""Sources of a door's connections: a port, a socket in the file system, another process."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from popgate.errors import PeerWireError
from popgate.sockets.servers import stop_accepting
from popgate.sockets.unix_sockets import UnixSocket
from popgate.tls.refused_clients import shake_hands
from protocols.adapter import joined
from protocols.admission import Admission
from protocols.handed_connections import Listener
from protocols.observers import ConnectionObserver
from protocols.proxy_protocol import read_header
from protocols.secured import HandedOver, TlsAcceptor, copies_of, taken_over
from protocols.tls import HANDSHAKE_S

_BACKLOG: Final = 1024
_MOMENT_S: Final = 0.25
"""A round trip, also of a distant client."""
_MOMENT_PART: Final = 0.1
"""Of the time of a drain, at most."""
_OPENING_TURNS: Final = 4
"""Of the loop, from a connection's acceptance until it has opened."""


class Guest(Protocol):
    """A connection, from before it is open until after its end."""

    place: str | None
    """What it is counted by; None: it is not, or not any more."""
    transport: asyncio.Transport | None


class Entry(Protocol):
    """The source of a server's connections: an `Entrance`, or its part of a shared one."""

    @property
    def tls(self) -> Callable[[], ssl.SSLContext] | None: ...
    @property
    def admission(self) -> Admission: ...
    @property
    def port(self) -> int: ...
    @property
    def place(self) -> str: ...
    async def open(self) -> None: ...
    def copies(self) -> list[socket.socket]: ...
    async def rest(self, grace: float) -> None: ...
    def close(self) -> None: ...
    def adopt(self, sock: socket.socket) -> Coroutine[Any, Any, Any]: ...
    def admits(self, guest: Guest) -> bool: ...
    def is_from(self, guest: Guest, peer: tuple[str, int] | None) -> bool: ...
    def release(self, guest: Guest) -> None: ...


Opening = Callable[..., Entry]
"""Makes an entrance, given what `Entrance` is given."""


class Entrance:
    """Listens and admits connections. With `port` 0 the system chooses; `port` returns the choice.

    With a `path` it listens at a socket in the file system with the file mode `mode`. With a
    `listener` another process accepts and hands over the connections. With `tls` they are encrypted; it
    returns the context for each handshake. `make` creates the protocol of a connection. With `proxied` a
    header of the PROXY protocol comes first, before the handshake; without TLS the protocol itself reads it.
    """

    def __init__(
        self,
        door: object,
        scheme: str,
        host: str,
        port: int,
        make: Callable[[], Any],
        *,
        path: str = "",
        mode: int = 0o600,
        tls: Callable[[], ssl.SSLContext] | None = None,
        proxied: bool = False,
        listener: Listener | None = None,
        observer: ConnectionObserver,
        max_connections: int = 50_000,
        max_per_address: int = 0,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self._scheme = scheme
        self._host = host
        self.port = port
        self._make = make
        self._path = path
        self._mode = mode
        self.tls = tls
        self._proxied = proxied
        self._by_hand = tls is not None
        """Whether a connection that was accepted is taken (`_take`), and opened by who took it."""
        self._listener = listener
        self._observer = observer
        self._handshake_s = handshake_s
        self.admission = Admission(door, max_connections, max_per_address, observer, time.monotonic)
        self._loop: asyncio.AbstractEventLoop
        self._bound: UnixSocket | None = None
        self._listening: asyncio.Server | TlsAcceptor | None = None
        self._rested: TlsAcceptor | None = None
        """What accepted before `rest`, which may be cancelled and begun again."""

    def __repr__(self) -> str:
        return f"<Entrance {self.place}>"

    @property
    def place(self) -> str:
        return self._path or joined(self._host, self.port)

    async def open(self) -> None:
        """Raises OSError when it cannot listen there."""
        self._loop = asyncio.get_running_loop()
        if self._listener is not None:
            self.port = await self._listener.start(self.adopt)
        else:
            self._listening = await self._listen(self._loop)

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> asyncio.Server | TlsAcceptor:
        plain = not self._by_hand
        if self._path:
            self._bound = UnixSocket(self._path, self._mode)
            if not plain:
                return TlsAcceptor([self._bound.link], self._take, loop)
            return await loop.create_unix_server(self._make, sock=self._bound.link, backlog=_BACKLOG)
        try:
            listening = await loop.create_server(
                self._make, self._host, self.port, backlog=_BACKLOG, start_serving=plain
            )
        except OSError as error:
            reason = (error.strerror or str(error)).rpartition("): ")[2]
            raise OSError(
                f"cannot listen at {self._scheme}://{joined(self._host, self.port)}: {reason.lower()}"
            ) from error
        self.port = listening.sockets[0].getsockname()[1]
        return listening if plain else TlsAcceptor(taken_over(listening), self._take, loop)

    def copies(self) -> list[socket.socket]:
        """Copies of the listening sockets, for another listener there; empty if not possible.

        It is not possible at a socket in the file system, whose file is removed by its creator, and where
        another process accepts.
        """
        if isinstance(self._listener, HandedOver):
            return self._listener.copies()
        if self._path or self._listening is None:
            return []
        listening = self._listening
        return listening.copies() if isinstance(listening, TlsAcceptor) else copies_of(listening)

    async def rest(self, grace: float) -> None:
        """Accept no more connections, and wait a moment until accepted ones are open.

        `grace`: the seconds of the drain that this begins; a part of them is for this.

        A client that has just connected sends its first bytes a round trip later, and only this process has
        its connection.
        """
        if isinstance(self._listening, TlsAcceptor):
            self._rested = self._listening
        taking = self._listener if self._listener is not None else self._rested
        self.close_door()
        for _ in range(_OPENING_TURNS):
            await asyncio.sleep(0)
        if taking is not None:
            await taking.taken(min(grace * _MOMENT_PART, _MOMENT_S))

    def close(self) -> None:
        """Take no more connections. May be repeated."""
        self.close_door()

    def close_door(self) -> None:
        """What `close` does about connections that have not come yet."""
        if self._listener is not None:
            self._listener.stop()
        if isinstance(self._listening, TlsAcceptor):
            self._listening.close()
        elif self._listening is not None:
            stop_accepting(self._listening)
        self._listening = None
        if self._bound is not None:
            self._bound.remove()
            self._bound = None

    def adopt(self, sock: socket.socket) -> Coroutine[Any, Any, Any]:
        """Serve a connection that another process accepted. Raises OSError when it is gone."""
        if self._by_hand:
            return self._take(sock)
        return self._loop.connect_accepted_socket(self._make, sock)

    def admits(self, guest: Guest) -> bool:
        """Whether a connection that has opened may stay; it is counted from now on, if it was not already."""
        if guest.place is None:
            transport = guest.transport
            name = transport.get_extra_info("peername") if transport and not self._proxied else None
            guest.place = self.admission.enter(name)
        return guest.place is not None

    def is_from(self, guest: Guest, peer: tuple[str, int] | None) -> bool:
        """Count a connection at the address in its PROXY header; without one it is the balancer's own.

        False: there are too many from there. Until then it counts only towards the total: behind a balancer
        all connections have one address.
        """
        if peer is None:
            return True
        self.release(guest)
        guest.place = self.admission.enter(peer)
        return guest.place is not None

    async def shake_hands(self, guest: Guest, sock: socket.socket, peer: tuple[str, int] | None) -> None:
        """TLS with a connection; `peer`: its client, by a balancer's header. Raises OSError."""
        assert self.tls is not None  # noqa: S101 - who speaks no TLS is not taken so
        place = f"{self._scheme}://{self.place}"
        await shake_hands(
            lambda: guest, sock, self.tls(), timeout_s=self._handshake_s, peer=peer, place=place
        )

    def release(self, guest: Guest) -> None:
        """It is over. May be repeated."""
        place, guest.place = guest.place, None
        if place is not None:
            self.admission.leave(place)

    async def _take(self, sock: socket.socket) -> None:
        """Shake hands with who was accepted: it counts as a connection from here on."""
        try:
            name = sock.getpeername()
            place = self.admission.enter(None if self._proxied else name)
        except OSError:  # it has gone already
            place = None
        if place is None:
            sock.close()
            return
        guest = self._make()
        guest.place = place
        self._observer.handshakes(1)
        peer = None
        try:
            if self._proxied:
                proxied = await read_header(sock, self._loop, self._handshake_s)
                if not self.is_from(guest, proxied.peer):
                    sock.close()
                    return
                guest.begin(proxied)
                peer = proxied.peer
            await self.shake_hands(guest, sock, peer)
        except (OSError, PeerWireError):  # it is gone, or speaks no TLS that is known here, or took too long
            self._observer.handshake_failed()
            self.release(guest)
            sock.close()
        except BaseException:
            self.release(guest)
            raise
        finally:
            self._observer.handshakes(-1)
