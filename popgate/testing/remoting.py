"""A bare remoting client: it sends the given commands, and records the received ones."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping

from popgate.sockets.wire_driver import WireDriver
from popgate.wire.frames.headers import Serialization
from popgate.wire.frames.remoting import IS_ONEWAY, VERSION, Command, RemotingWire, encode_command

ANSWER_S = 60.0
"""The timeout of a response: a test machine is busy, so only a missing response is an error."""
_MOST_ASKED = 10_000
"""Requests of the server that are kept; of a client that reads none the oldest go."""


class RemotingClient(WireDriver[RemotingWire, Command]):
    """One connection. `asked`: requests of the server, which are answered by `write`."""

    def __init__(
        self,
        *,
        version: int = VERSION,
        language: str = "JAVA",
        serialization: Serialization = Serialization.JSON,
    ) -> None:
        super().__init__(RemotingWire(), asyncio.get_running_loop())
        self.version = version
        self.language = language
        self.serialization = serialization
        self.asked: deque[Command] = deque(maxlen=_MOST_ASKED)
        self.replies: Callable[[Command], Command] | None = None
        """Functions that answer requests of the server at once; these are not added to `asked`."""
        self.heard: list[Command] = []
        """Answers, in the order in which they came."""
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._opaque = 0
        self._changed = asyncio.Event()
        self.is_over = False

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        path: str = "",
        version: int = VERSION,
        language: str = "JAVA",
        serialization: Serialization = Serialization.JSON,
    ) -> RemotingClient:
        client = cls(version=version, language=language, serialization=serialization)
        if path:
            await client.loop.create_unix_connection(lambda: client, path, ssl=tls)
        else:
            await client.loop.create_connection(lambda: client, host, port, ssl=tls)
        return client

    def request(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", *, oneway: bool = False
    ) -> Command:
        self._opaque += 1
        return Command(
            code,
            self._opaque,
            IS_ONEWAY if oneway else 0,
            dict(fields or {}),
            body,
            language=self.language,
            version=self.version,
            serialization=self.serialization,
        )

    def start(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> asyncio.Future[Command]:
        """Ask, and go on. The future fails with ConnectionError when the connection ends."""
        request = self.request(code, fields, body)
        answer = self.awaited(request)
        self.write(encode_command(request))
        return answer

    def awaited(self, request: Command) -> asyncio.Future[Command]:
        """The answer to a request that is written otherwise."""
        answer: asyncio.Future[Command] = self.loop.create_future()
        self._waiting[request.opaque] = answer
        return answer

    async def call(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
        async with asyncio.timeout(ANSWER_S):
            return await self.start(code, fields, body)

    def tell(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        self.write(encode_command(self.request(code, fields, body, oneway=True)))

    def write(self, data: bytes) -> None:
        """Any bytes."""
        assert self.transport is not None  # noqa: S101 - a test that goes wrong
        self.transport.write(data)

    async def next_asked(self) -> Command:
        """The next request of the server."""
        async with asyncio.timeout(ANSWER_S):
            while not self.asked:
                self._changed.clear()
                await self._changed.wait()
        return self.asked.popleft()

    async def until_over(self) -> None:
        async with asyncio.timeout(ANSWER_S):
            while not self.is_over:
                self._changed.clear()
                await self._changed.wait()

    async def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        await self.until_over()

    def on_event(self, event: Command) -> None:
        if event.is_response:
            self.heard.append(event)
            waiting = self._waiting.pop(event.opaque, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(event)
        elif self.replies is None or event.is_oneway:
            self.asked.append(event)
        else:
            self.write(encode_command(self.replies(event)))
        self._changed.set()

    def on_gone(self, error: BaseException | None) -> None:
        self.is_over = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("the connection ended"))
                waiting.exception()
        self._waiting.clear()
        self._changed.set()
