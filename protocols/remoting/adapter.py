"""The remoting door as an adapter: it starts and stops its rooms and connections."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Final

from popgate.context import Context
from protocols.adapter import (
    AdapterContext,
    Listen,
    certificate_of,
    flag_of,
    joined,
    mode_of,
    parse_advertised,
)
from protocols.drain import DrainReport, cut_time
from protocols.remoting.connections.server import RemotingServer
from protocols.remoting.door import Door
from protocols.remoting.requests import DoorContext

OPTIONS: Final = ("advertised", "mode", "proxy_protocol", "tls")


class RemotingAdapter:
    """A remoting server at one address.

    Options of the address: `advertised` ("host:port") overrides the setting of that name, of which remoting
    uses the host only (its port belongs to gRPC). `tls=true`: clients use TLS. `proxy_protocol=true`: every
    connection begins with a PROXY protocol header, version 1 or 2, which contains the client's address.
    `mode`: file permissions of a Unix socket, 600 by default.
    """

    def __init__(self, listen: Listen, adapter_context: AdapterContext) -> None:
        unknown = listen.options.keys() - OPTIONS
        if unknown:
            raise ValueError(
                f"{listen.url(listen.port)} has no option {sorted(unknown)[0]!r};"
                f" there are: {', '.join(OPTIONS)}"
            )
        self._advertised = _advertised(listen, adapter_context)
        self._certificate = certificate_of(listen, adapter_context)
        self._proxied = flag_of(listen, "proxy_protocol")
        self._mode = mode_of(listen)
        if listen.path and (self._advertised is None or not self._advertised[1]):
            # Classic clients are told addresses to connect to, and know of no sockets in file systems.
            raise ValueError(f"{listen.url(0)} has no port to advertise: say advertised=host:port")
        self._listen = listen
        self._adapter_context = adapter_context
        self._server: RemotingServer | None = None
        self._ends = ExitStack()

    def __repr__(self) -> str:
        return f"<RemotingAdapter {', '.join(self.addresses) or 'not started'}>"

    @property
    def addresses(self) -> list[str]:
        return [self._listen.url(self._server.port)] if self._server is not None else []

    async def start(self) -> None:
        adapter_context, listen = self._adapter_context, self._listen
        door = Door(DoorContext(adapter_context.processor, adapter_context.clock, self._address, self._ends))
        door.calls = adapter_context.calls
        door.authenticator = adapter_context.authenticator
        server = RemotingServer(
            door,
            adapter_context.processor.budgets,
            listen.host,
            listen.port,
            path=listen.path,
            mode=self._mode,
            tls=self._certificate.current if self._certificate is not None else None,
            proxied=self._proxied,
            max_connections=adapter_context.max_connections,
            max_per_address=adapter_context.max_per_address,
            max_requests=adapter_context.max_streams,
            listener=adapter_context.accepting(listen) if adapter_context.accepting is not None else None,
            opening=adapter_context.opening,
            observer=adapter_context.remoting_connections,
        )
        # Else the first messages could be told to lie at places of nobody.
        await adapter_context.processor.queue_numbering.prime()
        await server.start()
        self._server = server

    def _address(self, context: Context) -> str:
        """The address that a client is told to use."""
        if self._advertised is None:
            return context.local
        host, port = self._advertised
        return joined(host, port or (self._server.port if self._server is not None else self._listen.port))

    def copies(self) -> list[socket.socket]:
        return self._server.copies() if self._server is not None else []

    def leave(self) -> None:
        """No effect: classic clients have no message for it, and are served as before."""

    async def drain(self, deadline: float, ends: float | None = None) -> None:
        if self._server is None:
            return
        await self._server.drain(max(deadline - self._adapter_context.clock.monotonic(), 0.0))
        await self.stop(ends)

    def farewell(self) -> DrainReport:
        return self._server.under_way.farewell() if self._server is not None else DrainReport()

    async def stop(self, ends: float | None = None) -> None:
        try:
            if self._server is not None:
                await self._server.stop(cut_time(ends, self._adapter_context.clock.monotonic()))
        finally:
            # Also of a door that did not come to listen, or whose server fails.
            self._ends.close()


def _advertised(listen: Listen, adapter_context: AdapterContext) -> tuple[str, int] | None:
    """The advertised address, port 0: the door's own port; None: the address that each client used.

    Raises ValueError.
    """
    own = listen.options.get("advertised")
    if own:
        return parse_advertised(own)
    return (parse_advertised(adapter_context.advertised)[0], 0) if adapter_context.advertised else None
