"""The connections of the remoting door: accepted, checked periodically, and drained without a loss."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final

from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import V5_3_1, Command
from processors.budgets import Allowance, Budgets
from protocols.admission import Admission
from protocols.drain import CUT_S, InFlightCalls
from protocols.entrances import Entrance, Opening
from protocols.handed_connections import Listener
from protocols.observers import ConnectionObserver, NullConnections
from protocols.remoting.connections.calls import RemotingCall
from protocols.remoting.connections.connection import RemotingConnection
from protocols.remoting.door import Door
from protocols.tls import HANDSHAKE_S, TlsStrangers

IDLE_S: Final = 120.0
"""RocketMQ's: clients say something every 30 s. Source: protocol facts 5.11."""
STUCK_S: Final = 60.0
"""For which a peer may take nothing of its answers."""
QUIET_S: Final = 1.0
"""For which nothing has come by a connection that a drain ends before its time is over."""
LAST_S: Final = 0.5
"""Before the end of a drain: all connections are ended, for what is under way there to be answered."""
LEAVE_S: Final = 2.0
"""For which a peer may leave a connection open that was ended."""
HOLD_S: Final = 1.0
"""During a drain, an old client that found nothing asks again after so long."""
_TICK_S: Final = 1.0
_PARTS: Final = 8
_OPENING_TURNS: Final = 4
"""Of the loop, from a connection's acceptance until it has opened and is closed again."""
_DRAIN_TICK_S: Final = 0.2
MOST_UNFINISHED: Final = 128 * 1024 * 1024
"""Bytes of requests that have not come as a whole, of all connections; who holds most loses it then."""
_WAITS_FACTOR: Final = 4
"""Long polls that a connection may have for each request: a consumer has one for every queue."""
_NOTHING_FOUND: Final = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL}
)


class RemotingServer:
    """One listening server: a `connection.Host`. See `Entrance` for where it listens; `opening` makes it.

    With `proxied` every connection begins with a header of the PROXY protocol. Connections that have more
    than `max_requests` under way are not read until they have fewer.
    """

    def __init__(
        self,
        door: Door,
        budgets: Budgets,
        host: str,
        port: int,
        *,
        path: str = "",
        mode: int = 0o600,
        tls: Callable[[], ssl.SSLContext] | None = None,
        proxied: bool = False,
        max_connections: int = 50_000,
        max_per_address: int = 0,
        max_requests: int = 1024,
        handshake_s: float = HANDSHAKE_S,
        listener: Listener | None = None,
        opening: Opening | None = None,
        observer: ConnectionObserver | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        self.door = door
        self._budgets = budgets
        self._proxied = proxied
        self._idle_s = idle_s
        self.max_requests = max_requests
        self.max_waiting = max_requests * _WAITS_FACTOR
        self._observer = observer if observer is not None else NullConnections()
        self._entrance = (opening if opening is not None else Entrance)(
            self,
            "remoting",
            host,
            port,
            self._connect,
            path=path,
            mode=mode,
            tls=tls,
            proxied=proxied,
            listener=listener,
            observer=self._observer,
            max_connections=max_connections,
            max_per_address=max_per_address,
            handshake_s=handshake_s,
        )
        self.under_way = InFlightCalls()
        self._strangers = TlsStrangers()
        self.connections: set[RemotingConnection] = set()
        self._loop: asyncio.AbstractEventLoop
        self._ticking: asyncio.TimerHandle | None = None
        self._due: tuple[RemotingConnection, ...] = ()
        """Connections that have their tick in this second."""
        self._part = -1
        self._calls = self._told_calls = 0
        self._unfinished = 0
        """Bytes of requests that have not come as a whole."""
        self._draining = False
        self._stopped = False

    def __repr__(self) -> str:
        return f"<RemotingServer {self._entrance.place} connections {len(self.connections)}>"

    @property
    def port(self) -> int:
        return self._entrance.port

    @property
    def admission(self) -> Admission:
        return self._entrance.admission

    # -- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises OSError when it cannot listen there."""
        self._loop = asyncio.get_running_loop()
        await self._entrance.open()
        self._ticking = self._loop.call_later(_TICK_S / _PARTS, self._tick)

    def copies(self) -> list[socket.socket]:
        """Of the sockets it listens at: see `Entrance.copies`."""
        return self._entrance.copies()

    def adopt(self, sock: socket.socket) -> Coroutine[Any, Any, Any]:
        """Serve a connection that another process accepted. Raises OSError when it is gone."""
        return self._entrance.adopt(sock)

    async def drain(self, grace: float) -> None:
        """Accept no more connections, end long polls, and serve requests for `grace` seconds at most.

        Newer clients get GO_AWAY and repeat the request elsewhere. Older ones are served as before,
        and so are one-way requests, which have no response. A connection is closed when no request is in
        progress and nothing has arrived for a moment, in the second half of the time after a response, and at
        the end in any case.
        """
        loop = self._loop
        began = loop.time()
        ends = began + grace
        await self._entrance.rest(grace)
        self._draining = True
        self.under_way.drain()
        self.door.drain()
        last = ends - min(LAST_S, grace / 2)
        half = (began + last) / 2
        held_until = loop.time() + HOLD_S
        while self.connections and (now := loop.time()) < ends:
            releases = now >= held_until
            if releases:
                held_until = now + HOLD_S
            for connection in tuple(self.connections):
                if releases:
                    connection.go_on()
                if now >= last or (connection.is_quiet and now - connection.heard_at >= QUIET_S):
                    connection.leave()
                elif now >= half:
                    connection.leave_behind_an_answer()
            await asyncio.sleep(min(_DRAIN_TICK_S, max(ends - now, 0.0)))

    async def stop(self, cut_s: float = CUT_S) -> None:
        """Cancel remaining requests, and close.

        Cancelled requests have half of `cut_s` to end, and the other half to return what they took.
        """
        self._stopped = True
        self._entrance.close()
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        self.under_way.cut()
        for connection in tuple(self.connections):
            connection.cut()
        await self.under_way.all_over(cut_s / 2)
        for call in tuple(self.under_way.requests):
            assert isinstance(call, RemotingCall)  # noqa: S101 - nobody else enters one
            call.cancel()
        await self.under_way.all_over(cut_s / 2)
        for _ in range(_OPENING_TURNS):
            await asyncio.sleep(0)
        self._due = ()
        self._tell_calls(0)

    def _connect(self) -> RemotingConnection:
        return RemotingConnection(self._loop, self, proxied=self._proxied)

    def _tick(self) -> None:
        """Check a part of the connections at a time, each once a second, so that no turn takes long."""
        self._ticking = self._loop.call_later(_TICK_S / _PARTS, self._tick)
        now = self._loop.time()
        self._part = (self._part + 1) % _PARTS
        if not self._part:
            self._due = tuple(self.connections)
            self._tell_calls(self._calls)
            self._calls = 0
        for connection in self._due[self._part :: _PARTS]:
            self._calls += connection.under_way
            self._look_after(connection, now)

    def _look_after(self, connection: RemotingConnection, now: float) -> None:
        silent_s = now - connection.heard_at
        if still := connection.stands_still(now, STUCK_S):
            self._break_off(connection, still)
        elif not connection.has_begun and silent_s >= HANDSHAKE_S:
            self._break_off(connection, "slow_requests")
        elif connection.left_at is not None:
            if now - connection.left_at >= LEAVE_S and connection.is_quiet:
                connection.cut()
        elif silent_s >= self._idle_s and connection.is_quiet:
            connection.leave()

    def _break_off(self, connection: RemotingConnection, kind: str) -> None:
        self.on_violation(connection, kind)
        connection.cut()

    def _tell_calls(self, calls: int) -> None:
        if calls != self._told_calls:
            self._observer.calls(calls - self._told_calls)
            self._told_calls = calls

    # -- what connections ask ---------------------------------------------------------------------

    def on_open(self, connection: RemotingConnection) -> bool:
        if self._stopped or not self._entrance.admits(connection):
            # Stopped: it was accepted in the last moment.
            return False
        self.connections.add(connection)
        self._observer.opened()
        return True

    def on_told(self, connection: RemotingConnection, peer: tuple[str, int] | None) -> bool:
        return self._entrance.is_from(connection, peer)

    def on_closed(self, connection: RemotingConnection) -> None:
        self._entrance.release(connection)
        if connection in self.connections:
            self.connections.discard(connection)
            self._observer.closed()

    def on_violation(self, connection: RemotingConnection, kind: str) -> None:
        self._observer.violated(kind, 1)
        if kind == "tls":
            self._strangers.tell(connection.peer.address, self._entrance.place)

    def on_refused(self, connection: RemotingConnection) -> None:
        self._observer.streams_refused(1)

    def on_unfinished(self, connection: RemotingConnection, more: int) -> None:
        self._unfinished += more
        if self._unfinished > MOST_UNFINISHED:
            self._break_off(max(self.connections, key=lambda candidate: candidate.unfinished), "holding")

    def turns_away(self, command: Command) -> bool:
        return self._draining and command.version > V5_3_1 and not command.is_oneway

    def holds_back(self, call: RemotingCall, answer: Command) -> bool:
        return self._draining and call.waits and answer.code in _NOTHING_FOUND and call.late

    def allowance(self, connection: RemotingConnection) -> Allowance:
        return self._budgets.allowance(connection.key)

    def on_begin(self, call: RemotingCall) -> None:
        call.late = self._draining
        self.under_way.requests[call] = call.connection

    def on_end(self, call: RemotingCall) -> None:
        self.under_way.over(call)
