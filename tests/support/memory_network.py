"""Connections between protocols of one loop, in memory: nothing of them is ever on its way in the system.

What was written is with the other side a turn of the loop later, whatever else the machine does. So a test
that moves its clock knows that nothing is under way when the loop has nothing to do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

ROOM = 256 * 1024
"""Bytes that a connection holds for a side that does not read; then who writes is told to pause."""


class MemoryTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: MemoryNetwork, loop: asyncio.AbstractEventLoop, protocol: Any) -> None:
        super().__init__()
        self.other: MemoryTransport = self
        self._network, self._loop, self._protocol = network, loop, protocol
        self._came: deque[memoryview] = deque()
        """What the other side wrote and this one has not read."""
        self._size = 0
        self._ended = False
        """Whether the other side writes no more,"""
        self._told_end = False
        """which this one knows."""
        self._wrote_end = False
        self._closing = False
        self._reads = True
        self._due = False
        self._other_waits = False

    # -- what the protocol asks ---------------------------------------------------------------------

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reads and not self._closing

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True
        self._deliver_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer here: what is written is with the other side."""

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        other = self.other
        if self._wrote_end or self._closing or other._closing or not data:
            return
        other._came.append(memoryview(bytes(data)))
        other._size += len(data)
        other._deliver_soon()
        if other._size > ROOM and not other._other_waits:
            other._other_waits = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self._wrote_end = True
        self.other._ended = True
        self.other._deliver_soon()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.write_eof()
            self._network.moved += 1
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self._came.clear()
        self.close()

    # -- what comes ---------------------------------------------------------------------------------

    def _deliver_soon(self) -> None:
        if not self._due and self._reads and not self._closing:
            self._due = True
            self._network.moved += 1
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        """As much as one reading of a socket gives, or the end."""
        self._due = False
        if self._closing or not self._reads:
            return
        if self._came:
            self._size -= self._give()
            if self._other_waits and self._size <= ROOM // 4 and not self.other._closing:
                self._other_waits = False
                self.other._protocol.resume_writing()
        elif self._ended and not self._told_end:
            self._told_end = True
            if not self._protocol.eof_received():
                self.close()
        if self._came or (self._ended and not self._told_end):
            self._deliver_soon()

    def _give(self) -> int:
        """Hand over what the protocol has room for; how many bytes."""
        protocol, size = self._protocol, 0
        if not isinstance(protocol, asyncio.BufferedProtocol):
            data = b"".join(self._came)
            self._came.clear()
            protocol.data_received(data)
            return len(data)
        into = protocol.get_buffer(-1)
        while self._came and size < len(into):
            part = self._came.popleft()
            taken = part[: len(into) - size]
            into[size : size + len(taken)] = taken
            size += len(taken)
            if len(taken) < len(part):
                self._came.appendleft(part[len(taken) :])
        protocol.buffer_updated(size)
        return size


class MemoryNetwork:
    """Takes the place of the system's between the servers and clients of a test that speak without TLS.

    Servers listen at real ports, too, so that each has one of its own. A port where no server was made here
    is the system's.
    """

    def __init__(self) -> None:
        self.moved = 0
        """Counts what was under way: when it stays the same, nothing is."""
        self._servers: dict[int, tuple[asyncio.Server, Callable[[], Any]]] = {}
        self._create_server = asyncio.BaseEventLoop.create_server
        self._create_connection = asyncio.BaseEventLoop.create_connection

    def serve(self, loop: Any) -> None:
        """Take the place from now on, in one loop."""
        loop.create_server = partial(self.create_server, loop)
        loop.create_connection = partial(self.create_connection, loop)

    async def turn(self, work: Callable[[], Awaitable[object]]) -> None:
        """Let the loop `work` until nothing is under way any more."""
        moved = -1
        while moved != self.moved:
            moved = self.moved
            await work()

    async def create_server(
        self, loop: asyncio.BaseEventLoop, factory: Callable[[], Any], *where: Any, **how: Any
    ) -> asyncio.Server:
        server = await self._create_server(loop, factory, *where, **how)
        port = server.sockets[0].getsockname()[1]
        self._servers.pop(port, None)
        if how.get("ssl") is None:
            self._servers[port] = server, factory
        return server

    async def create_connection(
        self, loop: asyncio.BaseEventLoop, factory: Callable[[], Any], host: Any, port: Any, **how: Any
    ) -> tuple[asyncio.Transport, Any]:
        if how.get("ssl") is not None or port not in self._servers:
            return await self._create_connection(loop, factory, host, port, **how)
        self.moved += 1
        await asyncio.sleep(0)
        server, accepting = self._servers[port]
        if not server.is_serving():
            raise ConnectionRefusedError(111, f"Connect call failed ('{host}', {port})")
        ours = MemoryTransport(self, loop, factory())
        theirs = MemoryTransport(self, loop, accepting())
        ours.other, theirs.other = theirs, ours
        for end in (theirs, ours):
            loop.call_soon(end.get_protocol().connection_made, end)
        try:
            await asyncio.sleep(0)
            self.moved += 1
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            ours.abort()
            raise
        return ours, ours.get_protocol()
