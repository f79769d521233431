"""Data to be written to a connection, queued until the transport takes it."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from popgate.errors import LocalWireError
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command, encode_command
from protocols.remoting.requests import Request

MOST_TOLD: Final = 256 * 1024
"""Bytes of requests of ours that wait until the peer reads; beyond them no more are taken."""
_AT_ONCE: Final = 256 * 1024
"""Bytes that are handed to the transport together, where there are so many."""

_log = logging.getLogger(__name__)


class WriteQueue:
    """Responses, and requests of the gateway, in order.

    A response holds its request's share of the budgets until the transport takes it. If it is never taken,
    its handler is notified (`Request.unwritten`).
    """

    __slots__ = ("_back", "_out", "_told")

    def __init__(self) -> None:
        self._out: deque[tuple[bytes, Request | None, int]] = deque()
        """With each how many of its bytes count as told."""
        self._told = 0
        """Bytes of requests of ours that wait."""
        self._back: list[tuple[Command, Request]] = []

    def __repr__(self) -> str:
        return f"<WriteQueue {len(self._out)} held back {len(self._back)}>"

    def __bool__(self) -> bool:
        """Whether something could be taken."""
        return bool(self._out)

    def answer(self, answer: Command, request: Request | None) -> None:
        try:
            data = encode_command(answer)
        except LocalWireError as error:
            _log.error("an answer to %s cannot be written: %s", request and request.context.peer, error)
            if request is not None:
                _tell(request)
                request.unwritten = None
            data = encode_command(_too_large(answer))
        self._out.append((data, request, 0))

    def request(self, data: bytes) -> bool:
        """False: too much waits already."""
        if self._told >= MOST_TOLD:
            return False
        self._told += len(data)
        self._out.append((data, None, len(data)))
        return True

    def hold_back(self, answer: Command, request: Request) -> None:
        """An answer that waits for `go_on`."""
        self._back.append((answer, request))

    def go_on(self) -> bool:
        """Nothing is held back any more. Whether something was."""
        back, self._back = self._back, []
        for answer, request in back:
            self.answer(answer, request)
        return bool(back)

    def take(self) -> list[bytes]:
        """What is to be written next."""
        out = self._out
        parts: list[bytes] = []
        size = 0
        while out and size < _AT_ONCE:
            data, request, counted = out.popleft()
            self._told -= counted
            if request is not None:
                release(request)
            size += len(data)
            parts.append(data)
        return parts if len(parts) < 2 else [b"".join(parts)]

    def lose(self) -> None:
        """Nothing is taken any more."""
        lost = [request for _, request in self._back]
        lost += [request for _, request, _ in self._out if request is not None]
        self._back.clear()
        self._out.clear()
        self._told = 0
        for request in lost:
            lose(request)


def release(request: Request) -> None:
    """A request holds nothing of the budgets any more."""
    held = request.context.allowance
    if held is not None:
        held.release()  # type: ignore[attr-defined]


def lose(request: Request) -> None:
    """The answer to a request never goes out, or there is none."""
    release(request)
    _tell(request)


def _tell(request: Request) -> None:
    if request.unwritten is None:
        return
    try:
        request.unwritten()
    except Exception:
        _log.exception("who answered %s failed to take the answer back", request.context.peer)


def _too_large(answer: Command) -> Command:
    return Command(
        ResponseCode.SYSTEM_ERROR,
        answer.opaque,
        answer.flag,
        remark="the answer does not fit into a frame",
        serialization=answer.serialization,
    )
