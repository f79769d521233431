"""The cluster is told of the clients of this replica: see `brokers.remote.clients.registry`."""

from __future__ import annotations

from brokers.capabilities import AsksClients, ConnectedClient, RegistersClients
from brokers.remote.base.component import Facet
from brokers.remote.clients.client_requests import Questions
from brokers.remote.clients.registry import Register
from brokers.remote.settings import RemoteSettings
from popgate.clock import Clock


class Registering(Facet, RegistersClients):
    """`brokers.capabilities.RegistersClients`."""

    def __init__(self, settings: RemoteSettings, *, clock: Clock) -> None:
        super().__init__(settings, clock=clock)
        self.register = Register(self.links, self.routes, settings, clock)
        self._questions = Questions(self.register, self.links, self.routes, settings, clock)

    async def start(self) -> None:
        await super().start()
        self.register.start()

    async def stop(self) -> None:
        await self.register.stop()
        await super().stop()

    def figures(self) -> dict[str, float]:
        return {**super().figures(), **self.register.figures()}

    def client_is_here(self, client: ConnectedClient) -> None:
        self.register.is_here(client)

    def client_left(self, key: str) -> None:
        self.register.left(key)

    def on_question(self, asker: AsksClients) -> None:
        self._questions.asker = asker
