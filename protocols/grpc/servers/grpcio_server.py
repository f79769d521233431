"""Serves the RPCs by grpc.aio. Options: protocol facts 1.1, pitfalls 5 and 12; scenario 9."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from popgate.pb import service_pb2 as rpc
from popgate.pb.health_pb2 import HealthCheckRequest, HealthCheckResponse
from popgate.sockets.unix_sockets import identity_of, make_room, remove
from protocols.adapter import joined
from protocols.drain import CUT_S, InFlightCalls
from protocols.grpc.codec.packer import EncodedAnswer
from protocols.grpc.codec.request_reader import Request, Unreadable, measuring_reader_of, reader_of
from protocols.grpc.rpcs import health
from protocols.grpc.rpcs import reflection as reflecting
from protocols.grpc.rpcs.dispatcher import SERVICE, STREAMED, UNARY, RpcHandler, Streamed, Unary
from protocols.grpc.rpcs.reflection import Reflection
from protocols.grpc.servers.grpcio_calls import (
    GrpcioCall,
    GrpcioRawStream,
    GrpcioStream,
    route_towards,
)
from protocols.grpc.transport import BrokenStream, CallFailed
from protocols.tls import Certificate

MAX_RECEIVE_BYTES = 130 * 1024 * 1024

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.max_send_message_length", -1),
    # Clients ping from every 10 s on, also without calls; that must not cost them the connection.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.max_pings_without_data", 0),
    # When a thousand clients come at once, as after a restart, gRPC would cancel some of their calls, which
    # none of them takes for a reason to try again: they wait a moment instead.
    ("grpc.server.max_pending_requests", 50_000),
    ("grpc.server.max_pending_requests_hard_limit", 100_000),
)
"""No idle limit, and no maximum age unless somebody sets one: some clients never open their telemetry
stream again."""

_FOR_GOOD_S = 1e6
_GATHER_S = 0.5
"""How long a drain keeps answers back before connections are told to go away.

From then on gRPC cancels what comes over a connection until its client has read that. Whoever waits for an
answer then reads first that he is to go, and most clients that are at work wait for one within so long.
"""
_DELIVERED = "OK"
"""The code of an answer with messages: that one is not kept back, it ends before connections are told to go.

From then on a call may fail, and Go's client closes its connection at the first that does. It has read the
messages of an answer that has not ended, but drops them, and they stay hidden for their invisible duration.
"""
_Result = TypeVar("_Result")
_Context = grpc.aio.ServicerContext[Any, Any]


def _reason(host: str, port: int) -> str:
    """The system's error for an address where listening fails; gRPC reports only internals."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def _credentials(certificate: Certificate) -> grpc.ServerCredentials:
    """gRPC asks at every handshake; None: as before."""
    generation = -1

    def ask() -> Any:
        nonlocal generation
        certificate.current()
        if generation == certificate.generation:
            return None
        try:
            key, chain = certificate.pem()
            authorities = certificate.client_authorities()
        except OSError:
            return None
        generation = certificate.generation
        return grpc.ssl_server_certificate_configuration([(key, chain)], authorities)

    return grpc.dynamic_ssl_server_credentials(
        ask(), ask, require_client_authentication=certificate.asks_clients
    )


def _pinging(every_s: float) -> tuple[tuple[str, int], ...]:
    """The server pings a silent client, and gives it up when it does not answer: scenario 9.

    Without a timeout of its own a ping waits a minute, whatever is said of keepalive (seen in 1.85).
    """
    timeout_ms = round(max(every_s * 500, 1000))
    return (
        ("grpc.keepalive_time_ms", round(every_s * 1000)),
        ("grpc.keepalive_timeout_ms", timeout_ms),
        ("grpc.http2.ping_timeout_ms", timeout_ms),
    )


def _ageing(age_s: float, grace_s: float) -> tuple[tuple[str, int], ...]:
    """gRPC spreads the age by a tenth up or down by itself (scenario 10)."""
    if not age_s:
        return ()
    return (
        ("grpc.max_connection_age_ms", round(age_s * 1000)),
        ("grpc.max_connection_age_grace_ms", round(grace_s * 1000)),
    )


class GrpcioServer:
    """One listening server. With `port` 0 the system chooses; `port` returns the choice.

    `share_port`: other processes of the same gateway listen there as well. Two gateways on one port would
    each get half of the clients.
    """

    def __init__(
        self,
        door: RpcHandler,
        host: str,
        port: int,
        *,
        age_s: float = 0.0,
        age_grace_s: float = 30.0,
        ping_s: float = 20.0,
        reflection: Reflection | None = None,
        share_port: bool = False,
        path: str = "",
        mode: int = 0o600,
        certificate: Certificate | None = None,
    ) -> None:
        self._door = door
        self._reflection = reflection
        self._host = host
        self._socket = path
        self._mode = mode
        self._bound: tuple[int, int] | None = None
        """What the socket's file is known by."""
        self._certificate = certificate
        self._options = (
            *OPTIONS,
            ("grpc.so_reuseport", int(share_port)),
            *_ageing(age_s, age_grace_s),
            *_pinging(ping_s),
        )
        self.port = port
        self._server: grpc.aio.Server | None = None
        self._closing: asyncio.Future[None] | None = None
        self._told: asyncio.Event | None = None
        """There while a drain keeps answers back; set when connections have been told to go away."""
        self.under_way = InFlightCalls()

    def __repr__(self) -> str:
        return f"<GrpcioServer {joined(self._host, self.port)}>"

    def copies(self) -> list[socket.socket]:
        """None: gRPC keeps its sockets to itself."""
        return []

    async def start(self) -> None:
        """Raises OSError when it cannot listen there."""
        server = grpc.aio.server(options=self._options)
        server.add_generic_rpc_handlers((self._handlers(), self._health_handlers()))
        if self._reflection is not None:
            server.add_generic_rpc_handlers(self._reflection_handlers())
        address = joined(self._host, self.port)
        try:
            chosen = self._add_port(server, f"unix:{self._socket}" if self._socket else address)
        except RuntimeError as error:
            chosen, cause = 0, str(error).partition(";")[0]
        else:
            cause = "no address"
        if not chosen:
            await server.stop(None)
            if self._socket:
                raise OSError(f"cannot listen at unix:{self._socket}: {cause}")
            raise OSError(f"cannot listen at grpc://{address}: {_reason(self._host, self.port) or cause}")
        if self._socket:
            chosen = 0
            os.chmod(self._socket, self._mode)
            self._bound = identity_of(self._socket)
        self.port = chosen
        await server.start()
        self._server = server

    def _add_port(self, server: grpc.aio.Server, address: str) -> int:
        """Raises RuntimeError and OSError."""
        if self._socket:
            make_room(self._socket)
        if self._certificate is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, _credentials(self._certificate)))

    def _remove_socket(self) -> None:
        if self._bound is not None:
            remove(self._socket, self._bound)
            self._bound = None

    async def drain(self, grace: float) -> None:
        """Refuse new calls and send GOAWAY on all connections; `grace`: seconds for calls in progress.

        Can be called again after it was cancelled.
        """
        if self._server is None:
            return
        self._remove_socket()
        if self._told is None:
            self._told = asyncio.Event()
        now = asyncio.get_running_loop().time
        ends = now() + grace
        await asyncio.sleep(min(_GATHER_S, grace))
        # The server would cut calls off by itself; `stop` counts them first.
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._server.stop(_FOR_GOOD_S))
        closing = self._closing
        await asyncio.sleep(0)  # it tells them when it is first run
        self._told.set()
        await asyncio.wait((closing,), timeout=max(ends - now(), 0.0))
        if closing.done():
            # It does not wait for handlers whose client has just gone: they hear of it in a moment, which is
            # a long one where the machine is busy.
            await self.under_way.streams_over(max(ends - now(), 0.0))

    async def stop(self, cut_s: float = CUT_S) -> None:
        """Cancel the remaining calls, which have `cut_s` to return what they took, and close."""
        self._remove_socket()
        if self._told is not None and not self._told.is_set():
            # A drain that was cut short still keeps answers back: what they are about is done.
            self._told.set()
            await asyncio.sleep(0)  # they are written as soon as their calls go on
        self.under_way.cut()
        if self._closing is not None:
            self._closing.cancel()
            await asyncio.wait((self._closing,))
            self._closing = None
        if self._server is not None:
            await self._server.stop(None)
            await self.under_way.all_over(cut_s)

    def _handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        # Chosen once: a door whose calls do not fail pays nothing for those that do.
        fails = self._door.fails_calls
        unary = self._failing_unary if fails else self._unary
        streamed = self._failing_streamed if fails else self._streamed
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            method.name: grpc.unary_unary_rpc_method_handler(
                cast(Any, partial(unary, method)),
                request_deserializer=cast(Any, measuring_reader_of(method.request)),
                response_serializer=_serialized,
            )
            for method in UNARY
        }
        for method in STREAMED:
            handlers[method.name] = grpc.unary_stream_rpc_method_handler(
                cast(Any, partial(streamed, method)),
                request_deserializer=cast(Any, reader_of(method.request)),
                response_serializer=_encoded,
            )
        handlers["Telemetry"] = grpc.stream_stream_rpc_method_handler(
            cast(Any, self._telemetry),
            request_deserializer=cast(Any, reader_of(rpc.TelemetryCommand)),
            response_serializer=rpc.TelemetryCommand.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _health_handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        read = cast(Any, reader_of(HealthCheckRequest))
        write = HealthCheckResponse.SerializeToString
        return grpc.method_handlers_generic_handler(
            health.SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(
                    cast(Any, self._check), request_deserializer=read, response_serializer=write
                ),
                "Watch": grpc.unary_stream_rpc_method_handler(
                    cast(Any, self._watch), request_deserializer=read, response_serializer=write
                ),
            },
        )

    def _reflection_handlers(self) -> tuple[grpc.GenericRpcHandler[Any, Any], ...]:
        # Bytes as they come: what they mean is loaded when somebody asks.
        handler = grpc.stream_stream_rpc_method_handler(cast(Any, self._reflect))
        return tuple(
            grpc.method_handlers_generic_handler(service, {reflecting.METHOD: handler})
            for service in reflecting.SERVICES
        )

    async def _unary(self, method: Unary, measured: tuple[Request, int], context: _Context) -> Any:
        request, size = measured
        call = GrpcioCall(context, self.local_towards)
        self.under_way.requests[call] = call.peer
        try:
            answer = await self._door.unary(method, request, call, size)
            if self._told is not None:
                await self._told.wait()
            return answer
        finally:
            self.under_way.over(call)

    async def _streamed(self, method: Streamed, request: Request, context: _Context) -> None:
        call = GrpcioCall(context, self.local_towards)
        self.under_way.requests[call] = call.peer
        try:
            code = await self._door.streamed(method, request, call, GrpcioStream(context))
            if self._told is not None and code != _DELIVERED:
                await self._told.wait()
        finally:
            self.under_way.over(call)

    async def _failing_unary(self, method: Unary, measured: tuple[Request, int], context: _Context) -> Any:
        return await _ending(context, self._unary(method, measured, context))

    async def _failing_streamed(self, method: Streamed, request: Request, context: _Context) -> None:
        await _ending(context, self._streamed(method, request, context))

    async def _telemetry(self, _requests: object, context: _Context) -> None:
        # One client waits for the headers before it does anything else (pitfall 5).
        await context.send_initial_metadata(())
        call = GrpcioCall(context, self.local_towards)
        self.under_way.streams[call] = call.peer
        try:
            await _ending(context, self._door.telemetry(GrpcioStream(context), call))
        finally:
            self.under_way.stream_over(call)

    async def _check(
        self, request: HealthCheckRequest | Unreadable, context: _Context
    ) -> HealthCheckResponse:
        return await _ending(context, self._door.check_health(request))

    async def _watch(self, request: HealthCheckRequest | Unreadable, context: _Context) -> None:
        await _ending(context, self._door.watch_health(request, GrpcioStream(context)))

    async def _reflect(self, _requests: object, context: _Context) -> None:
        if self._reflection is not None:
            with suppress(BrokenStream):
                await _ending(context, self._reflection.serve(GrpcioRawStream(context)))

    def local_towards(self, peer: str) -> str:
        """The local address of a connection, as far as it is known: grpc.aio does not expose it."""
        if self._socket:
            return ""
        host = self._host
        if host in ("0.0.0.0", "::", "[::]", ""):  # noqa: S104 - a comparison, nothing is bound
            host = route_towards(peer.rpartition(":")[0].strip("[]"))
        return joined(host, self.port) if host else ""


async def _ending(context: _Context, work: Awaitable[_Result]) -> _Result:
    """The result of `work`; what it fails with becomes the call's status."""
    try:
        return await work
    except CallFailed as failed:
        await context.abort(_STATUS_CODES[failed.status], failed.sentence)
        raise  # never reached: to abort raises


def _serialized(answer: Message | EncodedAnswer) -> bytes:
    return answer.SerializeToString()


def _encoded(answer: Message | bytes) -> bytes:
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}
