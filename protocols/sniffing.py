"""One address, several protocols: the first byte of a connection tells which one its client speaks.

The byte is peeked at while the connection has no transport, so that the protocol's own server reads it again.
One byte is enough (0x16 begins a TLS handshake, RFC 8446 section 5.1; each protocol's package defines its
own), so a client that sends one byte at a time costs no more than another. The
protocol's own machine judges what follows. Inside TLS both sides agree on the protocol (ALPN, RFC 7301).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, cast

from popgate.errors import PeerWireError
from protocols.admission import Admission
from protocols.entrances import Entrance, Guest
from protocols.handed_connections import Listener
from protocols.observers import SniffingObserver
from protocols.proxy_protocol import Proxied, read_header, until_readable
from protocols.tls import HANDSHAKE_S, TlsStrangers

_HANDSHAKE: Final = 0x16
"""The type of the first record of TLS."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class Mark:
    """How a protocol is recognised: by its first byte, or by ALPN inside TLS (empty: without ALPN)."""

    first: frozenset[int]
    alpn: str


class SniffingEntrance(Entrance):
    """An entrance that several servers share, each with its `Side` of it.

    With `tls` and `plain` clients may speak TLS or not, with `tls` alone they must. A connection that sends
    nothing within `handshake_s` is closed, and so is one with a protocol that is not served here.
    Until then it is a task and a socket. It counts towards the connections of the address, which
    `max_connections` and `max_per_address` limit. Connections that arrive before `begin` wait.
    """

    def __init__(
        self,
        door: object,
        scheme: str,
        host: str,
        port: int,
        *,
        path: str = "",
        mode: int = 0o600,
        tls: Callable[[], ssl.SSLContext] | None = None,
        plain: bool = True,
        proxied: bool = False,
        listener: Listener | None = None,
        observer: SniffingObserver,
        max_connections: int = 50_000,
        max_per_address: int = 0,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        super().__init__(
            door,
            scheme,
            host,
            port,
            lambda: _Undecided(self),
            path=path,
            mode=mode,
            tls=tls,
            proxied=proxied,
            listener=listener,
            observer=observer,
            max_connections=max_connections,
            max_per_address=max_per_address,
            handshake_s=handshake_s,
        )
        self._by_hand = True
        self._plain = plain
        self.seen = observer
        self._strangers = TlsStrangers()
        self._sides: list[Side] = []
        self._begun = asyncio.Event()
        self._over = False
        self._waiting: set[asyncio.Future[None]] = set()
        self._taking: set[asyncio.Task[Any]] = set()

    def side(self, scheme: str, mark: Mark, make: Callable[[], Any]) -> Side:
        """The part of one server, whose connections are made by `make`."""
        side = Side(self, scheme, mark, make)
        self._sides.append(side)
        return side

    def begin(self) -> None:
        """All servers are there."""
        self._begun.set()

    def close(self) -> None:
        """Take no more connections. Those that have said nothing yet are closed. May be repeated."""
        self.close_door()
        self._over = True
        self._begun.set()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def end(self) -> None:
        """Cut off who is still shaking hands."""
        self.close()
        if self._taking:
            for task in self._taking:
                task.cancel()
            await asyncio.wait(self._taking)

    async def _take(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        guest = _Undecided(self)
        with contextlib.suppress(OSError):  # it has gone already
            guest.place = self.admission.enter(None if self._proxied else sock.getpeername())
        if guest.place is None:
            sock.close()
            return
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._taking.add(task)
        self.seen.opened()
        try:
            await self._find_out(sock, guest)
        except TimeoutError:
            self._turn_away(guest, "silence", f"says nothing for {self._handshake_s:g} s")
        except PeerWireError as error:
            self._turn_away(guest, "bad_proxy_header", str(error))
        except OSError:  # it is gone
            pass
        finally:
            self._taking.discard(task)
            self.seen.closed()
            if not guest.is_served:
                self.release(guest)
                sock.close()

    async def _find_out(self, sock: socket.socket, guest: _Undecided) -> None:
        """Raises OSError, PeerWireError; TimeoutError for who does not say in time what it speaks."""
        async with asyncio.timeout(self._handshake_s):
            await self._begun.wait()
            if self._proxied:
                proxied = await read_header(sock, self._loop, self._handshake_s, self._until_readable)
                if not self.is_from(guest, proxied.peer):
                    return
                guest.told = proxied
            first = await self._first(sock)
        if first is None or not self._sides:  # the latter of an address that failed to start
            return
        if first == _HANDSHAKE:
            await self._shake_hands(sock, guest)
        elif not self._plain:
            self._turn_away(guest, "clear_text", "speaks no TLS, which it has to here")
        elif (side := next((known for known in self._sides if first in known.mark.first), None)) is None:
            told_of = "".join(f"{known.scheme}, " for known in self._sides)
            self._turn_away(guest, "unknown", f"begins with {first:#04x}, which is none of {told_of[:-2]}")
        else:
            served = guest.becomes(side, secured=False)
            try:
                await self._loop.connect_accepted_socket(lambda: served, sock)
            except BaseException:
                self.release(served)
                sock.close()
                raise

    async def _first(self, sock: socket.socket) -> int | None:
        """The first byte, left where it is; None: there is none any more. Raises OSError."""
        while True:
            try:
                seen = sock.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                if self._over:
                    return None
            else:
                return seen[0] if seen else None
            await self._until_readable(sock, self._loop)

    async def _until_readable(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        """Or until the wait is ended."""
        if self._over:
            return
        come = loop.create_future()
        self._waiting.add(come)
        try:
            await until_readable(sock, loop, come)
        finally:
            self._waiting.discard(come)

    async def _shake_hands(self, sock: socket.socket, guest: _Undecided) -> None:
        if self.tls is None:
            self._turn_away(guest, "tls", "speaks TLS, which is not spoken here")
            peer = guest.told.peer if guest.told is not None and guest.told.peer else sock.getpeername()
            self._strangers.tell(":".join(map(str, peer[:2])), self.place)
            return
        self.seen.handshakes(1)
        try:
            await self.shake_hands(guest, sock, guest.told.peer if guest.told is not None else None)
        except OSError:  # it is gone, or speaks no TLS that is known here, or took too long
            if not guest.is_served:
                self.seen.handshake_failed()
        finally:
            self.seen.handshakes(-1)

    def _turn_away(self, guest: _Undecided, kind: str, why: str) -> None:
        _log.debug("%s of %s is cut off: it %s", guest.name, self._scheme, why)
        self.seen.violated(kind, 1)

    def found(self, guest: _Undecided, side: Side, *, secured: bool) -> None:
        """It is known what one speaks."""
        inside = " inside of TLS" if secured else ""
        _log.debug("%s of %s speaks %s%s", guest.name, self._scheme, side.scheme, inside)
        self.seen.found(side.scheme, secured)

    def side_of(self, secured: ssl.SSLObject) -> Side:
        """The side of a client, by its ALPN protocol; empty for clients without ALPN."""
        agreed = secured.selected_alpn_protocol() or ""
        for side in self._sides:
            if side.mark.alpn == agreed:
                return side
        return next((candidate for candidate in self._sides if not candidate.mark.alpn), self._sides[0])


class Side:
    """One server's part of an entrance that is shared: an `Entry`. It neither listens nor shakes hands."""

    tls: None = None

    def __init__(self, shared: SniffingEntrance, scheme: str, mark: Mark, make: Callable[[], Any]) -> None:
        self._shared = shared
        self.scheme = scheme
        self.mark = mark
        self.make = make

    def __repr__(self) -> str:
        return f"<Side {self.scheme} of {self.place}>"

    @property
    def admission(self) -> Admission:
        return self._shared.admission

    @property
    def port(self) -> int:
        return self._shared.port

    @property
    def place(self) -> str:
        return self._shared.place

    async def open(self) -> None:
        """It is open with the others."""

    def copies(self) -> list[socket.socket]:
        """None: the listening sockets belong to all sides."""
        return []

    async def rest(self, grace: float) -> None:
        """It is closed with the others."""

    def close(self) -> None:
        """It is closed with the others."""

    def adopt(self, sock: socket.socket) -> Coroutine[Any, Any, Any]:
        return self._shared.adopt(sock)

    def admits(self, guest: Guest) -> bool:
        return self._shared.admits(guest)

    def is_from(self, guest: Guest, peer: tuple[str, int] | None) -> bool:
        return self._shared.is_from(guest, peer)

    def release(self, guest: Guest) -> None:
        self._shared.release(guest)


class _Undecided(asyncio.Protocol):
    """A connection of which it is not known what it speaks."""

    def __init__(self, entrance: SniffingEntrance) -> None:
        self._entrance = entrance
        self.place: str | None = None
        self.transport: asyncio.Transport | None = None
        self.told: Proxied | None = None
        """By a balancer, of who connects."""
        self.is_served = False

    @property
    def name(self) -> str:
        """For the log."""
        return self.told.peer[0] if self.told is not None and self.told.peer else "a client"

    def becomes(self, side: Side, *, secured: bool) -> Any:
        """What serves it from now on."""
        served = side.make()
        served.place, self.place = self.place, None
        if self.told is not None:
            served.begin(self.told)
        self.is_served = True
        self._entrance.found(self, side, secured=secured)
        return served

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is over."""
        opened = cast("asyncio.Transport", transport)
        served = self.becomes(self._entrance.side_of(opened.get_extra_info("ssl_object")), secured=True)
        opened.set_protocol(served)
        served.connection_made(opened)
