"""A load balancer for TCP, as one stands before replicas: it knows bytes, and who takes connections."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence

from popgate.sockets.servers import close_server

_PIECE = 1 << 16


class Balancer:
    """Connects each client with a replica, in turn. `open` tells the addresses that are to get new ones."""

    def __init__(self, replicas: Callable[[], Sequence[str]]) -> None:
        self._replicas = replicas
        self._turn = itertools.count()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.tries_others = True
        """Whether a client whose replica takes no connection is connected with another one."""

    @property
    def address(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def start(self) -> Balancer:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    def serve(self, replicas: Callable[[], Sequence[str]]) -> None:
        """These are what stands behind it from now on."""
        self._replicas = replicas

    async def close(self) -> None:
        if self._server is not None:
            await close_server(self._server)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._carry(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = await self._dial()
        if found is None:
            return
        self.connections += 1
        far_reader, far_writer = found
        ways = [
            asyncio.ensure_future(_pump(reader, far_writer)),
            asyncio.ensure_future(_pump(far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            far_writer.transport.abort()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection to one that takes it; None when none does: the client tries again."""
        replicas = list(self._replicas())
        turn = next(self._turn)
        for at in range(len(replicas) if self.tries_others else min(len(replicas), 1)):
            host, _, port = replicas[(turn + at) % len(replicas)].rpartition(":")
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(host, int(port))
        return None


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()
    # What was written last must get there before the connection is ended.
    writer.write_eof()
