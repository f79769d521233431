"""gRPC above HTTP/2: messages in frames of their own, statuses in trailers.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from popgate.errors import LocalWireError
from popgate.wire.messages.compression import borne
from protocols.grpc.http2.compression import GZIP, TooLarge, Unpackable, packed, unpacked
from protocols.grpc.http2.events import Called, Cut, Ended, Event, Late, Opened, Roomy, Said, Shape, Status
from protocols.grpc.http2.frames.codes import ErrorCode, Flood, Http2Error, StreamError
from protocols.grpc.http2.frames.held_requests import KEEPING, HeldRequests
from protocols.grpc.http2.frames.limits import Http2Limits
from protocols.grpc.http2.frames.request_head import Head, MalformedHead, check_trailers, timeout_s
from protocols.grpc.http2.frames.stream import Stream
from protocols.grpc.http2.hpack.decoder import Field, HeadersTooLarge
from protocols.grpc.http2.response_headers import (
    FINE,
    HEADERS,
    HEADERS_GZIP,
    PLAIN_HEADERS,
    PLAIN_TEXT,
    TOO_LARGE_HEADERS,
    Metadata,
    metadata_block,
    status_block,
)

_REMEMBERED: Final = 32
_TOLD: Final = Http2Error("it was told")
_LARGE_HEAD: Final = 2048
"""Bytes of headers that are not remembered any more: who says so much says something else each time."""


class _Refusal(Exception):
    """A request cannot be served; its status, sentence and metadata."""

    def __init__(self, status: Status, sentence: str, metadata: Metadata = ()) -> None:
        super().__init__(sentence)
        self.status = status
        self.metadata = metadata


class GrpcWire(HeldRequests):
    """The server's side of a connection. `shapes`: the served paths.

    A call, reported by `Called` or `Opened`, is answered with `answer`, or `write` and `finish`; until
    then it may end by `Cut` or `Late`.
    """

    __slots__ = ("_events", "_heads", "_ready", "_shapes", "now")

    def __init__(self, limits: Http2Limits, shapes: Mapping[str, Shape]) -> None:
        super().__init__(limits)
        self._shapes = shapes
        self._events: list[Event] = []
        self._ready: list[Event] = []
        """Earlier ones, the first of them last."""
        self._heads: dict[int, Head] | None = None
        """By the identity of the fields, which they keep alive."""
        self.now = 0.0
        """Loop seconds; the driver sets them before bytes come."""

    def __repr__(self) -> str:
        return f"<GrpcWire streams {len(self.streams)} holds {self.holds} waiting {self.waiting_bytes}>"

    def next_event(self) -> Event | None:
        """Raises Http2Error once, after all events before it were returned."""
        if self._roomy:
            self._events += [Roomy(stream) for stream in self._roomy if stream.id in self.streams]
            self._roomy.clear()
        if not self._ready:
            if not self._events:
                if self._failure is not None and self._failure is not _TOLD:
                    # Not kept: by where it was raised it would keep all that this connection has.
                    failure, self._failure = self._failure, _TOLD
                    try:
                        raise failure
                    finally:
                        del failure
                return None
            if len(self._events) == 1:
                return self._events.pop()
            self._ready, self._events = self._events[::-1], []
        return self._ready.pop()

    # -- answers ----------------------------------------------------------------------------------

    def answer(self, stream: Stream, message: bytes) -> None:
        """The one message of a call that went well, and its end."""
        self._check_open(stream)
        if stream.answered:
            self.write(stream, message)
            self.finish(stream)
            return
        self.send_whole(stream, HEADERS, b"\0" + len(message).to_bytes(4, "big") + message, FINE)

    def open_answer(self, stream: Stream, *, gzip: bool = False, metadata: Metadata = ()) -> None:
        """Send the headers before there is a message, once. `gzip`: messages may be compressed.

        Raises LocalWireError for metadata that cannot be sent; values of names in `-bin` are any bytes.
        """
        self._check_open(stream)
        if not stream.answered:
            block = HEADERS_GZIP if gzip else HEADERS
            self.send_headers(stream, block + metadata_block(metadata))

    def write(self, stream: Stream, message: bytes, *, gzip: bool = False) -> bool:
        """Write one of several messages. False: the buffer is full; `Roomy` reports when it is not."""
        self._check_open(stream)
        if not stream.answered:
            self.send_headers(stream, HEADERS_GZIP if gzip else HEADERS)
        flag = b"\0"
        if gzip:
            message, flag = packed(message), b"\1"
        self.send_data(stream, flag + len(message).to_bytes(4, "big") + message)
        if stream.pending is None:
            return True
        stream.waited_for = True
        return False

    def write_some(self, stream: Stream, messages: Sequence[bytes]) -> int:
        """As many of several messages as the windows have room for, in few frames; how many."""
        self._check_open(stream)
        if stream.pending is not None:
            return 0
        if not stream.answered:
            self.send_headers(stream, HEADERS)
        room = min(self._window, stream.window)
        most = self._max_frame
        taken = size = 0
        pieces: list[bytes] = []
        for message in messages:
            length = 5 + len(message)
            if length > room or length > most:
                break
            if size + length > most:
                self.send_data(stream, b"".join(pieces))
                pieces.clear()
                size = 0
            pieces += (b"\0", (length - 5).to_bytes(4, "big"), message)
            size += length
            room -= length
            taken += 1
        if pieces:
            self.send_data(stream, b"".join(pieces))
        return taken

    def finish(self, stream: Stream, status: int = 0, sentence: str = "", metadata: Metadata = ()) -> None:
        """End a call after the written messages. `metadata`: as with `open_answer`."""
        self._check_open(stream)
        block = status_block(status, sentence) + metadata_block(metadata)
        if stream.answered:
            self.send_trailers(stream, block)
        else:
            self.send_headers(stream, HEADERS + block, end=True)

    def is_open(self, stream: Stream) -> bool:
        return not stream.over and stream.trailers is None

    def _check_open(self, stream: Stream) -> None:
        if not self.is_open(stream):
            raise LocalWireError(f"{stream!r} is over")

    # -- requests ---------------------------------------------------------------------------------

    def _on_headers(self, stream: Stream, fields: tuple[Field, ...]) -> None:
        heads = self._heads
        if heads is None:
            heads = self._heads = {}
        head = heads.get(id(fields))
        if head is None:
            try:
                head = Head(fields)
            except MalformedHead as error:
                raise StreamError(stream.id, str(error)) from None
            if sum([field.size for field in fields]) <= _LARGE_HEAD:
                if len(heads) >= _REMEMBERED:
                    heads.clear()
                heads[id(fields)] = head
        stream.head = head
        if head.plain or head.method != "POST":
            stream.shape = Shape.PLAIN
            if stream.ended:
                self._on_end(stream)
            return
        shape = self._shapes.get(head.path)
        if shape is None:
            self._refuse(stream, Status.UNIMPLEMENTED, f"there is no {head.path[:256]} here")
            return
        stream.shape = shape
        if head.timeout:
            seconds = timeout_s(head.timeout)
            if seconds is None:
                self._refuse(stream, Status.INTERNAL, "the header grpc-timeout is malformed")
                return
            if not seconds:
                self._refuse(stream, Status.DEADLINE_EXCEEDED, "the deadline of the call had passed")
                return
            stream.deadline = self.now + seconds
        if shape == Shape.MANY:
            stream.told = True
            self._events.append(Opened(stream))
        if stream.ended:
            self._on_end(stream)

    def _on_too_large(self, stream: Stream, error: HeadersTooLarge) -> None:
        self.send_headers(stream, TOO_LARGE_HEADERS, end=True)

    def _on_data(self, stream: Stream, data: bytes) -> None:
        if stream.trailers is not None:
            return  # answered already, though not all of the answer is out
        size = len(data)
        head = stream.head
        if head is not None and head.length:
            stream.received += size
        shape = stream.shape
        if shape == Shape.PLAIN:
            stream.received += size if head is None or not head.length else 0
            if stream.received > self.limits.max_plain_bytes:
                stream.received = 0
                self._answer_plain(stream)
            return
        try:
            if (
                stream.body is None
                and size >= 5
                and int.from_bytes(data[1:5], "big") == size - 5 <= self.limits.max_message_bytes
            ):
                self._message(stream, data[0], data[5:])
            else:
                self._collect(stream, data)
        except _Refusal as refusal:
            self._refuse(stream, refusal.status, str(refusal), refusal.metadata)
            return
        kept = not stream.held or self._is_kept(stream)
        if (
            kept
            and not stream.ended
            and (shape == Shape.ONE or (stream.body is not None and not stream.spoke))
        ):
            # Kept here, whoever reads it later.
            self._let_more_come(stream)

    def _collect(self, stream: Stream, data: bytes) -> None:
        """Raises _Refusal."""
        body = stream.body
        if body is None:
            body = stream.body = bytearray()
        body += data
        self._hold(stream, len(data))
        limits = self.limits
        while len(body) >= 5:
            size = int.from_bytes(body[1:5], "big")
            if size > limits.max_message_bytes:
                raise _Refusal(
                    Status.RESOURCE_EXHAUSTED,
                    f"the message has {size} bytes, the limit is {limits.max_message_bytes}",
                )
            if len(body) < 5 + size:
                return
            flag, message = body[0], bytes(memoryview(body)[5 : 5 + size])
            del body[: 5 + size]
            self._hold(stream, -5 - size)
            self._message(stream, flag, message)
        if not body:
            stream.body = None

    def _no_room(self, stream: Stream, sentence: str) -> None:
        self._refuse(stream, Status.RESOURCE_EXHAUSTED, sentence)

    def _message(self, stream: Stream, flag: int, message: bytes) -> None:
        """Raises _Refusal."""
        if flag:
            message = self._unpacked(stream, flag, message)
        if stream.shape == Shape.MANY:
            stream.spoke = True
            self._hold(stream, len(message) + KEEPING)
            self._events.append(Said(stream, message))
        elif stream.message is None:
            stream.message = message
            if not stream.ended:
                self._hold(stream, len(message))
        else:
            raise _Refusal(Status.INTERNAL, "a request of one message has more than one")

    def _unpacked(self, stream: Stream, flag: int, message: bytes) -> bytes:
        """Raises _Refusal."""
        encoding = stream.head.text("grpc-encoding") if stream.head is not None else ""
        if flag != 1 or encoding in ("", "identity"):
            raise _Refusal(Status.INTERNAL, "a message is said to be compressed, and it is not said how")
        if encoding != GZIP:
            raise _Refusal(
                Status.UNIMPLEMENTED,
                f"messages cannot be compressed by {encoding[:64]!r}, but by gzip",
                (("grpc-accept-encoding", f"identity,{GZIP}"),),
            )
        most = self.limits.max_message_bytes
        size = borne(message, most)  # counted also of what is found to be none in the end
        try:
            data = unpacked(message, most)
            size = len(data)
            return data
        except Unpackable as error:
            raise _Refusal(Status.INTERNAL, str(error)) from None
        except TooLarge as bomb:
            self._was_cut("bombs")
            self.tally(Flood.BOMBS)
            raise _Refusal(Status.RESOURCE_EXHAUSTED, str(bomb)) from None
        finally:
            self.inflated += size

    def _on_trailers(self, stream: Stream, fields: tuple[Field, ...]) -> None:
        try:
            check_trailers(fields)
        except MalformedHead as error:
            raise StreamError(stream.id, str(error)) from None

    def _on_end(self, stream: Stream) -> None:
        if stream.trailers is not None:
            return
        head = stream.head
        if head is not None and head.length and head.length != str(stream.received):
            raise StreamError(stream.id, "the content-length is not that of the content")
        if stream.shape == Shape.PLAIN:
            self._answer_plain(stream)
        elif stream.body is not None:
            self._refuse(stream, Status.INTERNAL, "the request ends within a message")
        elif stream.shape == Shape.MANY:
            self._events.append(Ended(stream))
        elif stream.message is None:
            self._refuse(stream, Status.INTERNAL, "the request has no message")
        else:
            message, stream.message = stream.message, None
            if stream.held:
                self._hold(stream, -stream.held)
            stream.told = True
            self._events.append(Called(stream, message))
            if self._leave_by is not None:
                self._begin_leaving(self.now)

    def _answer_plain(self, stream: Stream) -> None:
        # An answer to HEAD has no content (RFC 9110 section 9.3.2).
        bare = stream.head is not None and stream.head.method == "HEAD"
        self.send_headers(stream, PLAIN_HEADERS, end=bare)
        if not bare:
            self.send_last_data(stream, PLAIN_TEXT)

    def _refuse(self, stream: Stream, status: Status, sentence: str, metadata: Metadata = ()) -> None:
        if stream.told:
            self._events.append(Cut(stream))
        if self.is_open(stream):
            self.finish(stream, status, sentence, metadata)
        else:
            self.cut_off(stream, ErrorCode.CANCEL)

    def _on_cut(self, stream: Stream) -> None:
        if stream.told:
            self._events.append(Cut(stream))

    # -- time -------------------------------------------------------------------------------------

    def _is_asked(self) -> bool:
        return any(stream.shape != Shape.MANY for stream in self.streams.values())

    def deadline(self) -> float | None:
        """`tick` is due each second."""
        return self.now + 1.0

    def tick(self, now: float) -> None:
        self.now = now
        super().tick(now)
        for stream in list(self.streams.values()):
            if stream.deadline is not None and stream.deadline <= now and stream.trailers is None:
                self._is_late(stream)
            else:
                self._tick_slow(stream, now)

    def _end_rest(self) -> None:
        for stream in list(self.streams.values()):
            self._on_cut(stream)
            self._end_now(stream, Status.UNAVAILABLE, "the connection is as old as it may be")

    def _is_late(self, stream: Stream) -> None:
        if stream.told:
            self._events.append(Late(stream))
        self._end_now(stream, Status.DEADLINE_EXCEEDED, "the deadline of the call has passed")

    def _end_now(self, stream: Stream, status: Status, sentence: str) -> None:
        if stream.pending is None:
            self.finish(stream, status, sentence)
        else:
            self.cut_off(stream, ErrorCode.CANCEL)
