"""The sending half of a connection: frames, the peer's windows, and what waits for room in them.

Source: RFC 9113 sections 4.2, 5.2 and 6.9.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import Final

from protocols.grpc.http2.frames.codes import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    FIRST_WINDOW,
    GOAWAY,
    HEADERS,
    LEAST_MAX_FRAME,
    MOST_WINDOW,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    Http2Error,
)
from protocols.grpc.http2.frames.stream import Stream

_frame: Final = Struct(">HBBBI").pack
"""Header of a frame: the length in two parts, the kind, the flags, the stream."""
_frame_of_4: Final = Struct(">HBBBII").pack
_frame_of_8: Final = Struct(">HBBBIII").pack
_MOST_HELD: Final = 1024 * 1024
"""Bytes of answers that are held back; with more of them everything goes out."""
_REMEMBERED: Final = 64
"""Streams that are over and may still be spoken of."""


class SendHalf:
    """The sending half. `streams`: the open streams by number."""

    __slots__ = (
        "_blocked",
        "_held_from",
        "_max_frame",
        "_out",
        "_over",
        "_reset",
        "_roomy",
        "_stream_window",
        "_window",
        "streams",
        "unsent",
        "waiting_bytes",
    )

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.waiting_bytes = 0
        """Of answers that the peer's windows have no room for."""
        self.unsent = 0
        """Bytes of data that were sent, here, and not taken by `data_to_send`."""
        self._out: list[bytes] = []
        self._held_from: int | None = None
        """From which of them on everything is held back."""
        self._window = FIRST_WINDOW
        self._stream_window = FIRST_WINDOW
        self._max_frame = LEAST_MAX_FRAME
        self._blocked: dict[int, Stream] = {}
        """Those with something pending that wait for the connection's window, who was served longest ago
        first. Who waits for his own stream's is not among them: nothing goes through him in vain."""
        self._roomy: list[Stream] = []
        """Those somebody waits for, whose pending is gone."""
        self._over: list[int] = []
        """Numbers of streams that both sides ended."""
        self._reset: list[int] = []
        """Numbers of streams that were cut off: the peer may not know it yet."""

    @property
    def has_to_send(self) -> bool:
        if self._held_from is None or self.unsent > _MOST_HELD:
            return bool(self._out)
        return self._held_from > 0

    def data_to_send(self) -> list[bytes]:
        out = self._out
        if self._held_from is None or self.unsent > _MOST_HELD:
            self._held_from = None
            self._out = []
            self.unsent = 0
            return out
        if not self._held_from:
            return []
        self._out = out[self._held_from :]
        del out[self._held_from :]
        self._held_from = 0
        return out

    def hold_back(self) -> None:
        """Hold back what is sent from here on."""
        self._held_from = len(self._out)
        self.unsent = 0

    def release(self) -> None:
        """Let everything out that was held back."""
        self._held_from = None

    # -- answers ----------------------------------------------------------------------------------

    def send_whole(self, stream: Stream, headers: bytes, data: bytes, trailers: bytes) -> None:
        """A whole answer: header block, data, header block of the trailers."""
        size = len(data)
        if size > self._window or size > stream.window or size > self._max_frame:
            self.send_headers(stream, headers)
            self.send_data(stream, data)
            self.send_trailers(stream, trailers)
            return
        number = stream.id
        self._window -= size
        self.unsent += size
        self._out += (
            _frame(0, len(headers), HEADERS, END_HEADERS, number),
            headers,
            _frame(size >> 8, size & 0xFF, DATA, 0, number),
            data,
            _frame(0, len(trailers), HEADERS, END_HEADERS | END_STREAM, number),
            trailers,
        )
        self._finish(stream)

    def send_headers(self, stream: Stream, block: bytes, *, end: bool = False) -> None:
        """`block`: at most 16,384 bytes, which every peer takes in one frame."""
        stream.answered = True
        flags = END_HEADERS | END_STREAM if end else END_HEADERS
        self._out += (_frame(len(block) >> 8, len(block) & 0xFF, HEADERS, flags, stream.id), block)
        if end:
            self._finish(stream)

    def send_data(self, stream: Stream, data: bytes) -> None:
        size = len(data)
        if (
            stream.pending is None
            and size <= self._window
            and size <= stream.window
            and size <= self._max_frame
        ):
            self._window -= size
            stream.window -= size
            self.unsent += size
            self._out += (_frame(size >> 8, size & 0xFF, DATA, 0, stream.id), data)
            return
        if stream.pending is None:
            stream.pending = deque()
        stream.pending.append(memoryview(data))
        stream.pending_bytes += size
        self.waiting_bytes += size
        self._pump(stream)

    def send_trailers(self, stream: Stream, block: bytes) -> None:
        """Send the trailers of the response, after pending data."""
        if stream.pending is None:
            self.send_headers(stream, block, end=True)
        else:
            stream.trailers = block

    def send_last_data(self, stream: Stream, data: bytes) -> None:
        """Data and the end of an answer without trailers, for who speaks no gRPC."""
        self.send_data(stream, data)
        if stream.pending is None:
            self._out.append(_frame(0, 0, DATA, END_STREAM, stream.id))
            self._finish(stream)
        else:
            stream.trailers = b""

    def cut_off(self, stream: Stream, code: ErrorCode) -> None:
        """Reset a stream."""
        self._out.append(_frame_of_4(0, 4, RST_STREAM, 0, stream.id, code))
        self._forget(stream, cut=True)

    # -- the connection ---------------------------------------------------------------------------

    def _send_settings(self, values: dict[int, int]) -> None:
        body = b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in values.items())
        self._out.append(_frame(0, len(body), SETTINGS, 0, 0) + body)

    def _send_settings_ack(self) -> None:
        self._out.append(_frame(0, 0, SETTINGS, ACK, 0))

    def _send_ping(self, data: bytes, *, ack: bool) -> None:
        self._out.append(_frame(0, 8, PING, ACK if ack else 0, 0) + data)

    def _send_window_update(self, number: int, more: int) -> None:
        self._out.append(_frame_of_4(0, 4, WINDOW_UPDATE, 0, number, more))

    def _send_reset(self, number: int, code: ErrorCode) -> None:
        """Of a stream that was never opened, or is over."""
        self._out.append(_frame_of_4(0, 4, RST_STREAM, 0, number, code))
        _remember(self._reset, number)

    def _send_goaway(self, last: int, code: ErrorCode, why: str = "") -> None:
        text = why.encode()[:256]
        size = 8 + len(text)
        self._out.append(_frame_of_8(size >> 8, size & 0xFF, GOAWAY, 0, 0, last, code) + text)

    # -- the peer's windows -----------------------------------------------------------------------

    def _window_grows(self, stream: Stream | None, more: int) -> bool:
        """More room in one stream, or in the connection. False: more than there can be (section 6.9.1)."""
        if stream is None:
            self._window += more
            if self._window > MOST_WINDOW:
                return False
            self._pump_all()
        else:
            stream.window += more
            if stream.window > MOST_WINDOW:
                return False
            if stream.pending is not None:
                self._pump(stream)
        return True

    def _windows_begin_at(self, size: int) -> None:
        """SETTINGS_INITIAL_WINDOW_SIZE changed: so do the windows of open streams (section 6.9.2).

        Nothing is sent; `_pump_all` does.
        """
        change = size - self._stream_window
        self._stream_window = size
        for stream in self.streams.values():
            stream.window += change
            if stream.pending is not None and stream.window > 0:
                self._blocked[stream.id] = stream
            if stream.window > MOST_WINDOW:
                raise Http2Error(
                    "the new initial window is too large for a window that has grown",
                    ErrorCode.FLOW_CONTROL_ERROR,
                )

    def _pump_all(self) -> None:
        blocked = self._blocked
        while blocked and self._window > 0:
            self._pump(next(iter(blocked.values())))

    def _pump(self, stream: Stream) -> None:
        """Send as much pending data as the windows allow; an empty piece needs no window."""
        pending = stream.pending
        if pending is None:
            return
        while pending:
            data = pending[0]
            size = len(data)
            room = min(self._window, stream.window, self._max_frame)
            if size > room:
                if room <= 0:
                    break
                data, pending[0] = data[:room], data[room:]
                size = room
            else:
                pending.popleft()
            self._window -= size
            stream.window -= size
            stream.pending_bytes -= size
            self.waiting_bytes -= size
            self.unsent += size
            self._out += (_frame(size >> 8, size & 0xFF, DATA, 0, stream.id), bytes(data))
        self._blocked.pop(stream.id, None)
        if pending:
            if stream.window > 0:
                # Behind those that wait as well.
                self._blocked[stream.id] = stream
            return
        stream.pending = None
        if stream.waited_for:
            stream.waited_for = False
            self._roomy.append(stream)
        if stream.trailers is not None:
            if stream.trailers:
                self.send_headers(stream, stream.trailers, end=True)
            else:
                self._out.append(_frame(0, 0, DATA, END_STREAM, stream.id))
                self._finish(stream)

    # -- ends -------------------------------------------------------------------------------------

    def _finish(self, stream: Stream) -> None:
        """The answer is out."""
        if stream.ended:
            self._forget(stream, cut=False)
        else:
            # It need not send the rest of what was answered already (section 8.1).
            self.cut_off(stream, ErrorCode.NO_ERROR)

    def _forget(self, stream: Stream, *, cut: bool) -> None:
        """Overridden by who keeps more of a stream."""
        number = stream.id
        stream.over = True
        self.streams.pop(number, None)
        if stream.pending is not None:
            self.waiting_bytes -= stream.pending_bytes
            stream.pending_bytes = 0
            stream.pending = None
            self._blocked.pop(number, None)
        _remember(self._reset if cut else self._over, number)


def _remember(numbers: list[int], number: int) -> None:
    numbers.append(number)
    if len(numbers) > 2 * _REMEMBERED:
        del numbers[:_REMEMBERED]
