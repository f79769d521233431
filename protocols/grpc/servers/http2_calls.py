"""Adapts streams of an HTTP/2 connection to the interface of the service."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from protocols.eager_tasks import EagerTask
from protocols.grpc.http2.events import Status
from protocols.grpc.http2.frames.stream import Stream
from protocols.grpc.http2.hpack.decoder import HpackError
from protocols.grpc.transport import BrokenStream, CallFailed

if TYPE_CHECKING:
    from protocols.grpc.servers.http2_connections import Http2Connection

_log = logging.getLogger(__name__)


class Http2Call:
    """The `Call`, `ResponseStream` and `TelemetryChannel` of one stream, and the coroutine that serves it."""

    __slots__ = ("_future", "_read", "_running", "_said", "connection", "parse", "stream")

    def __init__(self, connection: Http2Connection, stream: Stream) -> None:
        self.connection = connection
        self.stream = stream
        self.parse: Callable[[bytes], Any] | None = None
        """What makes commands of bytes; None: they are read as they are."""
        self._running: EagerTask | None = None
        self._said: deque[bytes | None] | None = None
        self._read: asyncio.Future[None] | None = None
        self._future: asyncio.Future[None] | None = None

    # -- circumstances ----------------------------------------------------------------------------

    @property
    def metadata(self) -> Iterator[tuple[str, str]]:
        head = self.stream.head
        if head is not None:
            for field in head.fields:
                yield field.name, field.text

    def header(self, name: str) -> str:
        head = self.stream.head
        try:
            return head.text(name) if head is not None else ""
        except HpackError:
            # Compressed badly; it said nothing that can be read.
            return ""

    @property
    def names(self) -> tuple[str, ...]:
        return self.connection.names

    @property
    def peer(self) -> str:
        return self.connection.peer

    @property
    def local(self) -> str:
        head = self.stream.head
        return (head.authority if head is not None else "") or self.connection.local

    def time_remaining(self) -> float | None:
        deadline = self.stream.deadline
        return None if deadline is None else deadline - self.connection.loop.time()

    # -- running ----------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self._running = EagerTask(work, self.connection.loop, self._ended)
        self._running.start()

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """What runs it, None when it is over."""
        # It is one in all that is asked of it here.
        return self._running  # type: ignore[return-value]

    def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    def _ended(self, error: BaseException | None) -> None:
        self._running = None
        # Each would keep the other until the collector comes.
        self.stream.call = None
        if error is None:
            return
        if isinstance(error, CallFailed):
            self.finish(error.status, error.sentence)
        elif isinstance(error, asyncio.CancelledError):
            self.finish(Status.CANCELLED, "the call was cut off")
        elif not isinstance(error, BrokenStream):
            _log.error("a call of %s failed", self.connection.peer, exc_info=error)
            self.finish(Status.INTERNAL, "internal error of the gateway, its log tells more")

    @property
    def is_open(self) -> bool:
        return self.connection.wire.is_open(self.stream)

    # -- answers ----------------------------------------------------------------------------------

    def answer(self, message: bytes) -> None:
        """The only one, and the end. Nothing when the client is gone."""
        connection = self.connection
        if connection.wire.is_open(self.stream):
            connection.wire.answer(self.stream, message)
            connection.write_soon()

    def open_answer(self, metadata: Iterable[tuple[str, str | bytes]] = (), *, gzip: bool = False) -> None:
        """Send the headers before there is a message, once. `gzip`: messages may be compressed."""
        if self.is_open:
            self.connection.wire.open_answer(self.stream, metadata=metadata, gzip=gzip)
            self.connection.write_soon()

    def finish(
        self, status: int = 0, sentence: str = "", metadata: Iterable[tuple[str, str | bytes]] = ()
    ) -> None:
        """End the call after the written messages. No effect when the client is gone."""
        connection = self.connection
        if connection.wire.is_open(self.stream):
            connection.wire.finish(self.stream, status, sentence, metadata)
            connection.write_soon()

    async def write(self, answer: Message) -> None:
        await self.write_bytes(answer.SerializeToString())

    async def write_bytes(self, message: bytes, *, gzip: bool = False) -> None:
        """Returns when there is room for more. Raises BrokenStream."""
        connection = self.connection
        if connection.is_full:
            await connection.until_writable()
        if not connection.wire.is_open(self.stream) or connection.transport is None:
            raise BrokenStream("the client is gone")
        roomy = connection.wire.write(self.stream, message, gzip=gzip)
        connection.write_soon()
        if not roomy:
            room = self._future = connection.loop.create_future()
            try:
                await room
            finally:
                # Who gives up may hear of it when another waits already: at the end of a Telemetry stream.
                if self._future is room:
                    self._future = None
        elif connection.is_full:
            await connection.until_writable()

    def write_at_once(self, messages: Sequence[bytes]) -> int:
        """As many of these as there is room for; how many."""
        connection = self.connection
        if connection.is_full or connection.transport is None or not connection.wire.is_open(self.stream):
            return 0
        taken = connection.wire.write_some(self.stream, messages)
        connection.write_soon()
        return taken

    def has_room(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    # -- questions --------------------------------------------------------------------------------

    def said(self, message: bytes | None) -> None:
        """One more came; None: the last has come."""
        if self._said is None:
            self._said = deque()
        self._said.append(message)
        if self._read is not None and not self._read.done():
            self._read.set_result(None)

    async def read_bytes(self) -> bytes | None:
        """The next; None when the client sends no more. Raises BrokenStream."""
        while not self._said:
            if not self.is_open:
                raise BrokenStream("the client is gone")
            self._read = self.connection.loop.create_future()
            try:
                await self._read
            finally:
                self._read = None
        message = self._said[0]
        if message is None:
            return None
        self._said.popleft()
        if not self._said:
            self.connection.wire.took(self.stream)
            self.connection.write_soon()
        return message

    async def read(self) -> Any:
        """The next, as `parse` makes it."""
        data = await self.read_bytes()
        return data if data is None or self.parse is None else self.parse(data)
