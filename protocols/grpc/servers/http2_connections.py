"""One connection on an asyncio transport: events of its state machine become calls."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from popgate.errors import PeerWireError
from popgate.sockets.wire_driver import WireDriver
from protocols.adapter import joined
from protocols.grpc.http2.events import Called, Cut, Ended, Event, Late, Opened, Roomy, Said
from protocols.grpc.http2.frames.codes import Http2Error
from protocols.grpc.http2.frames.limits import INFLATED_AT_ONCE
from protocols.grpc.http2.frames.stream import Stream
from protocols.grpc.http2.grpc_wire import GrpcWire
from protocols.grpc.servers.http2_calls import Http2Call
from protocols.proxy_protocol import Proxied
from protocols.tls import names_of, speaks_http2

_PROGRESS: Final = 64 * 1024
"""Bytes that a client has to take within `slow_s` of what was written to it, if there are as many."""
_MOST_UNSENT: Final = 1024 * 1024
"""Bytes of answers of one turn of the loop, after which who writes more waits for the next."""


class Host(Protocol):
    """What a connection asks of its server."""

    def serve(self, call: Http2Call, message: bytes | None) -> Coroutine[Any, Any, None]:
        """What serves a call; `message` is the request's, where it has one."""
        ...

    def on_open(self, connection: Http2Connection) -> bool:
        """False: there are too many."""
        ...

    def on_cut(self, connection: Http2Connection) -> None:
        """Bounds ended streams, or kept them out: take `wire.cut_streams` and `wire.refused_streams`."""
        ...

    def on_leaving(self, connection: Http2Connection) -> None:
        """It takes no more calls, and still has some; at each tick."""
        ...

    def on_closed(self, connection: Http2Connection) -> None: ...

    def on_violation(self, connection: Http2Connection, kind: str) -> None:
        """It is closed for something, `Http2Error.kind`."""
        ...


class Http2Connection(WireDriver[GrpcWire, Event]):
    """One connection. `wire` is its machine."""

    def __init__(self, wire: GrpcWire, loop: asyncio.AbstractEventLoop, host: Host) -> None:
        super().__init__(wire, loop)
        self._host = host
        self._rooms: set[asyncio.Future[None]] = set()
        """Of calls that wait until the transport takes more."""
        self._reading = True
        self._paused_at: float | None = None
        self._unread = 0
        """Bytes that the transport had then, and had not got rid of."""
        self._resting: asyncio.TimerHandle | None = None
        """While it waits, since it had much inflated."""
        self.names: tuple[str, ...] = ()
        """Of the client's certificate: `protocols.tls.names_of`."""
        self.place: str | None = None
        """What it is counted by: `protocols.admission`."""
        self.peer = ""
        self.local = ""
        self._proxied: Proxied | None = None

    def __repr__(self) -> str:
        return f"<Http2Connection {self.peer} {self.wire!r}>"

    # -- the transport ----------------------------------------------------------------------------

    def on_open(self, transport: asyncio.Transport) -> None:
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and not speaks_http2(tls):
            transport.abort()
            return
        if tls is not None:
            self.names = names_of(tls)
        self.peer = _address(transport.get_extra_info("peername"), self)
        self.local = _address(transport.get_extra_info("sockname"), self)
        if self._proxied is not None:
            self._is_for(self._proxied)
        if not self._host.on_open(self):
            transport.abort()

    def begin(self, proxied: Proxied) -> None:
        """Start with a header of the PROXY protocol that was read before the connection was opened."""
        self._proxied = proxied

    def _is_for(self, proxied: Proxied) -> None:
        if proxied.peer is not None:
            self.peer = joined(*proxied.peer)
        if proxied.local is not None:
            self.local = joined(*proxied.local)

    def on_heard(self) -> None:
        self.wire.now = self.loop.time()

    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        if self.wire.inflated >= INFLATED_AT_ONCE:
            self._rest()
        if self.paused:
            if self.wire.has_to_send:
                self._stop_reading()
        else:
            self.write_soon()

    def on_nonsense(self, error: PeerWireError) -> None:
        if isinstance(error, Http2Error):
            self._host.on_violation(self, error.kind)
        transport = self.transport
        if transport is not None:
            # What is wrong is told before the end, if it can be read. Of who does not read it is known then:
            # `writelines` of asyncio's own sockets pauses nobody.
            transport.write(b"".join(self.wire.data_to_send()))
            transport.close()

    def _rest(self) -> None:
        """Read on later: what one connection has inflated in a turn of the loop keeps no other waiting."""
        self._stop_reading()
        wait_s = self.wire.limits.inflating.rest(self.wire.inflated, self.loop.time())
        if self._resting is not None:
            self._resting.cancel()
        self._resting = self.loop.call_later(wait_s, self._go_on)

    def _go_on(self) -> None:
        self._resting = None
        if self.transport is None:
            return
        self.on_heard()
        self.wire.go_on()
        self._events()
        self._tell_cuts()
        self.write_soon()
        if self.wire.inflated >= INFLATED_AT_ONCE:
            self._rest()
        elif not self.paused:
            self._read_on()

    def on_gone(self, error: BaseException | None) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        self.wire.receive(b"")
        self._events()
        self._let_write()
        self._tell_cuts()
        self._host.on_closed(self)

    @property
    def is_full(self) -> bool:
        """Whether further responses have to wait, because the peer does not read."""
        return self.paused or self.wire.unsent > _MOST_UNSENT

    def outgoing(self) -> list[bytes]:
        out = self.wire.data_to_send()
        if len(out) > 1:
            return [b"".join(out)]
        return out

    def _write(self) -> None:
        super()._write()
        if self._rooms and not self.paused:
            self._let_write()
        if self.wire.left and not self.paused and self.transport is not None:
            if self.wire.may_close(self.loop.time()):
                self.transport.close()
            elif self.wire.has_to_send:
                self.write_soon()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._paused_at = self.loop.time()
        self._unread = self._written()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._paused_at = None
        self._let_write()
        if self._resting is None:
            self._read_on()

    def _written(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def _stop_reading(self) -> None:
        """Who does not read his answers has no more questions read, nor anything else that is answered."""
        if self._reading and self.transport is not None and not self.transport.is_closing():
            self._reading = False
            self.transport.pause_reading()

    def _read_on(self) -> None:
        if not self._reading and self.transport is not None and not self.transport.is_closing():
            self._reading = True
            self.transport.resume_reading()

    def _let_write(self) -> None:
        for room in self._rooms:
            if not room.done():
                room.set_result(None)

    def tick(self, now: float) -> None:
        """Run everything that is due."""
        wire = self.wire
        # Its signs of life are not seen, or not asked for: it is alive as long as it takes something.
        wire.deaf = self._paused_at is not None or self._resting is not None
        if self._paused_at is not None:
            self._tick_paused(now)
        wire.tick(now)
        if wire.leaving and wire.streams:
            self._host.on_leaving(self)
        self._events()
        self._tell_cuts()
        if wire.has_to_send or wire.left or self._rooms:
            self.write_soon()

    def _tick_paused(self, now: float) -> None:
        unread = self._written()
        if self._unread - unread >= _PROGRESS:
            self._paused_at, self._unread = now, unread
        elif self._paused_at is not None and now - self._paused_at >= self.wire.limits.slow_s:
            self._host.on_violation(self, "answers_unread")
            self.cut()

    def _tell_cuts(self) -> None:
        if self.wire.cut_streams or self.wire.refused_streams:
            self._host.on_cut(self)

    def leave(self, within_s: float) -> None:
        """Tell the client to open nothing more here; the connection ends with its last call.

        It is told when it waits for an answer, or after `within_s` seconds.
        """
        now = self.loop.time()
        self.wire.leave(now, within_s)
        self.write_soon()

    def end(self) -> None:
        """Close at once; what was answered and held back still goes out."""
        self.wire.release()
        if self.transport is not None and not self.paused:
            self.transport.writelines(self.wire.data_to_send())
        self.cut()

    def _events(self) -> None:
        try:
            while (event := self.wire.next_event()) is not None:
                self.on_event(event)
        except PeerWireError as error:
            self.on_nonsense(error)

    # -- calls ------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        kind = type(event)
        stream = event.stream
        if kind is Called:
            # Who has taken it back already is not served at all.
            if self.wire.is_open(stream):
                self._begin(stream, event.message)  # type: ignore[union-attr]
            return
        call: Http2Call | None = stream.call
        if call is None:
            if kind is Opened and self.wire.is_open(stream):
                self._begin(stream, None)
        elif kind is Said:
            call.said(event.message)  # type: ignore[union-attr]
        elif kind is Ended:
            call.said(None)
        elif kind is Roomy:
            call.has_room()
        elif kind is Cut or kind is Late:
            call.cancel()

    def _begin(self, stream: Stream, message: bytes | None) -> None:
        if self.paused:
            self._stop_reading()
        call = stream.call = Http2Call(self, stream)
        call.run(self._host.serve(call, message))

    async def until_writable(self) -> None:
        """Wait until the transport takes more."""
        while self.is_full and self.transport is not None:
            room = self.loop.create_future()
            self._rooms.add(room)
            try:
                await room
            finally:
                self._rooms.discard(room)


def _address(name: Any, connection: object) -> str:
    """ "host:port" of a socket's address; a made-up name for one without an address."""
    if isinstance(name, tuple) and len(name) >= 2:
        return joined(str(name[0]), int(name[1]))
    return f"unix:{id(connection):x}"
