"""The brokers of all clusters that the name servers know, by name, and where each can be reached.

A name server that was restarted has forgotten every broker until that registers again, up to half a
minute later. So an unlisted broker stays known while a connection to it is open, and for a while after that.
If the slave of a pair registers first, the name server lists it as acting for the master. A slave learns the
progress of groups some seconds late: a pop there returns acknowledged messages again. So requests still go to
an unlisted master whose slave is listed, as long as it responds (`is_held`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from brokers.remote.cluster.name_servers import NameServers
from brokers.remote.cluster.single_flight import shared
from brokers.remote.rpc.connection_pool import ConnectionPool
from brokers.remote.settings import RemoteSettings
from popgate.clock import Clock, Timer
from popgate.errors import BrokerUnavailable, GatewayError, PeerWireError, shown
from popgate.wire.bodies.routes import BrokerData, ClusterInfo, TopicRoute
from popgate.wire.frames.codes import RequestCode, ResponseCode

_log = logging.getLogger(__name__)

MOST_BROKERS = 4_096
_HURRY_S = 1.0
"""How often it is asked where brokers are while one of them cannot be reached."""
_SUSPECTED_S = 60.0
_UNTOLD_S = 120.0
"""How long a broker stays known that no name server names and no link reaches."""
_MOST_ACTING = 32


@dataclass(slots=True)
class _Known:
    """`data` has what was told last, `told_at` when; `named`: also by the last list of all brokers.

    `held`: told since then was only its slave, and its master answers. `refused`: since then the master said
    that it is none.
    """

    data: BrokerData
    told_at: float
    named: bool
    acting: bool
    held: bool = False
    refused: bool = False


class KnownBrokers:
    """Asked about every `route_refresh_s`, and every second while a broker cannot be reached."""

    def __init__(
        self, servers: NameServers, links: ConnectionPool, settings: RemoteSettings, clock: Clock
    ) -> None:
        self._servers = servers
        self._connections = links
        self._settings = settings
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._names: dict[str, str] = {}
        """The broker at an address."""
        self._suspects: dict[str, float] = {}
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self._again: Timer | None = None
        self._stopped = False
        self.changed_at = float("-inf")
        """When something about the brokers became different, in loop seconds: routes from before are old."""
        self.failures = 0
        links.on_lost(self._lost)
        links.on_open(self._opened)

    def __repr__(self) -> str:
        return f"<KnownBrokers {len(self._known)} brokers, {len(self._suspects)} suspected>"

    def __len__(self) -> int:
        return len(self._known)

    async def start(self) -> None:
        """Raises BrokerUnavailable with a sentence for the operator."""
        await self._ask()
        self._arm()

    async def stop(self) -> None:
        self._stopped = True
        if self._again is not None:
            self._again.cancel()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    async def brokers(self) -> Sequence[BrokerData]:
        """Those that a name server names, or a link reaches. Raises BrokerUnavailable."""
        if self._asked_at == float("-inf"):
            await self.refresh()
        return [known.data for known in self._known.values() if known.named or self._reached(known.data)]

    def known(self) -> Sequence[BrokerData]:
        """All brokers that were listed and not forgotten, reachable or not."""
        return [known.data for known in self._known.values()]

    async def refresh(self) -> None:
        """Ask for all brokers now, or wait for who does. Raises BrokerUnavailable."""
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask())
            self._asking.add_done_callback(self._asked)
        await shared(self._asking)

    def learn(self, brokers: Iterable[BrokerData]) -> None:
        """Update brokers from a topic's route, which is newer than the known data."""
        now = self._clock.monotonic()
        for data in brokers:
            known = self._known.get(data.name)
            if known is None:
                self._add(data.name, _Known(data, now, True, False))
            elif known.data.addresses != data.addresses:
                # A slave told as the master stands in for it: lists of all brokers tell it as a slave.
                is_slave = data.master in {
                    address for number, address in known.data.addresses.items() if number
                }
                if self._stays(known, data, acting=is_slave and data.acting_master):
                    self._hold(known, now)
                    # Lists of all brokers tell whether it is the master now after all.
                    self.suspect(data.name)
                else:
                    acting = is_slave and (known.acting or known.data.master is None)
                    self._add(data.name, _Known(data, now, known.named, acting))
            else:
                known.told_at, known.held, known.refused = now, False, False

    def get(self, name: str) -> BrokerData | None:
        known = self._known.get(name)
        return None if known is None else known.data

    def at(self, address: str) -> str:
        """The name of the broker at an address; empty when none is known there."""
        return self._names.get(address, "")

    def is_acting(self, name: str) -> bool:
        """Whether a slave acts for the master: it serves pops and acknowledgements, and no writes."""
        known = self._known.get(name)
        return known is not None and known.acting

    def is_held(self, name: str) -> bool:
        """Whether the name servers list only a slave, although the master responds."""
        known = self._known.get(name)
        return known is not None and known.held

    def is_forgotten(self, name: str) -> bool:
        """Whether the name servers do not know the broker, and it is there all the same."""
        known = self._known.get(name)
        return known is not None and not known.named and self._reached(known.data)

    def address(self, name: str, *, reading: bool = False) -> str:
        """The address for requests. Raises BrokerUnavailable: unknown, or without a suitable process.

        With `reading` a slave is enough, when there is no master.
        """
        known = self._known.get(name)
        if known is None:
            raise BrokerUnavailable(f"no name server knows a broker {shown(name)}")
        master = known.data.master
        if master is not None and not (reading and self._connections.trouble(master)):
            return master
        slaves = [known.data.addresses[number] for number in sorted(known.data.addresses) if number]
        if reading and slaves:
            well = [slave for slave in slaves if not self._connections.trouble(slave)]
            return (well or slaves)[0]
        if master is None:
            raise BrokerUnavailable(f"broker {shown(name)} has no master now")
        return master

    def suspect(self, name: str) -> None:
        """The broker did not do what it should: it is asked soon where it is now."""
        if name not in self._known or self._stopped:
            return
        now = self._clock.monotonic()
        fresh = name not in self._suspects
        self._suspects[name] = now
        if fresh:
            self._arm()

    def refused(self, name: str, address: str) -> None:
        """The broker refused as no master: the next one that is listed replaces it."""
        known = self._known.get(name)
        if known is not None and known.data.master == address:
            known.refused = True
        self.suspect(name)

    def _lost(self, address: str, _: int) -> None:
        name = self._names.get(address)
        if name is not None:
            self.suspect(name)

    def _opened(self, address: str, _: int) -> None:
        name = self._names.get(address)
        if name is not None and name in self._suspects:
            known = self._known.get(name)
            if known is not None and known.data.master == address:
                del self._suspects[name]

    def _reached(self, data: BrokerData) -> bool:
        return any(self._connections.is_open(address) for address in data.addresses.values())

    def _stays(self, known: _Known, data: BrokerData, *, acting: bool) -> bool:
        """Whether the master that is known is asked on, though it is not told.

        `acting`: a slave is told as the one who stands in for it. A master that is told as a slave now, or
        beside another master, is none any more.
        """
        master = known.data.master
        if master is None or known.acting or known.refused or master in data.addresses.values():
            return False
        return (acting or data.master is None) and self._connections.answers(master)

    @staticmethod
    def _hold(known: _Known, now: float) -> None:
        known.told_at, known.held = now, True

    def _add(self, name: str, known: _Known) -> None:
        before = self._known.get(name)
        if before is None and len(self._known) >= MOST_BROKERS:
            return
        self._known[name] = known
        # One that is listed again was stopped in order, and has forgotten all clients.
        if before is None or not before.named or before.data.addresses != known.data.addresses:
            self.changed_at = self._clock.monotonic()
            self._names = {
                address: owner
                for owner, each in self._known.items()
                for address in each.data.addresses.values()
            }

    def _arm(self) -> None:
        """Ask again in good time: soon while a broker is suspected."""
        if self._again is not None:
            self._again.cancel()
        if self._stopped:
            return
        now = self._clock.monotonic()
        self._suspects = {suspect: at for suspect, at in self._suspects.items() if now - at < _SUSPECTED_S}
        interval = _HURRY_S if self._suspects else self._settings.route_refresh_s
        self._again = self._clock.call_later(max(self._asked_at + interval - now, 0.0), self._ring)

    def _ring(self) -> None:
        self._again = None
        if self._asking is None and not self._stopped:
            self._asking = asyncio.get_running_loop().create_task(self._ask())
            self._asking.add_done_callback(self._asked)

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking = None
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self.failures += 1
                if not isinstance(error, GatewayError):
                    _log.error("the brokers of the cluster cannot be told", exc_info=error)
        self._arm()

    async def _ask(self) -> None:
        try:
            answer = await self._servers.ask(
                RequestCode.GET_BROKER_CLUSTER_INFO, {}, timeout_s=self._settings.request_timeout_s
            )
        finally:
            # Also when it failed: it is not asked in a circle.
            self._asked_at = self._clock.monotonic()
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerUnavailable(
                f"the name server does not tell its brokers: {shown(answer.remark)} (code {answer.code})"
            )
        try:
            brokers = ClusterInfo.decode(answer.body).brokers
        except PeerWireError as error:
            raise BrokerUnavailable(f"the name server's list of brokers cannot be read: {error}") from None
        acting = await self._acting(
            [broker for broker in brokers.values() if broker.acting_master and not broker.master]
        )
        self._take({**brokers, **acting}, set(acting))

    async def _acting(self, brokers: Sequence[BrokerData]) -> dict[str, BrokerData]:
        """Slaves that act for lost masters, from the routes of topics named like brokers (6.2)."""
        acting: dict[str, BrokerData] = {}
        for broker in brokers[:_MOST_ACTING]:
            fields = {"topic": broker.name, "acceptStandardJsonOnly": "true"}
            try:
                answer = await self._servers.ask(
                    RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, timeout_s=self._settings.request_timeout_s
                )
                if answer.code == ResponseCode.SUCCESS:
                    data = TopicRoute.decode(answer.body).broker(broker.name)
                    if data is not None and data.master is not None:
                        acting[broker.name] = data
            except (GatewayError, PeerWireError):
                continue
        return acting

    def _take(self, brokers: dict[str, BrokerData], acting: set[str]) -> None:
        now = self._clock.monotonic()
        for name, data in brokers.items():
            before = self._known.get(name)
            if before is not None and self._stays(before, data, acting=name in acting):
                self._hold(before, now)
                before.named = True
            else:
                self._add(name, _Known(data, now, True, name in acting))
        for name, known in list(self._known.items()):
            if name in brokers:
                continue
            known.named = False
            if now - known.told_at > _UNTOLD_S and not self._reached(known.data):
                del self._known[name]
                self._suspects.pop(name, None)
                self.changed_at = now
