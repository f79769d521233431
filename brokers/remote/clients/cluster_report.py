"""The state of the cluster as this gateway sees it: every name server and every broker process, asked once.

A broker's counters and settings come from requests that RocketMQ's tools make (28 and 26). Its clock
is derived from two of those figures: when it started, and for how many whole seconds it has been running.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from brokers.capabilities import BrokerPlace, TellsAbsence, TellsBrokers, TellsCluster
from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.clients.broker_absence import BrokerAbsence
from brokers.remote.clients.registration import ClientRegistration
from popgate.answers import error_of
from popgate.cluster import BrokerView, ClusterView, NameServerView
from popgate.errors import GatewayError, PeerWireError, shown
from popgate.wire.bodies.routes import BrokerData, ClusterInfo
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.json_syntax.parts import load_object, table

_MOST_ASKED = 256
"""Processes of brokers in one look."""
_AT_ONCE = 16
_LONGEST_VALUE = 200
_V5_0_0, _PER_RELEASE = 413, 2
SETTINGS = (
    "allAckInSyncStateSet",
    "authenticationEnabled",
    "authorizationEnabled",
    "autoCreateSubscriptionGroup",
    "autoCreateTopicEnable",
    "brokerPermission",
    "brokerRole",
    "enableControllerMode",
    "enablePropertyFilter",
    "enableRemoteEscape",
    "enableRetryTopicV2",
    "enableSlaveActingMaster",
    "fileReservedTime",
    "flushDiskType",
    "inSyncReplicas",
    "maxMessageSize",
    "popConsumerKVServiceEnable",
    "recallMessageEnable",
    "rejectTransactionMessage",
    "timerMaxDelaySec",
    "timerStopDequeue",
    "timerStopEnqueue",
    "timerWheelEnable",
    "transactionCheckInterval",
    "transactionCheckMax",
    "transactionTimeOut",
)
"""Those that say what clients can expect of a broker. No others are told: some are secret."""
FIGURES = (
    "commitLogDirCapacity",
    "commitLogDiskRatio",
    "consumeQueueDiskRatio",
    "dispatchBehindBytes",
    "earliestMessageTimeStamp",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "sendThreadPoolQueueSize",
    "timerCongestNum",
    "timerOffsetBehind",
    "timerReadBehind",
)
_running = re.compile(
    r"\[ ?([0-9]{1,6}) days?, ([0-9]{1,2}) hours?, ([0-9]{1,2}) minutes?, ([0-9]{1,2}) seconds? ?\]"
).fullmatch
_described = re.compile(r"V([0-9]{1,3})_([0-9]{1,3})_([0-9]{1,3})(_[A-Z_]{1,20})?").fullmatch


class ClusterReporter(TellsCluster, TellsBrokers, TellsAbsence):
    """`brokers.capabilities.TellsCluster`, `TellsBrokers` and `TellsAbsence`."""

    def __init__(
        self,
        access: ClusterAccess,
        registration: ClientRegistration,
        unserved: Callable[[], Mapping[tuple[str, str], str]],
    ) -> None:
        """`unserved`: by group and broker, why that broker refuses a group which others serve."""
        self._connections = access.connections
        self._routes = access.routes
        self._settings = access.settings
        self._clock = access.clock
        self._unserved = unserved
        self._registration = registration
        self.absence = BrokerAbsence(
            self._connections,
            self._routes.clusters,
            self._clock,
            name=self._settings.name,
            answer_s=self._settings.request_timeout_s,
        )

    def start(self) -> None:
        self.absence.start()

    def stop(self) -> None:
        self.absence.stop()

    def figures(self) -> dict[str, float]:
        needed = self._settings.ready_needs_brokers and bool(self.absence.missing())
        return {"brokers_away_s": self.absence.away_s(), "needed_brokers_away": float(needed)}

    def missing(self) -> str:
        return self.absence.missing()

    async def known_brokers(self) -> Sequence[BrokerPlace]:
        return [
            BrokerPlace(broker.cluster, broker.name, tuple(sorted(broker.addresses)))
            for broker in await self._routes.brokers()
        ]

    async def cluster(self) -> ClusterView:
        servers = await asyncio.gather(
            *(self._name_server(address, first=not at) for at, address in enumerate(self._servers()))
        )
        known = sorted(await self._routes.brokers(), key=lambda broker: (broker.cluster, broker.name))
        processes = [(data, number) for data in known for number in sorted(data.addresses)]
        links = self._connections.open_links()
        gate = asyncio.Semaphore(_AT_ONCE)
        brokers = await asyncio.gather(
            *(self._broker(data, number, links, gate) for data, number in processes[:_MOST_ASKED])
        )
        beyond = max(len(processes) - _MOST_ASKED, 0)
        return ClusterView(
            tuple(servers), tuple(brokers), beyond, self._registration.registry.refusals, self._unserved()
        )

    # -- inside -------------------------------------------------------------------------------

    def _servers(self) -> Sequence[str]:
        """Servers with known addresses, then those whose names resolve to none."""
        return (*self._routes.servers.addresses, *self._routes.servers.nameless)

    async def _name_server(self, address: str, *, first: bool) -> NameServerView:
        why = self._routes.servers.nameless.get(address)
        if why is not None:
            return NameServerView(address, why)
        began = self._clock.monotonic()
        try:
            answer = await self._connections.call(
                address,
                RequestCode.GET_BROKER_CLUSTER_INFO,
                {},
                timeout_s=self._settings.request_timeout_s,
            )
            if answer.code != ResponseCode.SUCCESS:
                return NameServerView(address, error_of(answer, broker="(name server)").sentence)
            brokers = ClusterInfo.decode(answer.body).brokers
        except GatewayError as error:
            return NameServerView(address, error.sentence)
        except PeerWireError as error:
            return NameServerView(address, f"its list of brokers cannot be read: {error}")
        took_ms = (self._clock.monotonic() - began) * 1000
        masters = {name: data.master or "" for name, data in sorted(brokers.items())}
        return NameServerView(address, "", took_ms, first, masters)

    async def _broker(
        self, data: BrokerData, number: int, links: Mapping[str, int], gate: asyncio.Semaphore
    ) -> BrokerView:
        address = data.addresses[number]
        role = "slave" if number else "acting master" if self._routes.is_acting(data.name) else "master"
        view: dict[str, Any] = {
            "cluster": data.cluster,
            "name": data.name,
            "number": number,
            "address": address,
            "role": role,
            "links": links.get(address, 0),
        }
        async with gate:
            began = self._clock.monotonic()
            try:
                answer = await self._ask(address, RequestCode.GET_BROKER_CONFIG)
            except GatewayError as error:
                return BrokerView(**view, trouble=error.sentence)
            view["answer_ms"] = (self._clock.monotonic() - began) * 1000
            if answer.code == ResponseCode.SUCCESS:
                view["settings"] = _settings(answer.body)
            else:
                view["settings_trouble"] = error_of(answer, broker=data.name).sentence
            try:
                view |= await self._counted(address, answer.version)
            except GatewayError:
                view["version"] = version_text("", answer.version)
        return BrokerView(**view)

    async def _counted(self, address: str, version: int) -> dict[str, Any]:
        """A broker's counters and its clock. With many topics the response takes seconds."""
        began = self._clock.monotonic()
        answer = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO, self._settings.slow_s)
        took_ms, now_ms = (self._clock.monotonic() - began) * 1000, self._clock.now_ms()
        figures = _runtime(answer)
        wall_ms = _wall_ms(figures)
        ahead = None
        if wall_ms is not None:
            # It counted its whole seconds somewhere between the question and the answer.
            ahead = (wall_ms - now_ms, wall_ms + 1000 - (now_ms - took_ms))
        return {
            "version": version_text(figures.get("brokerVersionDesc", ""), version),
            "figures": {name: figures[name] for name in FIGURES if name in figures},
            "clock_ahead_ms": ahead,
        }

    async def _ask(self, address: str, code: RequestCode, timeout_s: float | None = None) -> Command:
        limit_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        return await self._connections.call(address, code, {}, timeout_s=limit_s)


def version_text(description: str, number: int) -> str:
    """As people write it: "5.5.0". The broker's own word for it, else made of its number (5.3)."""
    match = _described(description)
    if match is not None:
        return ".".join(match.groups()[:3]) + (match[4] or "").replace("_", "-").lower()
    release = (number - _V5_0_0) // _PER_RELEASE + 500
    if not 300 <= release <= 999:
        return ""
    return f"{release // 100}.{release // 10 % 10}.{release % 10}"


def _runtime(answer: Command) -> dict[str, str]:
    """What a broker counts; nothing when it does not say, for it was heard of all the same."""
    if answer.code != ResponseCode.SUCCESS:
        return {}
    try:
        figures = table(load_object(answer.body, "what the broker counts"), "table")
    except PeerWireError:
        return {}
    return {str(key): _told(value) for key, value in figures.items() if isinstance(value, str)}


def _wall_ms(figures: Mapping[str, str]) -> int | None:
    """The broker's wall clock, less up to a second."""
    began, running = figures.get("bootTimestamp", ""), _running(figures.get("runtime", ""))
    if running is None or not (began.isascii() and began.isdigit() and len(began) < 16):
        return None
    days, hours, minutes, seconds = (int(part) for part in running.groups())
    return int(began) + (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000


def _settings(body: bytes) -> dict[str, str]:
    settings: dict[str, str] = {}
    for line in body.decode("utf-8", "replace").splitlines():
        name, equals, value = line.partition("=")
        if equals and name in SETTINGS:
            settings[name] = _told(value.strip())
    return settings


def _told(text: str) -> str:
    """As it is where it is ordinary, which all are that are looked at."""
    return text if text.isprintable() and len(text) <= _LONGEST_VALUE else shown(text, _LONGEST_VALUE)
