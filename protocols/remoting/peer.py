"""The peer of a connection, as the rooms see it: who it is, and requests to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from popgate.errors import BrokerUnavailable, LocalWireError
from popgate.wire.frames.headers import Serialization
from popgate.wire.frames.remoting import IS_ONEWAY, Command, encode_command

MOST_ASKED: Final = 1024
"""Requests of ours to one peer that are not answered yet."""
_OPAQUES: Final = 1 << 30
_LARGEST_SHORT: Final = 0x7FFF
"""Codes above it do not fit into a binary header."""

_log = logging.getLogger(__name__)


class Link(Protocol):
    """What a peer asks of its connection."""

    @property
    def alive(self) -> bool: ...

    def write_request(self, data: bytes) -> bool:
        """False: too much waits for the peer to read."""
        ...


class _NoLink:
    """In the place of a connection that is over: the two would keep each other until the collector comes."""

    alive = False

    def write_request(self, data: bytes) -> bool:
        return False


_OVER: Final = _NoLink()


class ConnectedPeer:
    """A `requests.Peer`."""

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        self._link: Link = link
        self._loop = loop
        self.address = ""
        self.client_id = ""
        self.version = 0
        self.language = "OTHER"
        self.serialization = Serialization.JSON
        """Of its last request: what it surely can read."""
        self._asked: dict[int, asyncio.Future[Command]] = {}
        self._opaque = 0
        self._on_gone: list[Callable[[], None]] = []
        self._gone = False

    def __repr__(self) -> str:
        return f"<ConnectedPeer {self.address} {self.client_id} asked {len(self._asked)}>"

    @property
    def alive(self) -> bool:
        return self._link.alive

    @property
    def asked(self) -> int:
        """How many requests of ours it has not answered."""
        return len(self._asked)

    def tell(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> bool:
        return self._send(code, fields, body, IS_ONEWAY) is not None

    def ask(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> asyncio.Future[Command] | None:
        if len(self._asked) >= MOST_ASKED:
            return None
        opaque = self._send(code, fields, body, 0)
        if opaque is None:
            return None
        answer: asyncio.Future[Command] = self._loop.create_future()
        self._asked[opaque] = answer
        answer.add_done_callback(lambda _: self._asked.pop(opaque, None))
        return answer

    def on_gone(self, callback: Callable[[], None]) -> None:
        if self._gone:
            callback()
        else:
            self._on_gone.append(callback)

    # -- what its connection tells ----------------------------------------------------------------

    def said(self, command: Command) -> None:
        """It sent a request."""
        self.version, self.language = command.version, command.language
        self.serialization = command.serialization

    def answered(self, answer: Command) -> None:
        """A response arrived; one without a pending request is ignored."""
        waiting = self._asked.pop(answer.opaque, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def gone(self) -> None:
        """The connection is over."""
        self._gone = True
        self._link = _OVER
        for waiting in tuple(self._asked.values()):
            if not waiting.done():
                waiting.set_exception(BrokerUnavailable(f"the connection of {self.address} ended"))
                waiting.exception()  # who has stopped waiting misses nothing
        self._asked.clear()
        callbacks, self._on_gone = self._on_gone, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                _log.exception("somebody who waited for the end of %s failed", self.address)

    def _send(self, code: int, fields: Mapping[str, str], body: bytes, flag: int) -> int | None:
        """Its number; None when it cannot be taken."""
        if not self.alive:
            return None
        opaque = self._opaque = (self._opaque + 1) % _OPAQUES
        serialization = self.serialization if code <= _LARGEST_SHORT else Serialization.JSON
        try:
            data = encode_command(
                Command(code, opaque, flag, dict(fields), body, serialization=serialization)
            )
        except LocalWireError as error:
            _log.warning("a request to %s cannot be written: %s", self.address, error)
            return None
        return opaque if self._link.write_request(data) else None
