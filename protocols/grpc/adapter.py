"""The gRPC door as an adapter: it starts and stops service, health check and transport."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

from protocols.adapter import House, Listen, certificate_of, mode_of, parse_advertised
from protocols.drain import CUT_S, Farewell, UnderWay, cut_time
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

    under_way: UnderWay

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

    def __init__(self, listen: Listen, house: House) -> None:
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
        advertised = listen.options.get("advertised", house.advertised)
        self._advertised = parse_advertised(advertised) if advertised else None
        self._certificate = certificate_of(listen, house)
        self._mode = mode_of(listen)
        if listen.path and self._advertised is not None and not self._advertised[1]:
            raise ValueError(f"{listen.url(0)} has no port to advertise: add it to {advertised!r}")
        if house.faults is not None:
            from protocols.grpc.rpcs.faults import claim

            claim(house.faults)
        self._listen = listen
        self._house = house
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
        house = self._house
        fixed = None
        if self._advertised is not None:
            host, port = self._advertised
            fixed = fixed_endpoints(host, port or self._listen.port)
        service = MessagingService(house.processor, house.clock, advertised=fixed)
        health = Health([SERVICE], healthy=house.healthy, clock=house.clock)
        door = self._make_door(service, health)
        door.calls = house.calls
        reflection = Reflection((SERVICE, health_service.SERVICE)) if house.reflection else None
        server = self._make_server(NamespacedDoor(door) if house.namespaces else door, reflection)
        await server.start()
        if fixed is not None and not fixed.addresses[0].port:
            fixed.addresses[0].port = server.port
        self._service, self._health, self._server = service, health, server
        self._reflection = reflection
        health.start()

    def _make_server(self, door: RpcHandler, reflection: Reflection | None) -> Server:
        house, listen = self._house, self._listen
        if self._transport == HTTP2:
            limits = Http2Limits(
                ping_s=house.connection_ping_s,
                age_s=house.connection_age_s,
                age_grace_s=house.connection_grace_s,
                max_streams=house.max_streams,
            )
            listener = house.accepting(listen) if house.accepting is not None else None
            return Http2Server(
                door,
                listen.host,
                listen.port,
                path=listen.path,
                mode=self._mode,
                tls=self._certificate.current if self._certificate is not None else None,
                limits=limits,
                max_connections=house.max_connections,
                max_per_address=house.max_per_address,
                reflection=reflection,
                listener=listener,
                opening=house.opening,
                observer=house.connections,
            )
        # Loaded by who wants it only: it takes 15 MB.
        from protocols.grpc.servers.grpcio_server import GrpcioServer

        return GrpcioServer(
            door,
            listen.host,
            listen.port,
            ping_s=house.connection_ping_s,
            age_s=house.connection_age_s,
            age_grace_s=house.connection_grace_s,
            reflection=reflection,
            share_port=house.accepting is not None,
            path=listen.path,
            mode=self._mode,
            certificate=self._certificate,
        )

    def _make_door(self, service: MessagingService, health: Health) -> RpcDispatcher:
        house = self._house
        if house.faults is None:
            return RpcDispatcher(service, health, house.clock, house.authenticator)
        from protocols.grpc.rpcs.faults import FaultyDoor

        return FaultyDoor(service, health, house.clock, house.authenticator, house.faults)

    def copies(self) -> list[socket.socket]:
        return self._server.copies() if self._server is not None else []

    def leave(self) -> None:
        if self._health is not None:
            self._health.leave()

    async def drain(self, deadline: float, ends: float | None = None) -> None:
        if self._server is None or self._service is None or self._health is None:
            return
        self._server.under_way.drain()
        grace = max(deadline - self._house.clock.monotonic(), 0.0)
        closing = asyncio.ensure_future(self._server.drain(grace))
        self._health.drain()
        if self._reflection is not None:
            self._reflection.drain()
        self._service.drain()
        ending = None
        if self._house.leaves_streams():
            # Some clients never open their Telemetry stream again: it lasts as long as it may.
            ending = self._house.clock.call_later(max(grace - _LAST_WORDS_S, 0.0), self._service.end_streams)
        else:
            self._service.end_streams()
        try:
            await closing
        finally:
            closing.cancel()
            if ending is not None:
                ending.cancel()
        await self.stop(ends)

    def farewell(self) -> Farewell:
        return self._server.under_way.farewell() if self._server is not None else Farewell()

    async def stop(self, ends: float | None = None) -> None:
        if self._server is not None:
            await self._server.stop(cut_time(ends, self._house.clock.monotonic()))
