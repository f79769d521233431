"""A remote broker whose parts can be reached."""

from __future__ import annotations

from typing import Any

from brokers.remote.broker import RemoteBroker
from brokers.remote.settings import RemoteSettings
from popgate.clock import Clock


class OpenBroker(RemoteBroker):
    """A broker that has the methods and attributes of its parts, too, for tests of one of them.

    `quiet`: it is started so that it asks for routes only, and tells no broker of clients.
    """

    def __init__(self, settings: RemoteSettings, *, clock: Clock, quiet: bool = False) -> None:
        super().__init__(settings, clock=clock)
        self._quiet = quiet

    def __getattr__(self, name: str) -> Any:
        for part in (self.access, *vars(self).values(), *self._capabilities):
            if type(part).__module__.startswith("brokers.remote.") and hasattr(part, name):
                return getattr(part, name)
        raise AttributeError(name)

    async def start(self) -> None:
        await (self.access.start() if self._quiet else super().start())
