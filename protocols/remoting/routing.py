"""Answers as a name server: the routes of topics, which all lead to this door, and the brokers.

Every broker keeps its name and has this door's address, so that clients that name a broker reach
it through the gateway. Sources: protocol facts 5.8, 6.2 and 5.13; real-rocketmq.md, section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from brokers.capabilities import BrokerPlace
from popgate.context import Context
from popgate.errors import BadRequest, BrokerUnavailable, TopicNotFound, shown
from popgate.ids.queue_numbers import QueueNumbers
from popgate.model import Permission, Queue, Route
from popgate.naming import RETRY_PREFIX, check_group
from popgate.wire.bodies.routes import PERM_INHERIT, BrokerData, ClusterInfo, QueueData, TopicRoute
from popgate.wire.bodies.small_bodies import TopicList
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.hosts import NOWHERE, pack_host
from processors.limits import Limits
from protocols.remoting.codec.errors import Refused
from protocols.remoting.codec.fields import text
from protocols.remoting.codec.marks import Marks, Origin
from protocols.remoting.requests import DoorContext, Handler, Request

TEMPLATE_TOPIC: Final = "TBW102"
"""Clients ask for its route when a topic has none, and send to the brokers that it names."""
_TEMPLATES: Final = (TEMPLATE_TOPIC, "AUTO_CREATE_TOPIC_KEY")
"""The Java client 4.3.0 has another name for it."""
_TEMPLATE_QUEUES: Final = 8
"""Of RocketMQ's own; never more than a topic gets that is made on first use."""
_ALL: Final = int(Permission.READ_WRITE)
_LONGEST_NAME: Final = 255
_REPLIES: Final = "_REPLY_TOPIC"
"""Ends the topic that replies go to, which begins with the cluster's name. Source: protocol facts 7.6."""
_NO_ROUTE: Final = "No topic route info in name server for the topic: {}"


@dataclass(slots=True)
class _Known:
    """Cached brokers, and when the cache expires."""

    until: float
    brokers: Sequence[BrokerPlace]


_FRESH_S: Final = 1.0


class Brokers:
    """The brokers behind the gateway, asked for once a second at most."""

    def __init__(self, door_context: DoorContext) -> None:
        self._door_context = door_context
        self._numbering = door_context.processor.queue_numbering
        self._known: _Known | None = None
        self._numbered: Sequence[BrokerPlace] = ()
        """Those that were known when their numbers were asked for last."""
        self._numbers = QueueNumbers()
        self._marks: Marks | None = None

    async def shown(self, context: Context) -> Sequence[BrokerPlace]:
        """As `known`, for who wants to see them. Raises Forbidden, TooManyRequests, BrokerUnavailable."""
        with suppress(BrokerUnavailable):
            return await self._door_context.processor.metadata.brokers(context)
        return await self.known()

    async def known(self) -> Sequence[BrokerPlace]:
        """The last known brokers. Raises BrokerUnavailable: none were known yet.

        Whoever asks: a client that may send or read needs no permission to look at brokers besides.
        """
        known, now = self._known, self._door_context.clock.monotonic()
        if known is not None and now < known.until:
            return known.brokers
        try:
            brokers = await self._door_context.processor.metadata.known_brokers()
        except BrokerUnavailable:
            if known is None:
                raise
            brokers = known.brokers
        self._known = _Known(now + _FRESH_S, brokers)
        return brokers

    @property
    def have_marks(self) -> bool:
        """Whether there may be several brokers, so that places of their logs may have marks."""
        return self._numbering.is_kept

    async def origin(self, context: Context) -> Origin:
        """The place of messages as a client sees it. Raises BrokerUnavailable: no broker was known yet."""
        known = self._known
        if (
            known is not None
            and (known.brokers is self._numbered or not self.have_marks)
            and self._door_context.clock.monotonic() < known.until
        ):
            return Origin(self.door(context), self._latest_marks())  # what nearly all get need not wait
        return Origin(self.door(context), await self.marks(context))

    def origin_at(self, host: str) -> Origin:
        """As `origin`, at this address, by what is known now."""
        return Origin(host, self._latest_marks())

    async def marks(self, context: Context) -> Marks | None:
        """Those of the brokers; None where there can be one only. Raises as `origin`.

        Also before one broker: another may have messages for a client a moment before it is known here.
        """
        known = await self.known()
        if known is not self._numbered and self.have_marks:
            await self._numbering.refresh([broker.name for broker in known])
            self._numbered = known
            self._mark()
        return self._latest_marks()

    def _latest_marks(self) -> Marks | None:
        if self.have_marks and (self._marks is None or self._numbering.latest is not self._numbers):
            self._mark()
        return self._marks

    def _mark(self) -> None:
        self._numbers = self._numbering.latest
        names = {broker.name for broker in self._numbered}
        self._marks = Marks(self._numbers, names.pop() if len(names) == 1 else "")

    def door(self, context: Context) -> str:
        """This door as records and message ids name it: by an address."""
        address = self._door_context.address(context)
        # Neither has room for a name; then it is the end of the connection that the client dialled.
        return address if pack_host(address) != NOWHERE else context.local


class RouteHandler:
    """The name server's part of the door."""

    def __init__(self, door_context: DoorContext) -> None:
        self._door_context = door_context
        self._processor = door_context.processor
        self._brokers = Brokers(door_context)

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.topics,
            RequestCode.GET_KV_CONFIG: self.kv_config,
            RequestCode.DELETE_KV_CONFIG: self.forget_kv_config,
        }

    def drain(self) -> None:
        """Nothing waits here."""

    async def route(self, request: Request) -> Command:
        """Keys are quoted for every client: what reads unquoted ones reads these, too (facts 5.8)."""
        topic, context = text(request.fields, "topic"), request.context
        if len(topic) > _LONGEST_NAME:
            return request.refusal(ResponseCode.TOPIC_NOT_EXIST, _NO_ROUTE.format(shown(topic)))
        brokers = await self._brokers.known()
        # While there is one broker, so that it is the first, and its places stay as they are.
        await self._brokers.marks(context)
        try:
            queues = _queue_data(await self._processor.metadata.queues(context, topic))
        except TopicNotFound:
            queues = _made_up(topic, brokers, self._processor.limits)
        if not queues:
            return request.refusal(ResponseCode.TOPIC_NOT_EXIST, _NO_ROUTE.format(shown(topic)))
        address = self._door_context.address(context)
        named = {broker.name: broker for broker in brokers}
        data = [
            _broker_data(named.get(queue.broker) or BrokerPlace(_cluster_of(brokers), queue.broker), address)
            for queue in queues
        ]
        return request.answer(body=TopicRoute(tuple(queues), tuple(data)).encode())

    async def cluster(self, request: Request) -> Command:
        brokers = await self._brokers.shown(request.context)
        address = self._door_context.address(request.context)
        clusters: dict[str, tuple[str, ...]] = {}
        for broker in brokers:
            clusters[broker.cluster] = (*clusters.get(broker.cluster, ()), broker.name)
        data = {broker.name: _broker_data(broker, address) for broker in brokers}
        return request.answer(body=ClusterInfo(data, clusters).encode())

    async def topics(self, request: Request) -> Command:
        """All topics by name; like a name server, it includes the topics named after brokers and clusters."""
        brokers = await self._brokers.shown(request.context)
        pseudo = [
            TEMPLATE_TOPIC,
            *[broker.cluster for broker in brokers],
            *[broker.name for broker in brokers],
        ]
        names = [topic.name for topic in await self._processor.metadata.topics(request.context)]
        return request.answer(body=TopicList(tuple(dict.fromkeys((*names, *pseudo)))).encode())

    async def kv_config(self, request: Request) -> Command:
        """None is kept here. Clients ask for the order of topics in this way, and live without."""
        namespace, key = request.fields.get("namespace", ""), request.fields.get("key", "")
        return request.refusal(
            ResponseCode.QUERY_NOT_FOUND,
            f"No config item, Namespace: {shown(namespace)} Key: {shown(key)}",
        )

    async def forget_kv_config(self, request: Request) -> Command:
        """What is not there is deleted already; tools ask it with every topic that they delete."""
        return request.answer()


def broker_of(request: Request, route: Route | Sequence[Queue], *, field: str = "bname") -> str:
    """The broker whose queue a request means; `field` is "n" in sends of the short form.

    Without the field, which clients have from 4.9.5 on, it is the only one of the route. Raises
    Refused (VERSION_NOT_SUPPORTED) when there are several, BadRequest for what is no name.
    """
    named = request.fields.get(field)
    if named:
        if len(named) > _LONGEST_NAME:
            raise BadRequest(f"the field {field} is no name of a broker: {shown(named)}")
        return named
    brokers = {queue.broker for queue in (route.queues if isinstance(route, Route) else route)}
    if len(brokers) != 1:
        raise Refused(
            ResponseCode.VERSION_NOT_SUPPORTED,
            f"the request has no field {field}, and the topic has queues of {len(brokers)} brokers:"
            " clients from 4.9.5 on say which one they mean",
        )
    return brokers.pop()


def _queue_data(queues: Iterable[Queue]) -> list[QueueData]:
    """By broker, in the order of their names. Queues of one broker are numbered from 0 on.

    If none is readable, or none writable, the permission says so: tools take the number for the topic's.
    """
    counts: dict[str, list[int]] = {}
    for queue in queues:
        count = counts.setdefault(queue.broker, [0, 0, 0])
        if queue.permission & Permission.READ:
            count[0] = max(count[0], queue.queue_id + 1)
        if queue.permission & Permission.WRITE:
            count[1] = max(count[1], queue.queue_id + 1)
        count[2] |= int(queue.permission)
    return [
        QueueData(broker, reads or writes, writes or reads, permission)
        for broker, (reads, writes, permission) in sorted(counts.items())
    ]


def _made_up(topic: str, brokers: Sequence[BrokerPlace], limits: Limits) -> list[QueueData]:
    """Routes of topics that need not be there: none for all others.

    A consumer asks for that of its retry topic before the heartbeat that makes it, and once it was told
    none looks again half a minute later. Where topics are not made on first use the template is told all the
    same, but nothing may be written there: a producer that has sent nothing yet knows no other topic, and
    could be asked nothing if it knew no broker to tell of itself.
    """
    if topic in _TEMPLATES:
        queues = min(_TEMPLATE_QUEUES, limits.new_topic_queues)
        permission = _ALL | PERM_INHERIT if limits.auto_create_topics else 0
        return [QueueData(broker.name, queues, queues, permission) for broker in brokers]
    if topic.startswith(RETRY_PREFIX):
        try:
            check_group(topic[len(RETRY_PREFIX) :])
        except BadRequest:
            return []
        return [QueueData(broker.name, 1, 1, _ALL) for broker in brokers]
    return [
        QueueData(broker.name, 1, 1, _ALL)
        for broker in brokers
        if topic in (broker.cluster, broker.name, broker.cluster + _REPLIES)
    ]


def _broker_data(broker: BrokerPlace, address: str) -> BrokerData:
    """All its processes are here; there is a master, also when the name servers know none now."""
    return BrokerData(broker.cluster, broker.name, dict.fromkeys((0, *broker.numbers), address))


def _cluster_of(brokers: Sequence[BrokerPlace]) -> str:
    return brokers[0].cluster if brokers else ""
