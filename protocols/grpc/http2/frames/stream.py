"""The state of one open request."""

from __future__ import annotations

from collections import deque
from typing import Any

from protocols.grpc.http2.frames.request_head import Head


class Stream:
    """One stream of a connection (RFC 9113 section 5); the machine's, but for `call` and `deadline`."""

    __slots__ = (
        "answered",
        "body",
        "call",
        "deadline",
        "ended",
        "head",
        "held",
        "id",
        "message",
        "over",
        "pending",
        "pending_bytes",
        "received",
        "seen",
        "shape",
        "slow_since",
        "spoke",
        "told",
        "trailers",
        "unread",
        "waited_for",
        "window",
    )

    def __init__(self, number: int, window: int) -> None:
        self.id = number
        self.window = window
        """What may be sent to the peer; below 0 when it shrank the windows after we had sent."""
        self.head: Head | None = None
        self.ended = False
        """The peer sends no more."""
        self.over = False
        """Both sides ended it, or it was cut off: it is none of its connection's any more."""
        self.answered = False
        """Our headers went out."""
        self.body: bytearray | None = None
        """Of a message that is not there as a whole."""
        self.held = 0
        """Bytes of messages that nobody has been told, or has not read; and what keeping them takes.

        Once a whole answer waits for room: what it had when it began to wait.
        """
        self.received = 0
        """Bytes of data, to be compared with a content-length."""
        self.unread = 0
        """Bytes that the peer may not send again until somebody has read them."""
        self.message: bytes | None = None
        """The one of the request, until all of the request is there."""
        self.shape = 0
        self.spoke = False
        """A message of many came that nobody has read."""
        self.told = False
        """Whoever serves calls knows of it."""
        self.pending: deque[memoryview] | None = None
        """What the peer's windows have no room for."""
        self.pending_bytes = 0
        self.trailers: bytes | None = None
        """The header block behind it."""
        self.waited_for = False
        """Whether somebody wants to know when `pending` is gone."""
        self.deadline: float | None = None
        """Loop seconds; the driver's."""
        self.slow_since: float | None = None
        self.seen = 0
        self.call: Any = None
        """The driver's."""

    def __repr__(self) -> str:
        path = self.head.path if self.head is not None else "?"
        return f"<Stream {self.id} {path}{' ended' if self.ended else ''} pending {self.pending_bytes}>"
