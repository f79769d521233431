"""The gRPC door as an adapter: it puts service, health and transport together and lets them go again."""

from __future__ import annotations

import asyncio

from protocols.adapter import House, Listen, parse_advertised
from protocols.draining import Farewell
from protocols.grpc import health as health_service
from protocols.grpc.advertising import fixed_endpoints
from protocols.grpc.grpcio_transport import GrpcioServer
from protocols.grpc.health import Health
from protocols.grpc.namespaces import NamespacedDoor
from protocols.grpc.reflection import Reflection
from protocols.grpc.rpcs import SERVICE, Door
from protocols.grpc.service import MessagingService


class GrpcAdapter:
    """A gRPC server at one address.

    The option `advertised` of the address ("host:port") goes before that of the house, so that
    two addresses (inside and outside of a network, say) can tell their clients different ones.
    """

    def __init__(self, listen: Listen, house: House) -> None:
        unknown = listen.options.keys() - {"advertised"}
        if unknown:
            raise ValueError(
                f"{listen.url(listen.port)} has no option {sorted(unknown)[0]!r}; there is: advertised"
            )
        advertised = listen.options.get("advertised", house.advertised)
        self._advertised = parse_advertised(advertised) if advertised else None
        if house.faults is not None:
            from protocols.grpc.faults import claim

            claim(house.faults)
        self._listen = listen
        self._house = house
        self._service: MessagingService | None = None
        self._health: Health | None = None
        self._reflection: Reflection | None = None
        self._server: GrpcioServer | None = None

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
        server = GrpcioServer(
            NamespacedDoor(door) if house.namespaces else door,
            self._listen.host,
            self._listen.port,
            ping_s=house.connection_ping_s,
            age_s=house.connection_age_s,
            age_grace_s=house.connection_grace_s,
            reflection=reflection,
        )
        await server.start()
        if fixed is not None and not fixed.addresses[0].port:
            fixed.addresses[0].port = server.port
        self._service, self._health, self._server = service, health, server
        self._reflection = reflection
        health.start()

    def _make_door(self, service: MessagingService, health: Health) -> Door:
        house = self._house
        if house.faults is None:
            return Door(service, health, house.clock, house.authenticator)
        from protocols.grpc.faults import FaultyDoor

        return FaultyDoor(service, health, house.clock, house.authenticator, house.faults)

    async def drain(self, deadline: float) -> None:
        if self._server is None or self._service is None or self._health is None:
            return
        self._server.under_way.drain()
        grace = max(deadline - self._house.clock.monotonic(), 0.0)
        closing = asyncio.ensure_future(self._server.drain(grace))
        self._health.drain()
        if self._reflection is not None:
            self._reflection.drain()
        self._service.drain()
        try:
            await closing
        finally:
            closing.cancel()
        await self._server.stop()

    def farewell(self) -> Farewell:
        return self._server.under_way.farewell() if self._server is not None else Farewell()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()
