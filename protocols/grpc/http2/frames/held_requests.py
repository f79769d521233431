"""What a connection keeps for its peer, and the streams that make no progress.

That is received data until it is read, and whole answers that the peer's windows have no room for.
"""

from __future__ import annotations

from typing import Final

from protocols.grpc.http2.frames.codes import ErrorCode
from protocols.grpc.http2.frames.connection import Connection
from protocols.grpc.http2.frames.limits import Http2Limits
from protocols.grpc.http2.frames.stream import Stream

KEEPING: Final = 64
"""Bytes that keeping a message takes, beside its own."""
_PROGRESS: Final = 4096
"""Bytes that a request, or an answer, has to go on by within `slow_s`, if there are as many."""


class HeldRequests(Connection):
    """Implements `limits.Holder`."""

    __slots__ = ("holds",)

    def __init__(self, limits: Http2Limits) -> None:
        super().__init__(limits)
        self.holds = 0
        """Bytes of messages that are not there as a whole, or that nobody has read, and of such answers."""

    def _no_room(self, stream: Stream, sentence: str) -> None:
        """Refuse a request for which there is no room."""

    def _hold(self, stream: Stream, size: int) -> None:
        holding = self.limits.holding
        if not self.holds:
            holding.holders.add(self)
        stream.held += size
        self.holds += size
        holding.used += size
        if not self.holds:
            holding.holders.discard(self)

    def send_whole(self, stream: Stream, headers: bytes, data: bytes, trailers: bytes) -> None:
        super().send_whole(stream, headers, data, trailers)
        if stream.pending is not None:
            # Nobody waits until it is out, as who writes several messages does: nothing else bounds it.
            self._hold(stream, stream.pending_bytes)
            self._is_kept(stream)

    def took(self, stream: Stream) -> None:
        """All of its reported messages were read: open the window by as much again."""
        stream.spoke = False
        if stream.held:
            self._hold(stream, (len(stream.body) if stream.body is not None else 0) - stream.held)
        self._let_more_come(stream)

    def _is_kept(self, stream: Stream) -> bool:
        """Whether there is room for what it holds."""
        holding = self.limits.holding
        if holding.used > holding.most:
            holding.make_room()
        return stream.id in self.streams

    def give_up(self) -> bool:
        holding = self.limits.holding
        stream = max(self.streams.values(), key=_held)
        if stream.held == holding.used:
            return False
        self._was_cut("holding")
        self._no_room(
            stream,
            f"the gateway holds {holding.used} bytes of requests that have not come as a whole and of answers"
            f" that are not read, the limit is {holding.most}: try again",
        )
        return True

    def _forget(self, stream: Stream, *, cut: bool) -> None:
        super()._forget(stream, cut=cut)
        if stream.held:
            self._hold(stream, -stream.held)
            stream.body = stream.message = None

    def _tick_slow(self, stream: Stream, now: float) -> None:
        if self.deaf or (stream.pending is None and stream.body is None and (stream.ended or stream.told)):
            stream.slow_since = None
            return
        seen = stream.pending_bytes + (len(stream.body) if stream.body is not None else 0)
        if stream.slow_since is None or abs(seen - stream.seen) >= _PROGRESS:
            stream.seen, stream.slow_since = seen, now
        elif now - stream.slow_since >= self.limits.slow_s:
            self._was_cut("slow_requests" if stream.pending is None else "answers_unread")
            self._on_cut(stream)
            self.cut_off(stream, ErrorCode.CANCEL)


def _held(stream: Stream) -> int:
    return stream.held
