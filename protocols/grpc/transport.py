"""The interface that the service requires of a gRPC server."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, unique
from typing import Protocol, TypeVar

from popgate.pb.service_pb2 import TelemetryCommand

AnswerT_contra = TypeVar("AnswerT_contra", contravariant=True)


class Call(Protocol):
    """The circumstances of one RPC. `peer` and `local` are "host:port" of the connection's two ends."""

    def header(self, name: str) -> str | bytes:
        """What the client sent by this name (lower case), the last of several; empty when it sent none.

        Nothing in it is trusted.
        """
        ...

    @property
    def peer(self) -> str: ...
    @property
    def names(self) -> tuple[str, ...]:
        """What the client's certificate names it, for access control: `protocols.tls.names_of`."""
        ...

    @property
    def local(self) -> str:
        """As the client names it where that is known (`:authority`)."""
        ...

    def time_remaining(self) -> float | None:
        """Seconds until the client gives up; None when it set no deadline, and it may be years."""
        ...


class ResponseStream(Protocol[AnswerT_contra]):
    """The answering side of a server-streaming RPC."""

    async def write(self, answer: AnswerT_contra) -> None:
        """Hand over one answer; returns when the transport took it.

        Raises (or is cancelled) when the client is gone: this answer may not have reached it, the
        following ones cannot.
        """
        ...

    async def write_bytes(self, answer: bytes) -> None:
        """As `write`, of an answer that is encoded already."""
        ...

    def write_at_once(self, answers: Sequence[bytes]) -> int:
        """Write as many of these encoded responses as possible without waiting; returns how many.

        Those count as written, as after a `write` that has returned. None where a server does not know:
        then they are written one by one.
        """
        ...


class TelemetryChannel(Protocol):
    """Both sides of a Telemetry stream. Reading and writing may go on at the same time."""

    async def read(self) -> TelemetryCommand | None:
        """The next command; None when the client sends no more.

        Raises CallFailed for bytes that are none, BadRequest for names that cannot be, BrokenStream, or
        is cancelled.
        """
        ...

    async def write(self, command: TelemetryCommand) -> None:
        """Raises BrokenStream, or is cancelled, when the client is gone."""
        ...


class BrokenStream(Exception):
    """The client is gone."""


@unique
class CallStatus(IntEnum):
    """The gRPC status codes that a call can end with; numbers are gRPC's."""

    CANCELLED = 1
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    INTERNAL = 13
    UNAVAILABLE = 14


class CallFailed(Exception):
    """Ends a Telemetry stream or a health check with a gRPC status.

    Nothing else may, but faults on order: other failures are in the answer.
    """

    def __init__(self, status: CallStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
