"""Serves the RPCs by the gateway's own HTTP/2: no task, timer or log line per call."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final

from popgate.pb import service_pb2 as rpc
from popgate.pb.health_pb2 import HealthCheckRequest
from protocols.admission import Admission
from protocols.drain import CUT_S, InFlightCalls
from protocols.entrances import Entrance, Opening
from protocols.grpc.codec.request_reader import Unreadable, reader_of
from protocols.grpc.http2.events import Shape
from protocols.grpc.http2.frames.limits import Http2Limits
from protocols.grpc.http2.grpc_wire import GrpcWire
from protocols.grpc.rpcs import health
from protocols.grpc.rpcs import reflection as reflecting
from protocols.grpc.rpcs.dispatcher import SERVICE, STREAMED, UNARY, RpcHandler, Streamed, Unary
from protocols.grpc.rpcs.reflection import Reflection
from protocols.grpc.servers.http2_calls import Http2Call
from protocols.grpc.servers.http2_connections import Http2Connection
from protocols.grpc.transport import CallFailed, CallStatus
from protocols.handed_connections import Listener
from protocols.observers import ConnectionObserver, NullConnections
from protocols.tls import HANDSHAKE_S, TlsStrangers

_TICK_S: Final = 1.0
_PARTS: Final = 8
_GATHER_S: Final = 0.5
"""How long clients that wait for no answer may still ask: most that are at work do within so long."""
_OPENING_TURNS: Final = 4
"""Of the loop, from a connection's acceptance until it has opened and is closed again."""

Serve = Callable[[Http2Call, bytes], Coroutine[Any, Any, None]]


class Http2Server:
    """One listening server. With `port` 0 the system chooses; `port` returns the choice.

    With a `path` it listens at a socket in the file system with the file mode `mode`. With a
    `listener` another process accepts and hands over the connections. With `tls` they are encrypted; it
    returns the context for each handshake. `opening` creates the entrance, if not the default one.
    `others_serve`: asked when it drains, whether clients find another server. If not, no time is spent on
    telling each one when it waits for an answer.
    """

    def __init__(
        self,
        door: RpcHandler,
        host: str,
        port: int,
        *,
        limits: Http2Limits | None = None,
        max_connections: int = 50_000,
        max_per_address: int = 0,
        handshake_s: float = HANDSHAKE_S,
        path: str = "",
        mode: int = 0o600,
        tls: Callable[[], ssl.SSLContext] | None = None,
        reflection: Reflection | None = None,
        listener: Listener | None = None,
        opening: Opening | None = None,
        observer: ConnectionObserver | None = None,
        others_serve: Callable[[], bool] = lambda: False,
    ) -> None:
        self._door = door
        self._others_serve = others_serve
        self._gather_s = 0.0
        self._observer = observer if observer is not None else NullConnections()
        self._due: tuple[Http2Connection, ...] = ()
        """Connections that have their tick in this second."""
        self._part = -1
        self._calls = self._told_calls = 0
        self._limits = limits if limits is not None else Http2Limits()
        self._entrance = (opening if opening is not None else Entrance)(
            self,
            "grpc",
            host,
            port,
            self._connect,
            path=path,
            mode=mode,
            tls=tls,
            listener=listener,
            observer=self._observer,
            max_connections=max_connections,
            max_per_address=max_per_address,
            handshake_s=handshake_s,
        )
        self.under_way = InFlightCalls()
        self._strangers = TlsStrangers()
        self.connections: set[Http2Connection] = set()
        self._methods: dict[str, tuple[Shape, Serve]] = {}
        self._shapes: dict[str, Shape] = {}
        self._ticking: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop
        self._changed: asyncio.Event | None = None
        self._stopped = False
        self._add_messaging()
        self._add_health()
        if reflection is not None:
            self._add_reflection(reflection)

    def __repr__(self) -> str:
        return f"<Http2Server {self._entrance.place} connections {len(self.connections)}>"

    @property
    def port(self) -> int:
        return self._entrance.port

    @property
    def admission(self) -> Admission:
        return self._entrance.admission

    @property
    def is_secured(self) -> bool:
        """Whether it speaks TLS."""
        return self._entrance.tls is not None

    # -- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises OSError when it cannot listen there."""
        loop = self._loop = asyncio.get_running_loop()
        await self._entrance.open()
        self._ticking = loop.call_later(_TICK_S / _PARTS, self._tick)

    async def drain(self, grace: float) -> None:
        """Accept no more connections, send GOAWAY on all, and finish open calls within `grace` seconds."""
        ends = self._loop.time() + grace
        self._changed = asyncio.Event()
        if self._others_serve():
            self._gather_s = min(_GATHER_S, grace / 2)
            self._loop.call_later(self._gather_s, self._tell_to_leave, 0.0)
        # At once: until they know, consumers repeat their polls, which nobody lets wait any more.
        self._tell_to_leave(self._gather_s)
        await self._entrance.rest(grace)
        while self.connections and (left := ends - self._loop.time()) > 0:
            self._changed.clear()
            waiting = asyncio.ensure_future(self._changed.wait())
            await asyncio.wait((waiting,), timeout=left)
            waiting.cancel()

    def _tell_to_leave(self, within_s: float) -> None:
        for connection in tuple(self.connections):
            connection.leave(within_s)

    async def stop(self, cut_s: float = CUT_S) -> None:
        """Cancel the remaining calls, which have `cut_s` to return what they took, and close."""
        self._stopped = True
        self._entrance.close()
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        self.under_way.cut()
        for connection in tuple(self.connections):
            connection.end()
        await self.under_way.all_over(cut_s)
        for _ in range(_OPENING_TURNS):
            await asyncio.sleep(0)
        self._due = ()
        self._tell_calls(0)

    def copies(self) -> list[socket.socket]:
        """Of the sockets it listens at: see `Entrance.copies`."""
        return self._entrance.copies()

    def adopt(self, sock: socket.socket) -> Coroutine[Any, Any, Any]:
        """Serve a connection that another process accepted. Raises OSError when it is gone."""
        return self._entrance.adopt(sock)

    def _connect(self) -> Http2Connection:
        return Http2Connection(GrpcWire(self._limits, self._shapes), self._loop, self)

    def _tick(self) -> None:
        """A part of the connections at a time, each once a second: no call waits for thousands of others."""
        self._ticking = self._loop.call_later(_TICK_S / _PARTS, self._tick)
        now = self._loop.time()
        self._part = (self._part + 1) % _PARTS
        if not self._part:
            self._due = tuple(self.connections)
            self._tell_calls(self._calls)
            self._calls = 0
        for connection in self._due[self._part :: _PARTS]:
            if connection.transport is not None:
                connection.tick(now)
                self._calls += len(connection.wire.streams)

    def _tell_calls(self, calls: int) -> None:
        if calls != self._told_calls:
            self._observer.calls(calls - self._told_calls)
            self._told_calls = calls

    # -- what connections ask ---------------------------------------------------------------------

    def on_open(self, connection: Http2Connection) -> bool:
        if self._stopped:
            # It was accepted in the last moment.
            return False
        if not self._entrance.admits(connection):
            return False
        self.connections.add(connection)
        self._observer.opened()
        if self._changed is not None:
            # It was still opening (TLS takes a while) when all were told to leave.
            self._loop.call_soon(connection.leave, self._gather_s)
        return True

    def on_leaving(self, connection: Http2Connection) -> None:
        for stream in tuple(connection.wire.streams.values()):
            call: Http2Call | None = stream.call
            if call is not None and (task := call.task) is not None:
                self._door.leave(task)

    def on_cut(self, connection: Http2Connection) -> None:
        wire = connection.wire
        for kind, count in wire.cut_streams.items():
            self._observer.violated(kind, count)
        wire.cut_streams.clear()
        if wire.refused_streams:
            self._observer.streams_refused(wire.refused_streams)
            wire.refused_streams = 0

    def on_closed(self, connection: Http2Connection) -> None:
        self._entrance.release(connection)
        if connection in self.connections:
            self.connections.discard(connection)
            self._observer.closed()
        if self._changed is not None:
            self._changed.set()

    def on_violation(self, connection: Http2Connection, kind: str) -> None:
        self._observer.violated(kind, 1)
        if kind == "tls":
            self._strangers.tell(connection.peer, self._entrance.place)

    def serve(self, call: Http2Call, message: bytes | None) -> Coroutine[Any, Any, None]:
        head = call.stream.head
        assert head is not None  # noqa: S101 - a call has been opened by its head
        return self._methods[head.path][1](call, message or b"")

    # -- the methods ------------------------------------------------------------------------------

    def add(self, path: str, shape: Shape, serve: Serve) -> None:
        """Serve calls of a path."""
        self._methods[path] = (shape, serve)
        self._shapes[path] = shape

    def _add_messaging(self) -> None:
        for method in UNARY:
            self.add(f"/{SERVICE}/{method.name}", Shape.ONE, self._unary(method))
        for streamed in STREAMED:
            self.add(f"/{SERVICE}/{streamed.name}", Shape.ONE, self._streamed(streamed))
        self.add(f"/{SERVICE}/Telemetry", Shape.MANY, self._telemetry)

    def _unary(self, method: Unary) -> Serve:
        read, door, under_way = reader_of(method.request), self._door, self.under_way
        requests = under_way.requests

        async def serve(call: Http2Call, message: bytes) -> None:
            requests[call] = call.connection
            try:
                answer = await door.unary(method, read(message), call, len(message))
                call.answer(answer.SerializeToString())
            finally:
                under_way.over(call)

        return serve

    def _streamed(self, method: Streamed) -> Serve:
        read, door, under_way = reader_of(method.request), self._door, self.under_way

        async def serve(call: Http2Call, message: bytes) -> None:
            under_way.requests[call] = call.connection
            try:
                await door.streamed(method, read(message), call, call)
                call.finish()
            finally:
                under_way.over(call)

        return serve

    async def _telemetry(self, call: Http2Call, _message: bytes) -> None:
        # One client waits for the headers before it does anything else (pitfall 5).
        call.open_answer()
        call.parse = _command
        self.under_way.streams[call] = call.connection
        try:
            await self._door.telemetry(call, call)
            call.finish()
        finally:
            self.under_way.stream_over(call)

    def _add_health(self) -> None:
        read = reader_of(HealthCheckRequest)

        async def check(call: Http2Call, message: bytes) -> None:
            answer = await self._door.check_health(read(message))  # type: ignore[arg-type]
            call.answer(answer.SerializeToString())

        async def watch(call: Http2Call, message: bytes) -> None:
            await self._door.watch_health(read(message), call)  # type: ignore[arg-type]
            call.finish()

        self.add(f"/{health.SERVICE}/Check", Shape.ONE, check)
        self.add(f"/{health.SERVICE}/Watch", Shape.ONE, watch)

    def _add_reflection(self, reflection: Reflection) -> None:
        async def reflect(call: Http2Call, _message: bytes) -> None:
            await reflection.serve(_Raw(call))
            call.finish()

        for service in reflecting.SERVICES:
            self.add(f"/{service}/{reflecting.METHOD}", Shape.MANY, reflect)


class _Raw:
    """A `reflection.Raw`."""

    __slots__ = ("_call",)

    def __init__(self, call: Http2Call) -> None:
        self._call = call

    async def read(self) -> bytes | None:
        return await self._call.read_bytes()

    async def write(self, answer: bytes) -> None:
        await self._call.write_bytes(answer)


_read_command = reader_of(rpc.TelemetryCommand)


def _command(data: bytes) -> Any:
    """Raises CallFailed."""
    command = _read_command(data)
    if isinstance(command, Unreadable):
        raise CallFailed(CallStatus.INVALID_ARGUMENT, command.sentence)
    return command
