"""Name servers: one that responds is enough, and what one does not know another may.

They do not exchange data; brokers register at each of them. So one that has just started
knows nothing for a while, and 'no such topic' counts only when all that can be reached return it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence

from brokers.remote.rpc.addresses import MOST_SERVERS, Resolve, is_literal, resolve, split_address
from brokers.remote.rpc.connection_pool import ConnectionPool
from brokers.remote.settings import RemoteSettings
from popgate.clock import Clock, Timer
from popgate.errors import BrokerBusy, BrokerTimeout, BrokerUnavailable
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command

_LEAST_TRY_S = 0.2
_LEAST_BETWEEN_LOOKUPS_S = 1.0


class NameServers:
    """Asks the server that responded last, and the others if it fails, within the caller's deadline."""

    def __init__(
        self,
        links: ConnectionPool,
        settings: RemoteSettings,
        clock: Clock,
        *,
        look_up: Resolve = resolve,
        chance: random.Random | None = None,
    ) -> None:
        self._links = links
        self._settings = settings
        self._clock = clock
        self._look_up = look_up
        self._chance = chance or random.Random()  # noqa: S311
        self._found: dict[str, Sequence[str]] = {}
        """By name as it is configured: the addresses it stood for when it was last looked up well."""
        self._order: list[str] = []
        self._troubles: dict[str, str] = {}
        self._named = any(not is_literal(split_address(server)[0]) for server in settings.name_servers)
        self._looked_up_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._again: Timer | None = None
        self._stopped = False
        self.heard_at: float | None = None
        """When one of them answered last, in loop seconds."""

    def __repr__(self) -> str:
        return f"<NameServers {' '.join(self._order)} answered {_age(self.age())}>"

    @property
    def addresses(self) -> Sequence[str]:
        """All known addresses, the one to ask first at the front."""
        return tuple(self._order)

    @property
    def nameless(self) -> dict[str, str]:
        """Configured servers whose names resolve to no address, and why."""
        return {
            server: self._troubles.get(server, "its name stands for no address")
            for server in self._settings.name_servers
            if not self._found.get(server)
        }

    def age(self) -> float | None:
        """Seconds since one of them answered; None: none ever did."""
        return None if self.heard_at is None else self._clock.monotonic() - self.heard_at

    async def start(self) -> None:
        """Resolve their addresses. Raises BrokerUnavailable when no name resolves."""
        await self._look()
        if not self._order:
            raise BrokerUnavailable(f"no name server is found: {self._told()}")

    async def stop(self) -> None:
        self._stopped = True
        if self._again is not None:
            self._again.cancel()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def ask(self, code: int, fields: Mapping[str, str], *, timeout_s: float) -> Command:
        """The first answer with SUCCESS; else the most telling one of the others.

        Raises BrokerUnavailable when none of them answered: its sentence says why, of each.
        """
        until = self._clock.monotonic() + timeout_s
        answer = await self._ask_all(code, fields, until)
        if answer is None and self._named:
            # They may have moved to other addresses.
            before = set(self._order)
            await self._look(until - self._clock.monotonic())
            if set(self._order) != before:
                answer = await self._ask_all(code, fields, until)
        if answer is None:
            raise BrokerUnavailable(f"no name server can be reached: {self._told()}")
        return answer

    async def _ask_all(self, code: int, fields: Mapping[str, str], until: float) -> Command | None:
        best: Command | None = None
        order = list(self._order)
        for place, address in enumerate(order):
            left = until - self._clock.monotonic()
            if left <= 0:
                break
            try:
                answer = await self._links.call(
                    address, code, fields, timeout_s=max(left / (len(order) - place), min(_LEAST_TRY_S, left))
                )
            except (BrokerUnavailable, BrokerTimeout, BrokerBusy) as error:
                self._troubles[address] = error.sentence
                continue
            self.heard_at = self._clock.monotonic()
            self._troubles.pop(address, None)
            if answer.code == ResponseCode.SUCCESS:
                self._prefer(address)
                return answer
            if best is None or answer.code == ResponseCode.TOPIC_NOT_EXIST:
                best = answer
        return best

    def _prefer(self, address: str) -> None:
        if self._order and self._order[0] != address and address in self._order:
            self._order.remove(address)
            self._order.insert(0, address)

    def _told(self) -> str:
        if self._troubles:
            return "; ".join(dict.fromkeys(self._troubles.values()))
        return "there was no time to ask one"

    async def _look(self, limit_s: float | None = None) -> None:
        """Resolve the names, at most once at a time and once per second."""
        if self._looking is None:
            if self._clock.monotonic() - self._looked_up_at < _LEAST_BETWEEN_LOOKUPS_S or self._stopped:
                return
            self._looking = asyncio.get_running_loop().create_task(self._look_all())
        await asyncio.wait([self._looking], timeout=limit_s)

    async def _look_all(self) -> None:
        try:
            await asyncio.gather(*(self._look_one(server) for server in self._settings.name_servers))
            self._arrange()
        finally:
            self._looked_up_at = self._clock.monotonic()
            self._looking = None
            if self._named and not self._stopped:
                if self._again is not None:
                    self._again.cancel()
                self._again = self._clock.call_later(self._settings.name_refresh_s, self._look_again)

    async def _look_one(self, server: str) -> None:
        host, port = split_address(server)
        if is_literal(host):
            self._found[server] = (server,)
            return
        try:
            addresses = await self._look_up(host, port)
        except (OSError, UnicodeError) as error:  # the latter for what can be no name, such as `a..b`
            if server not in self._found:
                why = (error.strerror if isinstance(error, OSError) else "") or error
                self._troubles[server] = f"the name {host} cannot be looked up: {why}"
            return
        self._troubles.pop(server, None)
        self._found[server] = tuple(addresses)
        for address in addresses:
            self._links.name(address, host)

    def _look_again(self) -> None:
        self._again = None
        if self._looking is None and not self._stopped:
            self._looking = asyncio.get_running_loop().create_task(self._look_all())

    def _arrange(self) -> None:
        """Those that stay keep their places, the one in use first of all; new ones come in any order."""
        known = dict.fromkeys(address for addresses in self._found.values() for address in addresses)
        kept = [address for address in self._order if address in known]
        fresh = [address for address in known if address not in kept]
        self._chance.shuffle(fresh)
        self._order = (kept + fresh)[:MOST_SERVERS]
        names = set(self._order) | set(self._settings.name_servers)
        self._troubles = {name: why for name, why in self._troubles.items() if name in names}


def _age(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f} s ago"
