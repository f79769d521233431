"""What every part of the remote broker is given: routes, connections, and requests to the cluster.

Requests go to every master, to any broker, or to the broker of a queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from brokers.remote.access.broker_client import BrokerClient
from brokers.remote.access.long_polls import LongPolls
from brokers.remote.access.queries import NO_SUCCESS, object_in, of_each, worst
from brokers.remote.cluster.name_servers import NameServers
from brokers.remote.cluster.queues import Place, place_of
from brokers.remote.cluster.routes import Routes
from brokers.remote.rpc.connection_pool import ConnectionPool
from brokers.remote.settings import RemoteSettings
from popgate.answers import error_of
from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import BadRequest, BrokerTimeout, BrokerUnavailable
from popgate.wire.bodies.routes import MOST_QUEUES, TopicRoute
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.json_syntax.parts import number

Read = TypeVar("Read")

_MOVED = (ResponseCode.NOT_LEADER_FOR_QUEUE, ResponseCode.TOPIC_NOT_EXIST)
_NOT_TOLD = (
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    ResponseCode.NO_PERMISSION,
)
_READ_TRIES = 3
_LEAST_TIME_S = 0.05
_MOST_PLACES = 16_384
_OF_LONG_POLLS = 0.75
"""Of the requests that may be under way to a broker."""


class ClusterAccess:
    """The cluster as all parts share it.

    `client` sends a request to a broker by name; the methods add a route that is looked up first, and
    second tries where those are safe.
    """

    def __init__(self, settings: RemoteSettings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.connections = ConnectionPool(settings, clock)
        self.routes = Routes(
            NameServers(self.connections, settings, clock), self.connections, settings, clock
        )
        self.client = BrokerClient(self.connections, self.routes, settings, clock)
        self.long_polls = LongPolls(int(settings.max_in_flight * _OF_LONG_POLLS))
        self._places: dict[tuple[str, str, int], tuple[TopicRoute, Place]] = {}
        """Of queues that were read from lately, and the route that says so."""

    def __repr__(self) -> str:
        return f"{self.routes!r} {self.connections!r}"

    async def start(self) -> None:
        """Raises BrokerUnavailable with a sentence for the operator."""
        await self.routes.start()

    async def stop(self) -> None:
        await self.routes.stop()
        await self.connections.close()

    def figures(self) -> dict[str, float]:
        return {**self.connections.figures(), **self.routes.figures()}

    async def place(self, topic: str, broker: str, queue_id: int) -> Place:
        """Raises TopicNotFound, BadRequest (no such queue, also when it is asked anew), BrokerUnavailable."""
        route = self.routes.kept(topic)
        if route is None:
            route = await self.routes.of(topic)
        key = topic, broker, queue_id
        known = self._places.get(key)
        if known is not None and known[0] is route:
            return known[1]
        try:
            place = place_of(topic, route, broker, queue_id)
        except BadRequest:
            pass
        else:
            # Of a static topic any name will do, and whoever asks chooses how long it is.
            if place.broker == broker:
                if len(self._places) >= _MOST_PLACES:
                    self._places.clear()
                self._places[key] = route, place
            return place
        return place_of(topic, await self.routes.now(topic), broker, queue_id)

    async def ask_queue(
        self,
        context: Context | None,
        place: Place,
        code: RequestCode,
        fields: Mapping[str, str],
        *,
        reading: bool = False,
        timeout_s: float | None = None,
        also: Iterable[int] = NO_SUCCESS,
    ) -> Command:
        """The response of the broker that has the queue, with SUCCESS or a code in `also`; else raises.

        If a broker answers that it does not have the queue, the route is requested again, once. Reads
        go to a slave when the master cannot be reached.
        """
        asked = await self._ask_broker_of(context, place, code, fields, reading=reading, timeout_s=timeout_s)
        if asked.code in _MOVED:
            route = await self.routes.now(place.topic)
            place = place_of(place.topic, route, place.broker, place.queue_id)
            asked = await self._ask_broker_of(
                context, place, code, fields, reading=reading, timeout_s=timeout_s
            )
        if asked.code != ResponseCode.SUCCESS and asked.code not in also:
            raise error_of(asked, broker=place.broker, topic=place.topic)
        return asked

    async def _ask_broker_of(
        self,
        context: Context | None,
        place: Place,
        code: RequestCode,
        fields: Mapping[str, str],
        *,
        reading: bool,
        timeout_s: float | None,
    ) -> Command:
        fields = {"topic": place.topic, "queueId": str(place.queue_id), **fields}
        if not reading:
            return await self.client.call(place.broker, code, fields, context=context, timeout_s=timeout_s)
        return await self.read_from(place.broker, code, fields, context=context, timeout_s=timeout_s)

    async def read_from(
        self,
        broker: str,
        code: RequestCode,
        fields: Mapping[str, str],
        *,
        context: Context | None = None,
        timeout_s: float | None = None,
    ) -> Command:
        """As `client.call`, of a slave when the master cannot be reached. Only for what changes nothing.

        All in the time of one request: a master that is silent leaves none for another.
        """
        until = self.clock.monotonic() + self.client.time_left(context, timeout_s)
        for again in range(_READ_TRIES - 1, -1, -1):
            try:
                left = until - self.clock.monotonic()
                return await self.client.call(
                    broker, code, fields, context=context, timeout_s=left, reading=True
                )
            except (BrokerUnavailable, BrokerTimeout):
                # The first failure tells that the master is gone; where it is known another one is chosen.
                data = self.routes.clusters.get(broker)
                others = data is not None and len(data.addresses) > 1
                if not (again and others and until - self.clock.monotonic() > _LEAST_TIME_S):
                    raise
        raise BrokerUnavailable(f"broker {broker} cannot be reached")

    async def unlisted(self, topic: str, brokers: Iterable[str]) -> dict[str, int]:
        """The brokers that have a topic of which name servers do not know yet, and how many of its queues.

        A broker makes the retry topic of a group's pops when a message comes back, and tells name servers of
        it with its next registration only (`registerNameServerPeriod`, 30 s as shipped).
        Raises BrokerUnavailable, BrokerTimeout.
        """
        counts, failures = await of_each(brokers, lambda broker: self._queues_at(broker, topic))
        if failures:
            raise worst(failures)
        return {broker: count for broker, count in counts.items() if count}

    async def _queues_at(self, broker: str, topic: str) -> int:
        """0: it does not have the topic, or says nothing of it.

        An account needs rights on retry topics only where there are some, so without the right to ask this is
        as if there was none. Brokers before 5.0 cannot be asked, and have no such topics.
        """
        response = await self.read_from(broker, RequestCode.GET_TOPIC_CONFIG, {"topic": topic, "lo": "true"})
        if response.code in _NOT_TOLD:
            return 0
        if response.code != ResponseCode.SUCCESS:
            raise error_of(response, broker=broker, topic=topic)
        return object_in(response, broker, f"topic {topic}", _read_queues)

    def knows_best(self, broker: str) -> bool:
        """Whether it is the broker's master that answers: what a slave has not, the master may have."""
        master = self.routes.master(broker)
        return master is not None and self.connections.is_open(master)

    async def rest(self, seconds: float) -> None:
        """Let time pass, by the clock that everything here goes by."""
        await self.within(seconds, asyncio.get_running_loop().create_future())

    async def within(
        self, seconds: float, asking: Coroutine[Any, Any, Read] | asyncio.Future[Read]
    ) -> Read | None:
        """The result; None when it is not done within so many seconds: then it is cancelled."""
        task = asyncio.ensure_future(asking)
        over = False

        def end() -> None:
            nonlocal over
            over = True
            task.cancel()

        timer = self.clock.call_later(seconds, end)
        try:
            return await task
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if over and not (me is not None and me.cancelling()):
                return None
            raise
        finally:
            timer.cancel()

    async def masters(self) -> list[str]:
        """The brokers of the cluster that can be written to, by name. Raises BrokerUnavailable: none."""
        names = sorted(broker.name for broker in await self.routes.brokers() if broker.master is not None)
        if not names:
            raise BrokerUnavailable("no broker of the cluster has a master now")
        return names

    async def brokers(self) -> list[str]:
        """The brokers of the cluster that can be read from, by name. Raises BrokerUnavailable: none."""
        names = sorted(broker.name for broker in await self.routes.brokers() if broker.addresses)
        if not names:
            raise BrokerUnavailable("no broker of the cluster can be reached")
        return names


def _read_queues(body: Mapping[str, Any]) -> int:
    return number(body, "readQueueNums", least=0, most=MOST_QUEUES)
