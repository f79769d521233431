"""The server's side of an HTTP/2 connection, without input and output. Source: RFC 9113.

It reads frames and enforces the rules of the protocol; subclasses interpret requests, in `_on_headers`,
`_on_data`, `_on_end` and `_on_cut`. Frames that cost work and carry no request data are counted (`Flood`);
the sizes of header blocks and frames are bounded.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from popgate.wire.frames.contract import TLS_FIRST
from protocols.grpc.http2.frames.codes import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FIRST_WINDOW,
    HEADERS,
    LEAST_MAX_FRAME,
    PADDED,
    PREFACE,
    WITH_PRIORITY,
    ErrorCode,
    Flood,
    FloodError,
    Http2Error,
    Setting,
    StreamError,
)
from protocols.grpc.http2.frames.control_frames import ControlFrames
from protocols.grpc.http2.frames.limits import INFLATED_AT_ONCE, Http2Limits
from protocols.grpc.http2.frames.stream import Stream
from protocols.grpc.http2.hpack.decoder import Field, HeaderBomb, HeaderDecoder, HeadersTooLarge, HpackError

_header_of: Final = Struct(">HBBBI").unpack_from
_four: Final = Struct(">I").unpack_from
_NUMBER: Final = 0x7FFF_FFFF
_ON_ITSELF: Final = 0x100
"""Beside the flags of a frame: its headers say that the stream depends on itself."""
_SPARE: Final = 4096
"""Bytes of a header block beyond the limit: who goes a little too far is told so in his own stream."""


class Connection(ControlFrames):
    """One connection; the first thing in `data_to_send` is the server's greeting."""

    __slots__ = (
        "_block",
        "_block_flags",
        "_block_frames",
        "_block_stream",
        "_failure",
        "_grant",
        "_greeted",
        "_headers",
        "_may_send",
        "_rest",
        "inflated",
        "over",
    )

    def __init__(self, limits: Http2Limits) -> None:
        super().__init__(limits)
        self.over = False
        """The peer's end of the stream of bytes came."""
        self._rest = b""
        """The beginning of a frame that is not all there, or all that is kept back."""
        self.inflated = 0
        """Bytes that compressed messages came to since `go_on`: with much of it, the rest is kept back."""
        self._greeted = False
        self._headers = HeaderDecoder(max_list_bytes=limits.max_headers_bytes)
        self._block: bytes | None = None
        """The beginning of a header block whose end has not come; its stream, flags and frames."""
        self._block_stream = self._block_flags = self._block_frames = 0
        self._grant = FIRST_WINDOW
        """What the peer may send, in all streams, before it hears of more."""
        self._may_send = FIRST_WINDOW
        """What is left of it."""
        self._failure: Http2Error | None = None
        self._send_settings(
            {
                Setting.MAX_CONCURRENT_STREAMS: limits.max_streams,
                Setting.INITIAL_WINDOW_SIZE: limits.stream_window,
                Setting.MAX_HEADER_LIST_SIZE: limits.max_headers_bytes,
            }
        )

    # -- what who derives from it does ------------------------------------------------------------

    def _on_headers(self, stream: Stream, fields: tuple[Field, ...]) -> None:
        """A request began. Raises StreamError. `stream.ended` is set when there is nothing more of it."""

    def _on_data(self, stream: Stream, data: bytes) -> None:
        """Raises StreamError."""

    def _on_end(self, stream: Stream) -> None:
        """The request is complete, behind headers that said there was more. Raises StreamError."""

    def _on_trailers(self, stream: Stream, fields: tuple[Field, ...]) -> None:
        """Raises StreamError. The end follows."""

    def _on_too_large(self, stream: Stream, error: HeadersTooLarge) -> None:
        """A request whose headers were not kept."""

    # -- bytes in ---------------------------------------------------------------------------------

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Process received bytes. `next_event` reports a violation after the valid events before it."""
        if self._failure is not None:
            return
        if not data:
            self.over = True
            self._cut_all()
            return
        self.heard = True
        self._take(self._rest + bytes(data) if self._rest else bytes(data))

    def go_on(self) -> None:
        """Process deferred bytes, up to the next decompression."""
        self.inflated = 0
        if self._rest and self._failure is None:
            self._take(self._rest)

    def _take(self, data: bytes) -> None:
        try:
            self._read(data)
        except Http2Error as error:
            self._fail(error)
        except HeaderBomb as bomb:
            self._fail(FloodError(Flood.BOMBS, str(bomb)))
        except HpackError as malformed:
            self._fail(Http2Error(str(malformed), ErrorCode.COMPRESSION_ERROR))

    def _cut_all(self) -> None:
        for stream in list(self.streams.values()):
            self._on_cut(stream)
            self._forget(stream, cut=True)

    def _fail(self, error: Http2Error) -> None:
        self._failure = error.with_traceback(None)
        self.release()
        self._rest = b""
        self._block = None
        self._cut_all()
        # Never more than it was told before (section 6.8).
        self._send_goaway(min(self._last, self._leaving - 1), error.code, str(error))

    def _on_silence(self, error: Http2Error) -> None:
        if self._failure is None:
            self._fail(error)

    def _is_stuck(self) -> bool:
        return bool(self._rest) or self._block is not None

    def _read(self, data: bytes) -> None:
        at, end = 0, len(data)
        if not self._greeted:
            size = len(PREFACE)
            if data[:size] != PREFACE[:end]:
                violation = "tls" if data[:2] == TLS_FIRST[:end] else ""
                raise Http2Error("what came first is not the greeting of an HTTP/2 client", kind=violation)
            if end < size:
                self._rest = data
                return
            self._greeted = True
            at = size
        while end - at >= 9:
            high, low, kind, flags, number = _header_of(data, at)
            size = (high << 8) | low
            if size > LEAST_MAX_FRAME:
                raise Http2Error(
                    f"a frame has {size} bytes, the limit is {LEAST_MAX_FRAME}", ErrorCode.FRAME_SIZE_ERROR
                )
            begin = at + 9
            if begin + size > end:
                break
            at = begin + size
            number &= _NUMBER
            self._progress += 1
            if self._block is not None and kind != CONTINUATION:
                raise Http2Error("a header block is not followed by the rest of it")
            try:
                if kind == DATA:
                    self._data(number, flags, data[begin:at])
                    if self.inflated >= INFLATED_AT_ONCE:
                        break
                elif kind == HEADERS:
                    self._begin_block(number, flags, data[begin:at])
                elif kind == CONTINUATION:
                    self._continue_block(number, flags, data[begin:at])
                else:
                    self._control(kind, number, flags, data[begin:at])
            except StreamError as error:
                self._end_badly(error)
                if self.inflated >= INFLATED_AT_ONCE:
                    break
        self._rest = data[at:] if at < end else b""

    def _end_badly(self, error: StreamError) -> None:
        stream = self.streams.get(error.stream_id)
        if stream is None:
            self._send_reset(error.stream_id, error.code)
        else:
            self._on_cut(stream)
            self.cut_off(stream, error.code)
        # A peer can have us reset its streams as well as do it itself.
        self.tally(Flood.RESETS)

    # -- header blocks ----------------------------------------------------------------------------

    def _begin_block(self, number: int, flags: int, data: bytes) -> None:
        if not number & 1:
            raise Http2Error(f"HEADERS came for the stream {number}")
        if not self._settled:
            raise Http2Error("the first frame of a client is SETTINGS")
        if flags & PADDED:
            data = _without_padding(data)
        if flags & WITH_PRIORITY:
            if len(data) < 5:
                raise Http2Error("HEADERS are too short for a priority", ErrorCode.FRAME_SIZE_ERROR)
            if _four(data)[0] & _NUMBER == number:
                flags |= _ON_ITSELF
            data = data[5:]
        if flags & END_HEADERS:
            self._end_block(number, flags, data)
        else:
            self._block, self._block_stream, self._block_flags = data, number, flags
            self._block_frames = 0

    def _continue_block(self, number: int, flags: int, data: bytes) -> None:
        if self._block is None or number != self._block_stream:
            raise Http2Error("CONTINUATION continues nothing")
        self._block_frames += 1
        if not data:
            self.tally(Flood.EMPTY_FRAMES)
        # Encoded it is shorter than decoded, as that is counted: what is longer can only be too much.
        if (
            self._block_frames > self.limits.max_continuations
            or len(self._block) + len(data) > max(self.limits.max_headers_bytes, LEAST_MAX_FRAME) + _SPARE
        ):
            raise FloodError(Flood.CONTINUATIONS, "a header block has no end")
        self._block += data
        if flags & END_HEADERS:
            block, self._block = self._block, None
            self._end_block(number, self._block_flags, block)

    def _end_block(self, number: int, flags: int, block: bytes) -> None:
        self._whole_block(number, flags, block)
        if flags & _ON_ITSELF:
            # Not before the end of the block: its stream would be opened after it was reset.
            raise StreamError(number, "a stream depends on itself")

    def _whole_block(self, number: int, flags: int, block: bytes) -> None:
        large = None
        fields: tuple[Field, ...] = ()
        try:
            fields = self._headers.decode(block)
        except HeadersTooLarge as error:
            # Without what it was raised from, which would be kept for as long as the frame is.
            large = error.with_traceback(None)
        stream = self.streams.get(number)
        if stream is not None:
            if stream.ended:
                raise StreamError(number, "HEADERS came behind the end", ErrorCode.STREAM_CLOSED)
            if not flags & END_STREAM:
                raise StreamError(number, "trailers do not end their stream")
            self._on_trailers(stream, fields)
            stream.ended = True
            self._on_end(stream)
            return
        if number <= self._last:
            if number in self._reset:
                self.tally(Flood.EMPTY_FRAMES)
                return
            code = ErrorCode.STREAM_CLOSED if number in self._over else ErrorCode.PROTOCOL_ERROR
            raise Http2Error(f"HEADERS came for the stream {number}, which is over", code)
        self._last = number
        if number >= self._leaving:
            self._refused_late(number)
            return
        limits = self.limits
        if len(self.streams) >= limits.max_streams:
            self.refused_streams += 1
            raise StreamError(
                number, f"more than {limits.max_streams} streams are open", ErrorCode.REFUSED_STREAM
            )
        stream = self.streams[number] = Stream(number, self._stream_window)
        stream.ended = bool(flags & END_STREAM)
        if large is not None:
            self._on_too_large(stream, large)
            self.tally(Flood.BOMBS)
        else:
            self._on_headers(stream, fields)

    # -- data -------------------------------------------------------------------------------------

    def _data(self, number: int, flags: int, data: bytes) -> None:
        size = len(data)
        self._may_send -= size
        if self._may_send < self._grant >> 1:
            if self._may_send < 0:
                raise Http2Error("more data came than there was room for", ErrorCode.FLOW_CONTROL_ERROR)
            self._grant = min(2 * self._grant, max(self.limits.connection_window, FIRST_WINDOW))
            self._send_window_update(0, self._grant - self._may_send)
            self._may_send = self._grant
        stream = self.streams.get(number)
        if stream is None:
            self._data_of_nothing(number)
            if not size:
                self.tally(Flood.EMPTY_FRAMES)
            return
        if stream.ended:
            raise StreamError(number, "data came behind the end", ErrorCode.STREAM_CLOSED)
        stream.unread += size
        if stream.unread > self.limits.stream_window:
            raise StreamError(number, "more data came than there was room for", ErrorCode.FLOW_CONTROL_ERROR)
        if flags & PADDED:
            data = _without_padding(data)
        if flags & END_STREAM:
            stream.ended = True
            if data:
                self._on_data(stream, data)
            if number in self.streams:
                self._on_end(stream)
        elif data:
            self._on_data(stream, data)
        else:
            self.tally(Flood.EMPTY_FRAMES)

    def _data_of_nothing(self, number: int) -> None:
        if number > self._last or not number & 1:
            raise Http2Error(f"data came for the stream {number}, which is not open")
        if number in self._over:
            raise Http2Error(f"data came for the stream {number}, which is over", ErrorCode.STREAM_CLOSED)
        # It was cut off, which the peer may not have known.

    def _let_more_come(self, stream: Stream) -> None:
        """What came of a stream was taken: let the peer send as much again, once that is worth a frame."""
        if stream.unread >= self.limits.stream_window >> 1 and not stream.ended:
            self._send_window_update(stream.id, stream.unread)
            stream.unread = 0


def _without_padding(data: bytes) -> bytes:
    if not data or data[0] >= len(data):
        raise Http2Error("there is more padding than data")
    return data[1 : len(data) - data[0]]
