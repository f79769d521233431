"""Decodes requests, with limits that are checked before anything is built from the bytes.

Two bytes can encode an empty element of a list, which takes forty times as much when it is decoded: a
request of the size that the transport accepts could grow to gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError, Message

from popgate.build import is_compiled
from popgate.errors import BadRequest
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from protocols.grpc.codec.plain_consume import PlainAck, PlainReceive, read_ack, read_receive
from protocols.grpc.codec.plain_request import read_number
from protocols.grpc.codec.plain_send import PlainSend, read_plain

_LARGEST = 4 * 1024 * 1024
"""Bytes of a request that brings no message. The largest acknowledgement that there may be has two."""
_LARGEST_COMMAND = 8 * 1024 * 1024
"""Bytes of a Telemetry command; a client may send back the message that it was asked about."""
_SMALL = 1024 * 1024
"""Bytes of a send that need no look, whatever they hold."""
_MOST_BESIDE = 8 * 1024 * 1024
_MOST_FIELDS = 200_000
"""Of all messages of a send together: bytes beside their bodies, and fields."""

_MESSAGES = rpc.SendMessageRequest.DESCRIPTOR.fields_by_name["messages"].number
_BODY = pb.Message.DESCRIPTOR.fields_by_name["body"].number
_LONGEST_NUMBER = 70
"""Bits, with those of ten bytes that are too many."""
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
"""Wire types of protobuf."""


@dataclass(slots=True, frozen=True)
class Unreadable:
    """A request whose bytes are no message of its kind, or hold text that is no UTF-8."""

    kind: str

    @property
    def sentence(self) -> str:
        return f"the bytes of the request are no {self.kind}, or a text in them is no UTF-8"

    @property
    def error(self) -> BadRequest:
        return BadRequest(self.sentence)


@dataclass(slots=True, frozen=True)
class TooLarge(Unreadable):
    """A request with more in it than one of its kind can need."""

    what: str

    @property
    def sentence(self) -> str:
        return f"the {self.kind} {self.what}"


Request = Message | PlainSend | PlainReceive | PlainAck | Unreadable
"""What is read of the bytes of a request."""
READS_PLAIN: Final = is_compiled()
"""Whether ordinary sends and acknowledgements are read without the library: interpreted, it takes longer."""


def reader_of(kind: type[Message], *, plain: bool | None = None) -> Callable[[bytes], Request]:
    """What makes requests of bytes; it raises nothing, so that no transport answers by itself.

    `plain`: whether ordinary sends and acknowledgements are read without the library; None: as `READS_PLAIN`
    says.
    """
    parse, name = kind.FromString, kind.DESCRIPTOR.name
    sends = kind is rpc.SendMessageRequest
    read_usual = _plain_reader(kind, READS_PLAIN if plain is None else plain)
    largest = _SMALL if sends else _LARGEST_COMMAND if kind is rpc.TelemetryCommand else _LARGEST

    def read(data: bytes) -> Request:
        try:
            if len(data) > largest:
                if not sends:
                    return TooLarge(name, f"has {len(data)} bytes, the limit is {largest}")
                _look_at_send(data)
            if read_usual is not None and (usual := read_usual(data)) is not None:
                return usual
            return parse(data)
        except _Much as much:
            return TooLarge(name, str(much))
        except DecodeError:
            return Unreadable(name)

    return read


def _plain_reader(kind: type[Message], plain: bool) -> Callable[[bytes], Request | None] | None:
    """What reads the usual requests of a kind; None: only the library does."""
    if kind is rpc.ReceiveMessageRequest:
        return read_receive
    if plain and kind is rpc.SendMessageRequest:
        return read_plain
    if plain and kind is rpc.AckMessageRequest:
        return read_ack
    return None


def measuring_reader_of(kind: type[Message]) -> Callable[[bytes], tuple[Request, int]]:
    """The same, with how many bytes the request came in."""
    read = reader_of(kind)
    return lambda data: (read(data), len(data))


class _Much(Exception):
    """The sentence without its beginning."""


def _look_at_send(data: bytes) -> None:
    """Raises _Much for too many fields, or too many bytes apart from the bodies; DecodeError."""
    beside, count = len(data), 0
    for number, begin, end in _fields(data, 0, len(data)):
        count += 1
        if number == _MESSAGES:
            for inner, inner_begin, inner_end in _fields(data, begin, end):
                count += 1
                if inner == _BODY:
                    beside -= inner_end - inner_begin
                if count > _MOST_FIELDS:
                    break
        if count > _MOST_FIELDS:
            raise _Much(f"has more than {_MOST_FIELDS} fields: send fewer messages at once")
    if beside > _MOST_BESIDE:
        raise _Much(f"has {beside} bytes beside its messages' bodies, the limit is {_MOST_BESIDE}")


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, begin and end of every field from `at` on. Raises DecodeError."""
    while at < end:
        tag, at = _varint(data, at, end)
        kind = tag & 7
        begin = at
        if kind == _BYTES:
            size, begin = _varint(data, at, end)
            at = begin + size
        elif kind == _VARINT:
            _, at = _varint(data, at, end)
        elif kind == _EIGHT:
            at += 8
        elif kind == _FOUR:
            at += 4
        else:
            raise DecodeError  # groups: nobody sends them
        if not begin <= at <= end:  # also for a length of more than 63 bits
            raise DecodeError
        yield tag >> 3, begin, at


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value, at = read_number(data, at, end, _LONGEST_NUMBER)
    if at < 0:
        raise DecodeError
    return value, at
