"""Any sans-IO wire on an asyncio transport: read into one buffer, written once per turn of the loop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

from popgate.errors import PeerWireError
from popgate.wire.frames.contract import Wire

Event = TypeVar("Event")
Machine = TypeVar("Machine", bound="Wire[Any]")

_READ_BYTES = 64 * 1024


_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = WeakKeyDictionary()


def _buffer_of(loop: asyncio.AbstractEventLoop) -> memoryview:
    """The receive buffer of all connections of a loop: each consumes its data before the next one reads."""
    buffer = _buffers.get(loop)
    if buffer is None:
        buffer = _buffers[loop] = memoryview(bytearray(_READ_BYTES))
    return buffer


class WireDriver(asyncio.BufferedProtocol, Generic[Machine, Event]):
    """One connection of `wire`. Subclasses handle its events and produce its output.

    `paused`: the peer does not read; nothing is passed to the transport until it does, so that the unwritten
    bytes are known. `write_soon` may be called any number of times: the transport is written to once per
    turn of the loop.
    """

    def __init__(self, wire: Machine, loop: asyncio.AbstractEventLoop) -> None:
        self.wire = wire
        self.loop = loop
        self.paused = False
        self.transport: asyncio.Transport | None = None
        self._read = _buffer_of(loop)
        self._due = False
        self._joins = False
        """Before they are written: see `connection_made`."""

    def on_open(self, transport: asyncio.Transport) -> None:
        """The connection is there."""

    def on_event(self, event: Event) -> None:
        """Handle an event from the peer."""
        raise TypeError(f"{type(self).__name__} does not say what an event means")

    def on_heard(self) -> None:
        """Called when bytes were received, before their events."""

    def on_nonsense(self, error: PeerWireError) -> None:
        """The other side broke the protocol; by default the connection is cut."""
        self.cut()

    def on_gone(self, error: BaseException | None) -> None:
        """The connection is over, for whatever reason."""

    def outgoing(self) -> list[bytes]:
        """Remove and return the next bytes to write; called until there are none, or the peer is slow."""
        return self.wire.data_to_send()

    def write_soon(self) -> None:
        """Schedule a write before the loop waits again."""
        if not self._due and not self.paused and self.transport is not None:
            self._due = True
            self.loop.call_soon(self._write)

    def cut(self) -> None:
        """Close at once, without writing pending output."""
        if self.transport is not None:
            self.transport.abort()

    def _write(self) -> None:
        self._due = False
        transport = self.transport
        while transport is not None and not self.paused and not transport.is_closing():
            data = self.outgoing()
            if not data:
                return
            if self._joins:
                transport.write(b"".join(data))
            else:
                transport.writelines(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # What uvloop gives is one in all but its class.
        self.transport = transport = cast("asyncio.Transport", transport)
        # Nothing waits in the transport that could wait here: then it is known what was not sent.
        with contextlib.suppress(NotImplementedError):
            transport.set_write_buffer_limits(high=1)
        # `writelines` of asyncio's own sockets pauses nobody (read in Python 3.12.1 and 3.13.0).
        self._joins = type(transport).__module__.startswith("asyncio.")
        self.on_open(transport)
        self.write_soon()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        self.on_heard()
        wire = self.wire
        try:
            wire.receive(self._read[:nbytes])
            while (event := wire.next_event()) is not None:
                self.on_event(event)
        except PeerWireError as error:
            self.on_nonsense(error)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.write_soon()

    def connection_lost(self, error: BaseException | None) -> None:
        self.transport = None
        self.on_gone(error)
