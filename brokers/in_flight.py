"""A request that is under way on a channel, and the bounds of all of them."""

from __future__ import annotations

import asyncio
from typing import Protocol

from popgate.wire.frames.codes import PortCode, RequestCode
from popgate.wire.frames.remoting import Command


class ChannelSettings(Protocol):
    """The numbers of a channel.

    Silent for `probe_s` while it owes an answer, or for `heartbeat_s`: the other side is asked for a
    sign of life, and has `probe_s` for it.
    """

    @property
    def probe_s(self) -> float: ...
    @property
    def heartbeat_s(self) -> float: ...
    @property
    def max_in_flight(self) -> int: ...
    @property
    def max_queued_bytes(self) -> int: ...
    @property
    def max_frame_bytes(self) -> int: ...


class PendingRequest:
    """A request that has no answer yet."""

    __slots__ = ("code", "deadline", "future", "opaque", "timeout_s", "written")

    def __init__(
        self, code: int, opaque: int, future: asyncio.Future[Command], deadline: float, timeout_s: float
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.future = future
        self.deadline = deadline
        self.timeout_s = timeout_s
        self.written = False


def named(code: int) -> str:
    """What a request is called in sentences."""
    for codes in (RequestCode, PortCode):
        try:
            return codes(code).name
        except ValueError:
            continue
    return f"request {code}"
