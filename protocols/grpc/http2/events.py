"""Events that a connection reports about its calls."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, unique
from typing import TypeAlias

from protocols.grpc.http2.frames.stream import Stream


@unique
class Status(IntEnum):
    """gRPC's status codes, as far as a transport gives them by itself."""

    OK = 0
    CANCELLED = 1
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


@unique
class Shape(IntEnum):
    """How many messages a request has."""

    ONE = 0
    MANY = 1
    PLAIN = 2
    """It is no gRPC."""


@dataclass(slots=True, init=False)
class Called:
    """A request of one message came as a whole."""

    stream: Stream
    message: bytes

    # Written out, because mypyc does not compile what a dataclass makes, and there is one for every call.
    def __init__(self, stream: Stream, message: bytes) -> None:
        self.stream = stream
        self.message = message


@dataclass(slots=True)
class Opened:
    """A request of many messages began."""

    stream: Stream


@dataclass(slots=True)
class Said:
    """One of them came."""

    stream: Stream
    message: bytes


@dataclass(slots=True)
class Ended:
    """There are no more of them."""

    stream: Stream


@dataclass(slots=True)
class Cut:
    """A call was cut off after its event; no response can reach its client."""

    stream: Stream


@dataclass(slots=True)
class Late:
    """The deadline of a call passed; the client got that status."""

    stream: Stream


@dataclass(slots=True)
class Roomy:
    """What `write` did not take at once has gone out."""

    stream: Stream


Event: TypeAlias = Called | Opened | Said | Ended | Cut | Late | Roomy
