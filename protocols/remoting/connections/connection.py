"""One connection of the remoting door: commands become requests, and their results become responses."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from popgate.context import Context
from popgate.errors import PeerWireError
from popgate.sockets.wire_driver import WireDriver
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command, RemotingWire, TlsSpoken
from protocols.adapter import joined
from protocols.proxy_protocol import Proxied, ProxyHeader
from protocols.remoting.connections.calls import Host, RemotingCall
from protocols.remoting.connections.write_queue import WriteQueue, lose
from protocols.remoting.door import WAITS
from protocols.remoting.peer import ConnectedPeer
from protocols.remoting.requests import Request
from protocols.tls import names_of

_PROGRESS: Final = 4096
"""Bytes that a request, or an answer, has to go on by in a while, if there are as many."""

_log = logging.getLogger(__name__)


class RemotingConnection(WireDriver[RemotingWire, Command]):
    """One connection. `peer` is who is at its other end. With `proxied` a PROXY header comes first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: Host, *, proxied: bool = False) -> None:
        super().__init__(RemotingWire(), loop)
        self._host = host
        self._header = ProxyHeader() if proxied else None
        """Until it has been read."""
        self._proxied: Proxied | None = None
        self._out = WriteQueue()
        self._calls: set[RemotingCall] = set()
        self._waiting = 0
        """Long polls among them."""
        self._reading = True
        self.left_at: float | None = None
        """Loop time since which only one-way requests are served; None before."""
        self._last_answers = self._has_answered = False
        """Whether it ends behind the next answer after which nothing is under way, and whether one is due."""
        self.peer = ConnectedPeer(self, loop)
        self.names: tuple[str, ...] = ()
        """Of the client's certificate: `protocols.tls.names_of`."""
        self.place: str | None = None
        """What it is counted by: `protocols.admission`."""
        self.local = ""
        self.key = ""
        """What the budgets know it by."""
        self.heard_at = loop.time()
        """When it last said something."""
        self.unfinished = 0
        """Bytes of a request that has not come as a whole."""
        self._stands: tuple[float, int] | None = None
        """Since when a request, or what the peer reads, has not gone on from so many bytes."""

    def __repr__(self) -> str:
        return f"<RemotingConnection {self.peer.address} requests {len(self._calls)}>"

    @property
    def alive(self) -> bool:
        transport = self.transport
        return transport is not None and not transport.is_closing() and self.left_at is None

    @property
    def under_way(self) -> int:
        """Requests that are served now, long polls among them."""
        return len(self._calls)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on its way, as far as is known here."""
        return not (self._calls or self._out or self.peer.asked or self.paused or self.unfinished)

    @property
    def has_begun(self) -> bool:
        """Whether it has said who it is, where that comes first."""
        return self._header is None

    # -- the transport ----------------------------------------------------------------------------

    def on_open(self, transport: asyncio.Transport) -> None:
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self.names = names_of(tls)
        self.peer.address = _address(transport.get_extra_info("peername"), self)
        self.local = _address(transport.get_extra_info("sockname"), self)
        self.key = f"remoting:{self.peer.address}"
        if self._proxied is not None:
            self._is_for(self._proxied)
        self.on_heard()
        if not self._host.on_open(self):
            transport.abort()

    def on_heard(self) -> None:
        self.heard_at = self.loop.time()

    def buffer_updated(self, nbytes: int) -> None:
        if self._header is None:
            super().buffer_updated(nbytes)
            self._mind_unfinished()
            self._mind_reading()
            return
        self.on_heard()
        header = self._header
        try:
            header.receive(self._read[:nbytes])
            proxied = header.next_event()
            if proxied is None:
                return
            self._header = None
            self._is_for(proxied)
            if not self._host.on_told(self, proxied.peer):
                self.cut()
                return
            if rest := header.rest():
                self.wire.receive(rest)
                while (event := self.wire.next_event()) is not None:
                    self.on_event(event)
                self._mind_unfinished()
        except PeerWireError as error:
            self.on_nonsense(error)

    def begin(self, proxied: Proxied) -> None:
        """Start with a header of the PROXY protocol that was read before the connection was opened."""
        self._header = None
        self._proxied = proxied

    def _is_for(self, proxied: Proxied) -> None:
        if proxied.peer is not None:
            self.peer.address = joined(*proxied.peer)
        if proxied.local is not None:
            self.local = joined(*proxied.local)

    def _mind_unfinished(self) -> None:
        unfinished = self.wire.unfinished
        if unfinished != self.unfinished:
            more, self.unfinished = unfinished - self.unfinished, unfinished
            self._host.on_unfinished(self, more)

    def on_nonsense(self, error: PeerWireError) -> None:
        _log.debug("%s is cut off: %s", self.peer.address, error)
        kind = "tls" if isinstance(error, TlsSpoken) else "bad_frame"
        self._host.on_violation(self, "bad_proxy_header" if self._header is not None else kind)
        self.cut()

    def on_gone(self, error: BaseException | None) -> None:
        for call in tuple(self._calls):
            # All else is done to its end: who says something one-way, and goes, has said it.
            if call.waits:
                call.cancel()
        self._out.lose()
        if self.unfinished:
            more, self.unfinished = -self.unfinished, 0
            self._host.on_unfinished(self, more)
        self.peer.gone()
        self._host.on_closed(self)

    def outgoing(self) -> list[bytes]:
        return self._out.take()

    def _write(self) -> None:
        ends = self._last_answers and self._has_answered and not self._calls
        self._has_answered = False
        if ends:
            self._out.go_on()
        super()._write()
        if self.paused:
            self._mind_reading()
        if self.left_at is not None:
            self._end_if_done()
        elif ends and self.is_quiet:
            self.leave()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._mind_reading()

    def stands_still(self, now: float, longest_s: float) -> str:
        """What has hardly gone on for so long; empty: all does. To be asked again and again."""
        transport = self.transport
        if transport is None or not (self.paused or (self.unfinished and self._reading)):
            self._stands = None
            return ""
        seen = transport.get_write_buffer_size() if self.paused else self.unfinished
        if self._stands is None or abs(seen - self._stands[1]) >= _PROGRESS:
            self._stands = now, seen
        elif now - self._stands[0] >= longest_s:
            return "answers_unread" if self.paused else "slow_requests"
        return ""

    def _mind_reading(self) -> None:
        """Who does not read his answers, or asks very much at once, is not read for a while."""
        # Not for `paused` alone: TLS of asyncio writes what is its own when something is read.
        behind = self.paused and self._out
        reads = not behind and len(self._calls) - self._waiting < self._host.max_requests
        transport = self.transport
        if reads != self._reading and transport is not None and not transport.is_closing():
            self._reading = reads
            if reads:
                self.on_heard()
                transport.resume_reading()
            else:
                transport.pause_reading()

    def leave_behind_an_answer(self) -> None:
        """End it together with the next answer after which nothing is under way; until then all is served.

        The peer reads the end right behind the answer that it waits for. Who asks one thing after the other
        has nothing on its way then; in any other moment it may, and would lose it.
        """
        self._last_answers = True

    def leave(self) -> None:
        """Close it when pending responses are written; requests that expect a response are served no more.

        Our direction is closed first. What the peer sent until it saw that is still read: requests that
        are not served fail at the peer, which sees that the connection ended and sends them elsewhere, and
        one-way requests are served.
        """
        if self.left_at is None:
            self.left_at = self.loop.time()
            self.go_on()
            self._end_if_done()

    def _end_if_done(self) -> None:
        transport = self.transport
        if transport is None or transport.is_closing() or self._calls or self._out or self.paused:
            return
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    # -- requests ---------------------------------------------------------------------------------

    def on_event(self, event: Command) -> None:
        if event.is_response:
            self.peer.answered(event)
            return
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        host, waits = self._host, event.code in WAITS
        self.peer.said(event)
        if self.left_at is not None and not event.is_oneway:
            return
        if host.turns_away(event):
            self._refuse(event, ResponseCode.GO_AWAY, "the gateway shuts down")
            return
        if waits and self._waiting >= host.max_waiting:
            sentence = f"{self._waiting} requests of this connection wait, which is the limit"
            self._refuse(event, ResponseCode.SYSTEM_BUSY, sentence)
            host.on_refused(self)
            return
        call = RemotingCall(self, Request(event, self._context(event), self.peer), waits=waits)
        self._calls.add(call)
        self._waiting += waits
        host.on_begin(call)
        call.run(host.door, self.loop)

    def _refuse(self, command: Command, code: ResponseCode, sentence: str) -> None:
        self._host.door.refused(command, code)
        if not command.is_oneway:
            self._out.answer(command.answer(code, sentence), None)
            self.write_soon()

    def _context(self, command: Command) -> Context:
        peer = self.peer
        return Context(
            peer.client_id,
            command.language,
            str(command.version),
            door="remoting",
            peer=peer.address,
            local=self.local,
            certificate=self.names,
            connection=self.key,
            allowance=self._host.allowance(self),
        )

    def ended(self, call: RemotingCall, answer: Command | None, error: BaseException | None) -> None:
        """A request was served; None for a one-way request, or without a response."""
        self._calls.discard(call)
        self._waiting -= call.waits
        self._host.on_end(call)
        request = call.request
        if error is not None and not isinstance(error, asyncio.CancelledError):
            _log.error("a request of %s failed", self.peer.address, exc_info=error)
        if answer is None or self.transport is None:
            lose(request)
            if self.left_at is not None:
                self._end_if_done()
        elif self.left_at is None and self._host.holds_back(call, answer):
            self._out.hold_back(answer, request)
        else:
            self._out.answer(answer, request)
            self._has_answered = True
            self.write_soon()
        if self.paused or not self._reading:
            self._mind_reading()

    def go_on(self) -> None:
        """Write the answers that were held back."""
        if self._out.go_on():
            self._has_answered = True
            self.write_soon()

    def write_request(self, data: bytes) -> bool:
        taken = self.alive and self._out.request(data)
        self.write_soon()
        return taken


def _address(name: Any, connection: object) -> str:
    """ "host:port" of a socket's address; a made-up name for one without an address."""
    if isinstance(name, tuple) and len(name) >= 2:
        host = str(name[0]).partition("%")[0]
        return joined(host.removeprefix("::ffff:") if "." in host else host, int(name[1]))
    return f"unix:{id(connection):x}"
