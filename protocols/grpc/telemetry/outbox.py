"""The commands that wait to be written to one client: in order, bounded, written by one task at most."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from popgate.context import Context
from popgate.errors import GatewayError, TooManyRequests
from popgate.pb.service_pb2 import TelemetryCommand
from protocols.grpc.codec.client_quirks import can_receive
from protocols.grpc.transport import BrokenStream, TelemetryChannel

_MOST = 64
_MOST_BYTES = 8 * 1024 * 1024
"""Commands, and bytes of their messages, that wait for one client to read them."""

_log = logging.getLogger(__name__)

Maker = Callable[[], Awaitable[TelemetryCommand]]


class Gone:
    """In the place of a stream that has ended, by those who are remembered longer: it holds nothing."""

    async def read(self) -> TelemetryCommand | None:
        raise BrokenStream("the stream has ended")

    async def write(self, command: TelemetryCommand) -> None:
        raise BrokenStream("the stream has ended")


GONE = Gone()


class Outbox:
    """Writes to one stream until it is closed. What it holds counts in the request's allowance."""

    def __init__(self, commands: TelemetryChannel, context: Context) -> None:
        self._commands = commands
        self._context = context
        self._waiting: deque[tuple[TelemetryCommand, int]] = deque()
        self._bytes = 0
        self._last: Maker | None = None
        self._task: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self.closed = False

    def __repr__(self) -> str:
        return f"<Outbox {len(self._waiting)} bytes {self._bytes}{' closed' if self.closed else ''}>"

    def __len__(self) -> int:
        return len(self._waiting)

    async def write(self, command: TelemetryCommand) -> None:
        """Write before what waits. Raises BrokenStream."""
        async with self._writing:
            await self._commands.write(command)

    def put(self, command: TelemetryCommand, size: int = 0) -> bool:
        """Write it soon; `size` is that of its message's body. False when there is no room for it."""
        if self.closed or len(self._waiting) >= _MOST:
            return False
        if not can_receive(self._context, whole := command.ByteSize()):
            # Its gRPC would end the stream, and C#'s client opens no other while it runs.
            _log.warning(
                "a command of %d bytes is too large for the client %s (%s)",
                whole,
                self._context.client_id,
                self._context.language,
            )
            return False
        if self._waiting and self._bytes + size > _MOST_BYTES:
            return False
        if not self._may_hold(size):
            return False
        self._waiting.append((command, size))
        self._bytes += size
        self._begin()
        return True

    def put_last(self, make: Maker) -> None:
        """Make a command when its turn has come, behind what waits; the last maker takes the place of others.

        A maker that raises GatewayError writes nothing.
        """
        if not self.closed:
            self._last = make
            self._begin()

    async def flush(self, longest_s: float) -> None:
        """Wait until what waits is written, but no longer than so many seconds."""
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=longest_s)

    def close(self) -> None:
        """The stream ended: drop waiting commands. The opener of the request releases its allowance."""
        self.closed = True
        self._commands = GONE
        self._waiting.clear()
        self._bytes = 0
        self._last = None
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._waiting or self._last is not None:
                if self._waiting:
                    await self._write_first()
                elif (make := self._last) is not None:
                    self._last = None
                    await self._write_made(make)
        except BrokenStream:
            # The reading side notices too, and ends the stream.
            self._forget()
        except Exception:
            _log.exception("nothing more is written to %s", self._context.client_id)
            self._forget()
        finally:
            self._task = None

    async def _write_first(self) -> None:
        command, size = self._waiting.popleft()
        self._bytes -= size
        try:
            await self.write(command)
        finally:
            self._let_go(size)

    async def _write_made(self, make: Maker) -> None:
        try:
            command = await make()
        except GatewayError:
            return
        await self.write(command)

    def _forget(self) -> None:
        self._let_go(self._bytes)
        self._waiting.clear()
        self._bytes = 0
        self._last = None

    def _may_hold(self, size: int) -> bool:
        if self._context.allowance is not None:
            try:
                self._context.allowance.take(size)
            except TooManyRequests:
                return False
        return True

    def _let_go(self, size: int) -> None:
        if size and not self.closed and self._context.allowance is not None:
            self._context.allowance.add(-size)
