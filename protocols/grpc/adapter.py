"""The gRPC door as an adapter: it starts and stops service, health check and transport."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

from protocols.adapter import AdapterContext, Listen, certificate_of, mode_of, parse_advertised
from protocols.drain import CUT_S, DrainReport, InFlightCalls, cut_time
from protocols.grpc.codec.endpoints import fixed_endpoints
from protocols.grpc.http2.frames.limits import Http2Limits
from protocols.grpc.rpcs import health as health_service
from protocols.grpc.rpcs.dispatcher import SERVICE, RpcDispatcher, RpcHandler
from protocols.grpc.rpcs.health import Health
from protocols.grpc.rpcs.namespaces import NamespacedDoor
from protocols.grpc.rpcs.reflection import Reflection
from protocols.grpc.servers.http2_server import Http2Server
from protocols.grpc.service.service import MessagingService

HTTP2 = "http2"
TRANSPORTS = (HTTP2, "grpcio")
OPTIONS = ("advertised", "mode", "tls", "transport")

_LAST_WORDS_S = 0.5
"""Before the end of a drain, for clients to hear that their streams end well."""


class Server(Protocol):
    """What a transport listens with."""

    under_way: InFlightCalls

    @property
    def port(self) -> int: ...
    async def start(self) -> None: ...
    def copies(self) -> list[socket.socket]: ...
    async def drain(self, grace: float) -> None: ...
    async def stop(self, cut_s: float = CUT_S) -> None: ...


class GrpcAdapter:
    """A gRPC server at one address.

    The option `advertised` of the address ("host:port") overrides the gateway's setting, so that
    two addresses (for example inside and outside of a network) can advertise different ones. With
    `tls=true` its clients speak TLS. `mode` is the file mode of a socket in the file system: 600, only
    this user, by default.
    """

    def __init__(self, listen: Listen, adapter_context: AdapterContext) -> None:
        unknown = listen.options.keys() - OPTIONS
        if unknown:
            raise ValueError(
                f"{listen.url(listen.port)} has no option {sorted(unknown)[0]!r};"
                f" there are: {', '.join(OPTIONS)}"
            )
        self._transport = listen.options.get("transport", HTTP2)
        if self._transport not in TRANSPORTS:
            raise ValueError(
                f"{listen.url(listen.port)} has no transport {self._transport!r};"
                f" there are: {', '.join(TRANSPORTS)}"
            )
        advertised = listen.options.get("advertised", adapter_context.advertised)
        self._advertised = parse_advertised(advertised) if advertised else None
        self._certificate = certificate_of(listen, adapter_context)
        self._mode = mode_of(listen)
        if listen.path and self._advertised is not None and not self._advertised[1]:
            raise ValueError(f"{listen.url(0)} has no port to advertise: add it to {advertised!r}")
        if adapter_context.faults is not None:
            from protocols.grpc.rpcs.faults import claim

            claim(adapter_context.faults)
        self._listen = listen
        self._adapter_context = adapter_context
        self._service: MessagingService | None = None
        self._health: Health | None = None
        self._reflection: Reflection | None = None
        self._server: Server | None = None

    def __repr__(self) -> str:
        return f"<GrpcAdapter {', '.join(self.addresses) or 'not started'}>"

    @property
    def addresses(self) -> list[str]:
        return [self._listen.url(self._server.port)] if self._server is not None else []

    async def start(self) -> None:
        adapter_context = self._adapter_context
        fixed = None
        if self._advertised is not None:
            host, port = self._advertised
            fixed = fixed_endpoints(host, port or self._listen.port)
        service = MessagingService(adapter_context.processor, adapter_context.clock, advertised=fixed)
        health = Health([SERVICE], healthy=adapter_context.healthy, clock=adapter_context.clock)
        door = self._make_door(service, health)
        door.calls = adapter_context.calls
        reflection = Reflection((SERVICE, health_service.SERVICE)) if adapter_context.reflection else None
        server = self._make_server(NamespacedDoor(door) if adapter_context.namespaces else door, reflection)
        await server.start()
        if fixed is not None and not fixed.addresses[0].port:
            fixed.addresses[0].port = server.port
        self._service, self._health, self._server = service, health, server
        self._reflection = reflection
        health.start()

    def _make_server(self, door: RpcHandler, reflection: Reflection | None) -> Server:
        adapter_context, listen = self._adapter_context, self._listen
        if self._transport == HTTP2:
            limits = Http2Limits(
                ping_s=adapter_context.connection_ping_s,
                age_s=adapter_context.connection_age_s,
                age_grace_s=adapter_context.connection_grace_s,
                max_streams=adapter_context.max_streams,
            )
            listener = adapter_context.accepting(listen) if adapter_context.accepting is not None else None
            return Http2Server(
                door,
                listen.host,
                listen.port,
                path=listen.path,
                mode=self._mode,
                tls=self._certificate.current if self._certificate is not None else None,
                limits=limits,
                max_connections=adapter_context.max_connections,
                max_per_address=adapter_context.max_per_address,
                reflection=reflection,
                listener=listener,
                opening=adapter_context.opening,
                observer=adapter_context.connections,
                others_serve=adapter_context.leaves_streams,
            )
        # Loaded by who wants it only: it takes 15 MB.
        from protocols.grpc.servers.grpcio_server import GrpcioServer

        return GrpcioServer(
            door,
            listen.host,
            listen.port,
            ping_s=adapter_context.connection_ping_s,
            age_s=adapter_context.connection_age_s,
            age_grace_s=adapter_context.connection_grace_s,
            reflection=reflection,
            share_port=adapter_context.accepting is not None,
            path=listen.path,
            mode=self._mode,
            certificate=self._certificate,
        )

    def _make_door(self, service: MessagingService, health: Health) -> RpcDispatcher:
        adapter_context = self._adapter_context
        if adapter_context.faults is None:
            return RpcDispatcher(service, health, adapter_context.clock, adapter_context.authenticator)
        from protocols.grpc.rpcs.faults import FaultyDoor

        return FaultyDoor(
            service, health, adapter_context.clock, adapter_context.authenticator, adapter_context.faults
        )

    def copies(self) -> list[socket.socket]:
        return self._server.copies() if self._server is not None else []

    def leave(self) -> None:
        if self._health is not None:
            self._health.leave()

    async def drain(self, deadline: float, ends: float | None = None) -> None:
        if self._server is None or self._service is None or self._health is None:
            return
        self._server.under_way.drain()
        grace = max(deadline - self._adapter_context.clock.monotonic(), 0.0)
        closing = asyncio.ensure_future(self._server.drain(grace))
        self._health.drain()
        if self._reflection is not None:
            self._reflection.drain()
        self._service.drain()
        ending = None
        if self._adapter_context.leaves_streams():
            # Some clients never open their Telemetry stream again: it lasts as long as it may.
            ending = self._adapter_context.clock.call_later(
                max(grace - _LAST_WORDS_S, 0.0), self._service.end_streams
            )
        else:
            self._service.end_streams()
        try:
            await closing
        finally:
            closing.cancel()
            if ending is not None:
                ending.cancel()
        await self.stop(ends)

    def farewell(self) -> DrainReport:
        return self._server.under_way.farewell() if self._server is not None else DrainReport()

    async def stop(self, ends: float | None = None) -> None:
        if self._server is not None:
            await self._server.stop(cut_time(ends, self._adapter_context.clock.monotonic()))
