"""Frames that are about the connection, or about a stream but no part of a request.

Source: RFC 9113 sections 5.5 and 6.3 to 6.9.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from protocols.grpc.http2.frames.codes import (
    ACK,
    GOAWAY,
    LEAST_MAX_FRAME,
    MOST_MAX_FRAME,
    MOST_WINDOW,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    Flood,
    Http2Error,
    Setting,
    StreamError,
)
from protocols.grpc.http2.frames.lifetime import ConnectionLifetime
from protocols.grpc.http2.frames.limits import Http2Limits
from protocols.grpc.http2.frames.stream import Stream

_four = Struct(">I").unpack_from
_NUMBER: Final = 0x7FFF_FFFF


class ControlFrames(ConnectionLifetime):
    """Processes control frames; `_control` is called with each."""

    __slots__ = ("_heeded", "_settled", "peer_leaves")

    def __init__(self, limits: Http2Limits) -> None:
        super().__init__(limits)
        self.peer_leaves = False
        """It said that it will open no more streams."""
        self._settled = False
        """Its first SETTINGS came."""
        self._heeded = False
        """It answered ours."""

    def _has_greeted(self) -> bool:
        return self._settled

    def _on_cut(self, stream: Stream) -> None:
        """The peer, or a rule of the protocol, ended a stream; it is forgotten right after."""

    def _control(self, kind: int, number: int, flags: int, data: bytes) -> None:
        if not self._settled and kind != SETTINGS:
            raise Http2Error("the first frame of a client is SETTINGS")
        if kind == WINDOW_UPDATE:
            self._window_update(number, data)
        elif kind == PING:
            self._ping(number, flags, data)
        elif kind == RST_STREAM:
            self._rst_stream(number, data)
        elif kind == SETTINGS:
            self._settings(number, flags, data)
        elif kind == PRIORITY:
            self._priority(number, data)
        elif kind == GOAWAY:
            if number or len(data) < 8:
                raise Http2Error("this is no GOAWAY", _size_or_protocol(wrong_size=not number))
            self.peer_leaves = True
            self.tally(Flood.EMPTY_FRAMES)
        elif kind == PUSH_PROMISE:
            raise Http2Error("a client promises nothing")
        else:
            # Of an extension that nobody agreed on (section 5.5).
            self.tally(Flood.EMPTY_FRAMES)

    def _window_update(self, number: int, data: bytes) -> None:
        if len(data) != 4:
            raise Http2Error("a WINDOW_UPDATE has 4 bytes", ErrorCode.FRAME_SIZE_ERROR)
        more = _four(data)[0] & _NUMBER
        self.tally(Flood.WINDOW_UPDATES)
        stream = None
        if number:
            stream = self.streams.get(number)
            if stream is None:
                if number > self._last or not number & 1:
                    raise Http2Error(f"a WINDOW_UPDATE came for the stream {number}, which is not open")
                return
            if not more:
                raise StreamError(number, "a window grows by nothing")
        elif not more:
            raise Http2Error("a window grows by nothing")
        if not self._window_grows(stream, more):
            sentence = f"a window has more than {MOST_WINDOW} bytes"
            if stream is not None:
                raise StreamError(number, sentence, ErrorCode.FLOW_CONTROL_ERROR)
            raise Http2Error(sentence, ErrorCode.FLOW_CONTROL_ERROR)

    def _ping(self, number: int, flags: int, data: bytes) -> None:
        if number:
            raise Http2Error("PING came for a stream")
        if len(data) != 8:
            raise Http2Error("a PING has 8 bytes", ErrorCode.FRAME_SIZE_ERROR)
        if flags & ACK:
            self._ping_answered(data)
        else:
            self.tally(Flood.PINGS)
            self._send_ping(data, ack=True)

    def _rst_stream(self, number: int, data: bytes) -> None:
        if len(data) != 4:
            raise Http2Error("an RST_STREAM has 4 bytes", ErrorCode.FRAME_SIZE_ERROR)
        if number > self._last or not number & 1:
            raise Http2Error(f"an RST_STREAM came for the stream {number}, which is not open")
        stream = self.streams.get(number)
        if stream is None:
            self.tally(Flood.EMPTY_FRAMES)
            return
        self._on_cut(stream)
        self._forget(stream, cut=False)
        if number > self._old:
            self.tally(Flood.RESETS)

    def _settings(self, number: int, flags: int, data: bytes) -> None:
        if number:
            raise Http2Error("SETTINGS came for a stream")
        if flags & ACK:
            if data:
                raise Http2Error("an answer to SETTINGS is empty", ErrorCode.FRAME_SIZE_ERROR)
            if self._heeded:
                self.tally(Flood.EMPTY_FRAMES)
            self._heeded = True
            return
        if len(data) % 6:
            raise Http2Error("a setting has 6 bytes", ErrorCode.FRAME_SIZE_ERROR)
        self.tally(Flood.SETTINGS)
        window = None
        for at in range(0, len(data), 6):
            key = (data[at] << 8) | data[at + 1]
            value = _four(data, at + 2)[0]
            self._setting(key, value)
            if key == Setting.INITIAL_WINDOW_SIZE:
                window = value
        if window is not None:
            # Once for all of them, since it goes through all streams: the last one holds.
            self._windows_begin_at(window)
        self._settled = True
        # At once (section 6.5.3): before data that there is room for now.
        self._send_settings_ack()
        self._pump_all()

    def _setting(self, key: int, value: int) -> None:
        if key == Setting.INITIAL_WINDOW_SIZE:
            if value > MOST_WINDOW:
                raise Http2Error(f"an initial window of {value} bytes", ErrorCode.FLOW_CONTROL_ERROR)
        elif key == Setting.MAX_FRAME_SIZE:
            if not LEAST_MAX_FRAME <= value <= MOST_MAX_FRAME:
                raise Http2Error(f"a largest frame of {value} bytes")
            # Larger ones would keep a short answer behind a long one.
            self._max_frame = min(value, 4 * LEAST_MAX_FRAME)
        elif key == Setting.ENABLE_PUSH and value > 1:
            raise Http2Error(f"ENABLE_PUSH is {value}")

    def _priority(self, number: int, data: bytes) -> None:
        if not number:
            raise Http2Error("PRIORITY came for no stream")
        if len(data) != 5:
            raise StreamError(number, "a PRIORITY has 5 bytes", ErrorCode.FRAME_SIZE_ERROR)
        self.tally(Flood.PRIORITIES)
        if _four(data)[0] & _NUMBER == number:
            raise StreamError(number, "a stream depends on itself")


def _size_or_protocol(*, wrong_size: bool) -> ErrorCode:
    return ErrorCode.FRAME_SIZE_ERROR if wrong_size else ErrorCode.PROTOCOL_ERROR
