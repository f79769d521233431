"""Registers the clients of this replica at the cluster: see `brokers.remote.clients.registry`."""

from __future__ import annotations

from brokers.client_registration import AsksClients, ConnectedClient, RegistersClients
from brokers.relay import CommandHandler, HearsBrokers
from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.clients.client_requests import ClientRequests
from brokers.remote.clients.registry import ClientRegistry


class ClientRegistration(RegistersClients, HearsBrokers):
    """`brokers.client_registration.RegistersClients`, and `brokers.relay.HearsBrokers`."""

    def __init__(self, access: ClusterAccess) -> None:
        shared = access.connections, access.routes, access.settings, access.clock
        self.registry = ClientRegistry(*shared)
        self.requests = ClientRequests(self.registry, *shared)

    def start(self) -> None:
        self.registry.start()

    async def stop(self) -> None:
        await self.registry.stop()

    def figures(self) -> dict[str, float]:
        return self.registry.figures()

    def client_is_here(self, client: ConnectedClient) -> None:
        self.registry.is_here(client)

    def client_left(self, key: str) -> None:
        self.registry.left(key)

    def on_question(self, asker: AsksClients) -> None:
        self.requests.asker = asker

    def on_command(self, handler: CommandHandler) -> None:
        self.requests.handler = handler
