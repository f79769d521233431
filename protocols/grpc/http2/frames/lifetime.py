"""Timeouts of a connection, how it is closed, and the limits beyond which it is closed.

Source: RFC 9113 sections 6.7, 6.8 and 10.5. Time is told by `tick`, a second or so apart.
"""

from __future__ import annotations

from typing import Final

from protocols.grpc.http2.frames.codes import LAST_STREAM, ErrorCode, Flood, FloodError, Http2Error
from protocols.grpc.http2.frames.limits import Http2Limits
from protocols.grpc.http2.frames.send_half import SendHalf
from protocols.grpc.http2.frames.stream import Stream

_LEAVING: Final = b"popgate-"
"""In the PING between two GOAWAYs: its answer tells that the peer has read the first."""
_ALIVE: Final = b"popgate?"
_LAST: Final = b"popgate."
"""In the PING behind the last answer: its answer tells that the peer has read that."""
_ROUND_TRIP_S: Final = 5.0
"""The second GOAWAY goes out then, whether the peer answers or not. What comes behind it is refused: who
stood still for a moment has to have time to read the first."""
_HELD_S: Final = 1.0
"""After so long what was held back goes out, or the connection is closed, where the peer answers no PING; it
is looked at once a second."""
_UNASKED_S: Final = 1.0
"""How long a connection of the greatest age waits for a request."""
_PER_ANSWER: Final = {Flood.PINGS: 8, Flood.WINDOW_UPDATES: 64}
"""What a call brings with it: clients that measure the way ping with the data that they get."""


class ConnectionLifetime(SendHalf):
    """`leave` starts the shutdown; `left` says that it is complete."""

    __slots__ = (
        "_aged",
        "_asked_at",
        "_calm_at",
        "_ends_at",
        "_heard_at",
        "_last",
        "_leave_by",
        "_leaving",
        "_leaving_at",
        "_old",
        "_opened_at",
        "_parting_at",
        "_progress",
        "_seen",
        "_stuck_at",
        "_tally",
        "_unread",
        "cut_streams",
        "deaf",
        "heard",
        "limits",
        "refused_streams",
    )

    def __init__(self, limits: Http2Limits) -> None:
        super().__init__()
        self.limits = limits
        self.heard = True
        """Something came since the last tick."""
        self.deaf = False
        """What it says is not read for the time being: who is silent or slow cannot be told."""
        self.refused_streams = 0
        """Above the limit; whoever counts them may set it to 0, and so below."""
        self.cut_streams: dict[str, int] = {}
        """Those that were ended by a bound, by its kind."""
        self._last = 0
        """The highest stream that the peer opened."""
        self._old = 0
        """And at the last tick: to end one so old is no rapid reset."""
        self._leaving = LAST_STREAM + 1
        """Streams from this number on are not served any more."""
        self._leaving_at: float | None = None
        """When the first GOAWAY went out."""
        self._leave_by: float | None = None
        """The first GOAWAY goes out with the next request, and then at the latest."""
        self._aged = False
        """It leaves for its age."""
        self._unread = False
        """Something was answered behind the first GOAWAY, which the peer may not have read."""
        self._parting_at: float | None = None
        """When the peer was asked whether it has read the last answer."""
        self._ends_at: float | None = None
        """When what is under way is cut off, of a connection that leaves for its age."""
        self._opened_at: float | None = None
        self._heard_at = self._calm_at = 0.0
        self._asked_at: float | None = None
        """For a sign of life."""
        self._progress = self._seen = 0
        """Frames read, and how many those were when it was last looked."""
        self._stuck_at: float | None = None
        self._tally: dict[Flood, int] | None = None

    # -- ends -------------------------------------------------------------------------------------

    @property
    def leaving(self) -> bool:
        return self._leaving_at is not None

    @property
    def left(self) -> bool:
        """Nothing is open, and nothing can be opened."""
        return self._leaving <= LAST_STREAM and not self.streams

    def may_close(self, now: float) -> bool:
        """Whether the peer has read the last answer, of a connection that is `left`; it is asked once.

        To close a socket to which the peer still writes, for example WINDOW_UPDATE while it reads, discards
        what it has not read.
        """
        if not self._unread:
            return True
        if self._parting_at is None:
            self._parting_at = now
            self._send_ping(_LAST, ack=False)
        return False

    def leave(self, now: float, within_s: float = 0.0) -> None:
        """Begin the shutdown when the peer waits for an answer, or after `within_s` seconds."""
        if self._leaving_at is None:
            if within_s <= 0.0 or self._is_asked():
                self._begin_leaving(now)
            else:
                self._leave_by = now + within_s

    def _begin_leaving(self, now: float) -> None:
        """Tell the peer to open no more streams, and serve those already sent (section 6.8).

        What is to be sent behind that is held back until the peer has read it. So whoever waits for an answer
        connects anew for his next request. gRPC's core fails a request for which it had chosen a connection
        that was then told to close, where `grpc.enable_retries` is 0, as RocketMQ's Python client has it.
        """
        self._leaving_at = now
        self._leave_by = None
        self._send_goaway(LAST_STREAM, ErrorCode.NO_ERROR, "the gateway asks its clients to connect anew")
        self._send_ping(_LEAVING, ack=False)
        self.hold_back()
        if self._aged:
            self._ends_at = now + self.limits.age_grace_s

    def _end_leaving(self) -> None:
        self.release()
        if self._leaving > LAST_STREAM:
            self._leaving = self._last + 1
            self._send_goaway(self._last, ErrorCode.NO_ERROR)

    def _refused_late(self, number: int) -> None:
        # It was told that this stream will not be served; told again, it need not wonder.
        self._send_reset(number, ErrorCode.REFUSED_STREAM)
        self.tally(Flood.EMPTY_FRAMES)

    def _ping_answered(self, data: bytes) -> None:
        if data == _LEAVING and self._leaving_at is not None:
            self._end_leaving()
        elif data == _LAST and self._parting_at is not None:
            self._unread = False
        elif data != _ALIVE or self._asked_at is None:
            # Also of a peer that answers late: what it said meanwhile was sign enough.
            self.tally(Flood.EMPTY_FRAMES)

    # -- bounds -----------------------------------------------------------------------------------

    def tally(self, flood: Flood) -> None:
        """Count one more. Raises FloodError."""
        tally = self._tally
        if tally is None:
            tally = self._tally = {}
        count = tally.get(flood, 0) + 1
        tally[flood] = count
        if count > self.limits.calm[flood]:
            raise FloodError(
                flood,
                f"more than {self.limits.calm[flood]} {flood.name.lower().replace('_', ' ')}"
                f" within {self.limits.calm_s:g} s",
            )

    def _finish(self, stream: Stream) -> None:
        super()._finish(stream)
        if self._leaving_at is not None:
            self._unread = True
        tally = self._tally
        if tally is not None:
            for flood, borne in _PER_ANSWER.items():
                if tally.get(flood):
                    tally[flood] = max(tally[flood] - borne, 0)

    def _was_cut(self, kind: str) -> None:
        self.cut_streams[kind] = self.cut_streams.get(kind, 0) + 1

    # -- time -------------------------------------------------------------------------------------

    def _is_asked(self) -> bool:
        """Whether the peer waits for the answer to a request."""
        return bool(self.streams)

    def _is_stuck(self) -> bool:
        """Whether a frame or a header block is not all there."""
        return False

    def _has_greeted(self) -> bool:
        return True

    def _end_rest(self) -> None:
        """The grace period of an old connection for its open streams is over."""

    def _on_silence(self, error: Http2Error) -> None:
        """The peer is given up."""

    def tick(self, now: float) -> None:
        limits = self.limits
        self._old = self._last
        if self._opened_at is None:
            self._opened_at = self._heard_at = self._calm_at = now
        if self._tally is not None and now - self._calm_at >= limits.calm_s:
            self._tally = None
            self._calm_at = now
        if not self._has_greeted():
            if now - self._opened_at >= limits.greeting_s:
                self._on_silence(Http2Error("no greeting came", ErrorCode.SETTINGS_TIMEOUT, "greeting"))
            elif self._leaving_at is not None and now - self._leaving_at >= _HELD_S:
                self._end_leaving()  # it has asked for nothing, and a drain waits for it
            elif self._leave_by is not None and now >= self._leave_by:
                self._begin_leaving(now)
            return
        self._tick_stuck(now)
        self._tick_silent(now)
        if self._leaving_at is not None:
            if now - self._leaving_at >= _HELD_S:
                self.release()
            if self._parting_at is not None and now - self._parting_at >= _HELD_S:
                self._unread = False
            if now - self._leaving_at >= _ROUND_TRIP_S:
                self._end_leaving()
            if self._ends_at is not None and now >= self._ends_at:
                self._end_rest()
        elif self._leave_by is not None:
            if now >= self._leave_by:
                self._begin_leaving(now)
        elif limits.age_s and now - self._opened_at >= self._age():
            self._aged = True
            self.leave(now, _UNASKED_S)

    def _age(self) -> float:
        """Its own, a tenth longer or shorter, so that those of one start do not end together."""
        return self.limits.age_s * (0.9 + 0.2 * (id(self) >> 4 & 0xFF) / 255)

    def _tick_stuck(self, now: float) -> None:
        if self.deaf or not self._is_stuck() or self._progress != self._seen:
            self._seen = self._progress
            self._stuck_at = None
        elif self._stuck_at is None:
            self._stuck_at = now
        elif now - self._stuck_at >= self.limits.slow_s:
            self._on_silence(
                Http2Error("the rest of a frame did not come", ErrorCode.ENHANCE_YOUR_CALM, "slow_requests")
            )

    def _tick_silent(self, now: float) -> None:
        if self.heard or self.deaf:
            self.heard = False
            self._heard_at = now
            self._asked_at = None
        elif self._asked_at is None:
            if now - self._heard_at >= self.limits.ping_s:
                self._asked_at = now
                self._send_ping(_ALIVE, ack=False)
        elif now - self._asked_at >= max(self.limits.ping_s / 2, 1.0):
            self._on_silence(Http2Error("no sign of life came", ErrorCode.NO_ERROR, "silence"))
