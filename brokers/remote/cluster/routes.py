"""Routes of topics: requested once, cached, and refreshed in the background before they expire.

A known route is served until a newer one has arrived: no request waits for a name server while there is a
route. When all name servers are gone, the last routes stay in use, with their age in the metrics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from brokers.remote.cluster.brokers import KnownBrokers
from brokers.remote.cluster.name_servers import NameServers
from brokers.remote.cluster.single_flight import shared
from brokers.remote.rpc.connection_pool import ConnectionPool
from brokers.remote.settings import RemoteSettings
from popgate.answers import error_of
from popgate.clock import Clock, Timer
from popgate.errors import BrokerUnavailable, GatewayError, PeerWireError, TopicNotFound, shown
from popgate.naming import could_be_a_name
from popgate.wire.bodies.routes import BrokerData, TopicRoute
from popgate.wire.frames.codes import RequestCode, ResponseCode

_log = logging.getLogger(__name__)

_MOST_MISSING = 4_096
_MOST_REFRESHES = 32
"""Routes that are asked for in the background at a time."""
_AFTER_FAILURE_S = 2.0
_SWEEP_S = 30.0


@dataclass(slots=True)
class _Kept:
    """`told_at`: when a name server said it; `asked_at`: when it was asked for, in vain or not;
    `due`: when it is asked for again; `doubted`: before it is used."""

    route: TopicRoute
    told_at: float
    asked_at: float
    used_at: float
    due: float
    doubted: bool = False


class Routes:
    """Where topics and brokers are."""

    def __init__(
        self, servers: NameServers, links: ConnectionPool, settings: RemoteSettings, clock: Clock
    ) -> None:
        self.servers = servers
        self.clusters = KnownBrokers(servers, links, settings, clock)
        self._settings = settings
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._missing: dict[str, float] = {}
        """Topics that there are not: until when that is believed."""
        self._asking: dict[str, asyncio.Task[TopicRoute]] = {}
        self._sweeper: Timer | None = None
        self._stopped = False
        self._failures = 0

    def __repr__(self) -> str:
        return f"<Routes {len(self._kept)} topics, {self.servers!r}>"

    async def start(self) -> None:
        """Raises BrokerUnavailable with a sentence for the operator."""
        await self.servers.start()
        await self.clusters.start()
        self._sweeper = self._clock.call_later(_SWEEP_S, self._sweep)

    async def stop(self) -> None:
        self._stopped = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)
        await self.clusters.stop()
        await self.servers.stop()

    async def of(self, topic: str) -> TopicRoute:
        """The route as known; its brokers all have addresses.

        Raises TopicNotFound, also for what can be no topic; BrokerUnavailable.
        """
        route = self.kept(topic)
        if route is not None:
            return route
        if topic not in self._kept:
            if not could_be_a_name(topic):
                raise TopicNotFound(shown(topic))
            now = self._clock.monotonic()
            if now < self._missing.get(topic, now):
                raise TopicNotFound(topic)
        return await self.now(topic)

    def kept(self, topic: str) -> TopicRoute | None:
        """What `of` returns, if it is known and not in doubt: most requests need not wait."""
        kept = self._kept.get(topic)
        if kept is None or kept.doubted:
            return None
        now = kept.used_at = self._clock.monotonic()
        if now >= kept.due or kept.asked_at < self.clusters.changed_at:
            self._refresh(topic, kept, now)
        return kept.route

    async def now(self, topic: str) -> TopicRoute:
        """The current route, or the last known one if no name server can be reached. Raises as `of`."""
        try:
            return await shared(self._ask(topic))
        except TopicNotFound:
            raise
        except GatewayError:
            kept = self._kept.get(topic)
            if kept is None:
                raise
            now = self._clock.monotonic()
            kept.used_at, kept.doubted, kept.due = now, False, now + _AFTER_FAILURE_S
            return kept.route

    async def newer(self, topic: str, route: TopicRoute) -> TopicRoute:
        """The route, after `route` did not have what a client names. Raises as `of`.

        Name servers are not asked again within a short time, nor are those that do not answer: a client may
        name what it likes.
        """
        kept = self._kept.get(topic)
        if topic in self._asking or (
            kept is not None and self._clock.monotonic() - kept.asked_at >= self._settings.missing_route_s
        ):
            return await self.now(topic)
        return self.kept(topic) or route

    def forget(self, topic: str) -> None:
        """What is known of the topic is in doubt: it is asked for before it is used again."""
        self._missing.pop(topic, None)
        kept = self._kept.get(topic)
        if kept is not None:
            kept.doubted = True
        # Who asks now must not be answered by what was asked before.
        self._asking.pop(topic, None)

    async def brokers(self) -> Sequence[BrokerData]:
        """All brokers of all clusters that are there. Raises BrokerUnavailable."""
        return await self.clusters.brokers()

    def master(self, broker: str) -> str | None:
        """The address of a broker's master, or of the slave that acts for it; None when there is none."""
        data = self.clusters.get(broker)
        return None if data is None else data.master

    def is_acting(self, broker: str) -> bool:
        """Whether the broker's master is gone and a slave acts for it."""
        return self.clusters.is_acting(broker)

    def age(self, topic: str) -> float | None:
        """Seconds since a name server returned the route of this topic; None: it is not known."""
        kept = self._kept.get(topic)
        return None if kept is None else self._clock.monotonic() - kept.told_at

    def figures(self) -> dict[str, float]:
        now = self._clock.monotonic()
        oldest = min((kept.told_at for kept in self._kept.values()), default=now)
        age = self.servers.age()
        return {
            "routes": len(self._kept),
            "oldest_route_s": now - oldest,
            "name_servers": len(self.servers.addresses),
            "name_servers_silent_s": 0.0 if age is None else age,
            "route_failures_total": self._failures + self.clusters.failures,
            "brokers_known": len(self.clusters),
        }

    def _refresh(self, topic: str, kept: _Kept, now: float) -> None:
        if len(self._asking) < _MOST_REFRESHES and not self._stopped:
            kept.asked_at, kept.due = now, now + self._settings.route_refresh_s
            self._ask(topic)

    def _ask(self, topic: str) -> asyncio.Task[TopicRoute]:
        """Ask, or join who does."""
        task = self._asking.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch(topic))
            self._asking[topic] = task
            task.add_done_callback(lambda done: self._asked(topic, done))
        return task

    def _asked(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        if self._asking.get(topic) is not task:
            if not task.cancelled():
                task.exception()
            return
        del self._asking[topic]
        if task.cancelled():
            return
        error = task.exception()
        now = self._clock.monotonic()
        if error is None:
            self._keep(topic, task.result(), now)
        elif isinstance(error, TopicNotFound):
            self._kept.pop(topic, None)
            if len(self._missing) >= _MOST_MISSING:
                self._missing = {missing: until for missing, until in self._missing.items() if until > now}
            if len(self._missing) < _MOST_MISSING:
                self._missing[topic] = now + self._settings.missing_route_s
        else:
            self._failures += 1
            kept = self._kept.get(topic)
            if kept is not None:
                kept.asked_at, kept.due = now, now + _AFTER_FAILURE_S
            if not isinstance(error, GatewayError):
                _log.error("the route of %s cannot be told", topic, exc_info=error)

    def _keep(self, topic: str, route: TopicRoute, now: float) -> None:
        kept = self._kept.get(topic)
        used_at = now if kept is None else kept.used_at
        if kept is None and len(self._kept) >= self._settings.max_routes:
            del self._kept[next(iter(self._kept))]
        self._missing.pop(topic, None)
        self._kept[topic] = _Kept(route, now, now, used_at, now + self._settings.route_refresh_s)

    async def _fetch(self, topic: str) -> TopicRoute:
        settings = self._settings
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        if settings.zone and settings.zone_only:
            fields |= {"__ZONE_NAME": settings.zone, "__ZONE_MODE": "true"}
        answer = await self.servers.ask(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, timeout_s=settings.request_timeout_s
        )
        kept = self._kept.get(topic)
        before = TopicRoute() if kept is None else kept.route
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            left = await self._remembered(before, TopicRoute())
            if not left.queues:
                raise TopicNotFound(topic)
            return left
        if answer.code != ResponseCode.SUCCESS:
            # It is there and cannot tell: as if it were not there.
            raise BrokerUnavailable(error_of(answer, broker="(name server)").sentence)
        try:
            answered = TopicRoute.decode(answer.body)
        except PeerWireError as error:
            raise BrokerUnavailable(f"the route of {shown(topic)} cannot be read: {error}") from None
        route = _usable(answered)
        self.clusters.learn(route.brokers)
        route = await self._remembered(before, self._with_masters(before, route))
        if not route.queues:
            raise BrokerUnavailable(f"topic {shown(topic)} has no broker now")
        return route

    def _with_masters(self, before: TopicRoute, route: TopicRoute) -> TopicRoute:
        """The new route, with the previous data of brokers whose unlisted masters respond.

        Where a slave acts for the master nothing can be written, so its queues are not writable.
        """
        held = {broker.name for broker in route.brokers if self.clusters.is_held(broker.name)}
        if not held:
            return route
        queues = {data.broker: data for data in before.queues if data.broker in held}
        brokers = {name: self.clusters.get(name) for name in held}
        return replace(
            route,
            queues=tuple(queues.get(data.broker, data) for data in route.queues),
            brokers=tuple(brokers.get(broker.name) or broker for broker in route.brokers),
        )

    async def _remembered(self, before: TopicRoute, route: TopicRoute) -> TopicRoute:
        """The new route, with previous brokers that the name servers forgot and that are reachable.

        A name server that does not know a broker knows none of its topics (6.2).
        """
        named = {broker.name for broker in route.brokers}
        gone = {broker.name for broker in before.brokers if broker.name not in named}
        if not gone:
            return route
        try:
            await self.clusters.refresh()
        except BrokerUnavailable:
            return route
        kept = {name for name in gone if self.clusters.is_forgotten(name)}
        if not kept:
            return route
        return replace(
            route,
            queues=route.queues + tuple(data for data in before.queues if data.broker in kept),
            brokers=route.brokers + tuple(broker for broker in before.brokers if broker.name in kept),
            mappings={**{n: m for n, m in before.mappings.items() if n in kept}, **route.mappings},
        )

    def _sweep(self) -> None:
        """Remove unused routes; all stay while no name server can return them again."""
        now = self._clock.monotonic()
        self._missing = {topic: until for topic, until in self._missing.items() if until > now}
        age = self.servers.age()
        if age is not None and age < 2 * self._settings.route_refresh_s:
            oldest = now - self._settings.route_expiry_s
            self._kept = {topic: kept for topic, kept in self._kept.items() if kept.used_at >= oldest}
        self._sweeper = self._clock.call_later(_SWEEP_S, self._sweep)


def _usable(route: TopicRoute) -> TopicRoute:
    """The route without brokers that have no address, and without queues of unlisted brokers."""
    brokers = tuple(broker for broker in route.brokers if broker.addresses)
    names = {broker.name for broker in brokers}
    queues = tuple(data for data in route.queues if data.broker in names)
    if len(brokers) == len(route.brokers) and len(queues) == len(route.queues):
        return route
    return replace(route, brokers=brokers, queues=queues)
