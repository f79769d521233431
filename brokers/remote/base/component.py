"""What every part of the remote broker stands on."""

from __future__ import annotations

from brokers.remote.base.broker_client import Callings
from brokers.remote.base.unserved_groups import Unserved
from brokers.remote.cluster.name_servers import NameServers
from brokers.remote.cluster.routes import Routes
from brokers.remote.rpc.connections import Links
from brokers.remote.settings import RemoteSettings
from popgate.clock import Clock


class Facet:
    """Each facet is a class derived from this one that implements some methods of `brokers.port.Broker`.

    `RemoteBroker` is all of them. One that keeps something of its own extends `__init__`, `start`, `stop`
    or `figures`, and calls the one above it: `start` first, `stop` last.
    """

    def __init__(self, settings: RemoteSettings, *, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.links = Links(settings, clock)
        self.routes = Routes(NameServers(self.links, settings, clock), self.links, settings, clock)
        self.callings = Callings(self.links, self.routes, settings, clock)
        self.unserved = Unserved(clock)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.routes!r} {self.links!r}>"

    async def start(self) -> None:
        """Raises BrokerUnavailable with a sentence for the operator."""
        try:
            await self.routes.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        await self.routes.stop()
        await self.links.close()

    def figures(self) -> dict[str, float]:
        return {**self.links.figures(), **self.routes.figures()}
