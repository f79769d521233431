"""The adapter of an address that several protocols share, or where TLS is optional."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from protocols.adapter import Adapter, AdapterContext, Listen, certificate_of, flag_of, mode_of
from protocols.drain import DrainReport
from protocols.sniffing import Mark, Side, SniffingEntrance

PERMISSIVE: Final = "permissive"
"""The value of the option `tls` for an address whose clients may speak TLS or not, as RocketMQ has it."""
_TLS: Final = ("true", "false", PERMISSIVE)
_OWN: Final = frozenset({"proxy_protocol", "tls"})
"""Options of the address, not of one of its protocols."""


def is_shared(listen: Listen) -> bool:
    """Whether the protocol of each connection has to be detected."""
    return len(listen.schemes) > 1 or listen.options.get("tls") == PERMISSIVE


@dataclass(slots=True, frozen=True)
class Member:
    """One protocol: how it is known, the options that it knows, and what makes its adapter."""

    mark: Mark
    options: frozenset[str]
    make: Callable[[Listen, AdapterContext], Adapter]
    listens_by_itself: Callable[[Listen], bool]


class SharedAdapter:
    """One address with an adapter for each of its protocols, which share its connections.

    Options are those of all of them; each gets what it knows. `tls` may be `permissive`: clients speak TLS or
    not. `proxy_protocol`: a header of the PROXY protocol comes first, whatever follows.
    """

    def __init__(
        self, listen: Listen, adapter_context: AdapterContext, members: Mapping[str, Member]
    ) -> None:
        """Raises ValueError."""
        url = listen.url(listen.port)
        known = _OWN.union(*(member.options for member in members.values()))
        if unknown := listen.options.keys() - known:
            raise ValueError(f"{url} has no option {min(unknown)!r}; there are: {', '.join(sorted(known))}")
        if len(listen.schemes) != len(members):
            raise ValueError(f"{url} names a protocol twice")
        first = [byte for member in members.values() for byte in member.mark.first]
        if len(set(first)) != len(first):
            raise ValueError(f"{url}: these protocols begin alike, so they cannot share an address")
        wanted = listen.options.get("tls", "false")
        if wanted not in _TLS:
            raise ValueError(f"{url}: the option tls is true, false or permissive, not {wanted!r}")
        asked = replace(listen, options={"tls": "false" if wanted == "false" else "true"})
        self._certificate = certificate_of(asked, adapter_context)
        self._plain = wanted != "true"
        self._proxied = flag_of(listen, "proxy_protocol")
        self._mode = mode_of(listen)
        self._listen = listen
        self._adapter_context = adapter_context
        self._entrance: SniffingEntrance | None = None
        self._members = [self._make(scheme, member) for scheme, member in members.items()]

    def _make(self, scheme: str, member: Member) -> Adapter:
        options = {
            name: value
            for name, value in self._listen.options.items()
            if name in member.options and name not in _OWN
        }
        part = replace(self._listen, scheme=scheme, options=options)
        if member.listens_by_itself(part):
            raise ValueError(
                f"{self._listen.url(self._listen.port)}: transport={options.get('transport')} listens by"
                " itself, and takes no connection that was looked at before: leave it out, or give it an"
                " address of its own"
            )

        def opening(_door: object, _scheme: str, _host: str, _port: int, make: Any, **_more: object) -> Side:
            assert self._entrance is not None  # noqa: S101 - members are started after it was made
            return self._entrance.side(scheme, member.mark, make)

        return member.make(part, replace(self._adapter_context, accepting=None, opening=opening))

    def __repr__(self) -> str:
        return f"<SharedAdapter {', '.join(self.addresses) or 'not started'}>"

    @property
    def addresses(self) -> list[str]:
        return [self._listen.url(self._entrance.port)] if self._entrance is not None else []

    async def start(self) -> None:
        adapter_context, listen = self._adapter_context, self._listen
        entrance = SniffingEntrance(
            self,
            listen.scheme,
            listen.host,
            listen.port,
            path=listen.path,
            mode=self._mode,
            tls=self._certificate.current if self._certificate is not None else None,
            plain=self._plain,
            proxied=self._proxied,
            listener=adapter_context.accepting(listen) if adapter_context.accepting is not None else None,
            observer=adapter_context.sniffing,
            max_connections=adapter_context.max_connections,
            max_per_address=adapter_context.max_per_address,
        )
        # Before the members: they tell their clients the port that was chosen.
        await entrance.open()
        self._entrance = entrance
        for member in self._members:
            await member.start()
        entrance.begin()

    def copies(self) -> list[socket.socket]:
        return self._entrance.copies() if self._entrance is not None else []

    def leave(self) -> None:
        for member in self._members:
            member.leave()

    async def drain(self, deadline: float, ends: float | None = None) -> None:
        if self._entrance is None:
            return
        left = deadline - self._adapter_context.clock.monotonic()
        await self._entrance.rest(max(left, 0.0))
        self._entrance.close()
        await asyncio.gather(*(member.drain(deadline, ends) for member in self._members))
        await self._entrance.end()

    def farewell(self) -> DrainReport:
        return sum((member.farewell() for member in self._members), DrainReport())

    async def stop(self, ends: float | None = None) -> None:
        if self._entrance is not None:
            await self._entrance.end()
        for member in self._members:
            await member.stop(ends)
