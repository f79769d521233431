"""Adapts calls and streams of grpc.aio to the interface of the service."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import Message

from popgate.pb import service_pb2 as rpc
from protocols.grpc.codec.request_reader import Unreadable
from protocols.grpc.transport import BrokenStream, CallFailed, CallStatus
from protocols.tls import alternative_name

_Context = grpc.aio.ServicerContext[Any, Any]
_GONE = (grpc.aio.UsageError, grpc.aio.InternalError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""What writing to, or reading from, a client that is gone raises when the request is not cancelled."""


_NAMES = {
    "CN": "x509_common_name",
    "DNS": "peer_dns",
    "URI": "peer_uri",
    "email": "peer_email",
    "IP Address": "peer_ip",
}
"""Where gRPC tells the names of a client's certificate, by their kind."""


class GrpcioCall:
    """A `transport.Call`."""

    __slots__ = ("_context", "_headers", "_local_towards", "peer")

    def __init__(self, context: _Context, local_towards: Callable[[str], str]) -> None:
        self._context = context
        self._local_towards = local_towards
        self._headers: dict[str, str | bytes] | None = None
        self.peer = peer_text(context.peer())

    def header(self, name: str) -> str | bytes:
        if self._headers is None:
            self._headers = dict(self._context.invocation_metadata() or ())
        return self._headers.get(name, "")

    @property
    def names(self) -> tuple[str, ...]:
        properties = self._context.auth_context()
        return tuple(
            sorted(
                f"{kind}:{alternative_name(kind, name.decode(errors='replace'))}"
                for kind, field in _NAMES.items()
                for name in properties.get(field, ())
            )
        )

    @property
    def local(self) -> str:
        return self._local_towards(self.peer)

    def time_remaining(self) -> float | None:
        remaining: float | None = self._context.time_remaining()
        return remaining


class GrpcioStream:
    """A `transport.ResponseStream`, and a `transport.TelemetryChannel`."""

    __slots__ = ("_context",)

    def __init__(self, context: _Context) -> None:
        self._context = context

    async def write(self, answer: Message | bytes) -> None:
        try:
            await self._context.write(answer)
        except _GONE as error:
            raise BrokenStream(str(error)) from error

    async def write_bytes(self, answer: bytes) -> None:
        await self.write(answer)

    def write_at_once(self, answers: Sequence[bytes]) -> int:
        return 0

    async def read(self) -> rpc.TelemetryCommand | None:
        try:
            command = await self._context.read()
        except _GONE as error:
            raise BrokenStream(str(error)) from error
        if isinstance(command, Unreadable):
            raise CallFailed(CallStatus.INVALID_ARGUMENT, command.sentence)
        return command if isinstance(command, rpc.TelemetryCommand) else None


class GrpcioRawStream:
    """A `reflection.Raw`."""

    __slots__ = ("_context",)

    def __init__(self, context: _Context) -> None:
        self._context = context

    async def write(self, answer: bytes) -> None:
        try:
            await self._context.write(answer)
        except _GONE as error:
            raise BrokenStream(str(error)) from error

    async def read(self) -> bytes | None:
        try:
            question = await self._context.read()
        except _GONE as error:
            raise BrokenStream(str(error)) from error
        return question if isinstance(question, bytes) else None


@lru_cache(maxsize=4096)
def peer_text(peer: str) -> str:
    """ "host:port" of gRPC's own form, e.g. of "ipv4:10.0.0.1:5" or "ipv6:%5B::1%5D:5"."""
    family, _, rest = peer.partition(":")
    return unquote(rest) if family in ("ipv4", "ipv6") else peer


@lru_cache(maxsize=4096)
def route_towards(peer_host: str) -> str:
    """Our address on the way to a peer; empty when there is no way. Nothing is sent."""
    family = socket.AF_INET6 if ":" in peer_host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((peer_host, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""
