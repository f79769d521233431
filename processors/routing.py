"""Routes of topics and settings of groups; created on first use when that is allowed.

Both are cached for a moment, so that a message costs no extra request. Changes through this
replica are visible at once, changes elsewhere within `_FRESH_S`. A broker whose look-ups are requests to a
cluster has a cache of its own, which serves an older value while it fetches a newer one; here one is kept for
every broker, also for one in another process, at the price of a look into a dict. `Context.group` hands the
settings on, so that the broker does not look the group up a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from brokers.port import Broker
from popgate.clock import Clock
from popgate.errors import (
    AlreadyExists,
    BadRequest,
    Fault,
    Forbidden,
    GatewayError,
    GroupNotFound,
    MessageTypeMismatch,
    TooManyRequests,
    TopicNotFound,
    shown,
)
from popgate.lite import takes_lite_topics
from popgate.model import GroupConfig, Message, MessageType, Queue, Route, TopicConfig
from popgate.naming import MEMBER_PREFIX, RETRY_PREFIX, TOOLS_GROUP, is_derived_topic, is_system_topic
from processors.limits import Limits
from processors.observer import Observer
from processors.requests import Assignments


@dataclass(slots=True, frozen=True)
class Routed:
    """A route, and what of it everybody asks for. Queues are sorted as RocketMQ sorts them."""

    route: Route
    writable: tuple[Queue, ...]
    readable: tuple[Queue, ...]


def routed(route: Route) -> Routed:
    return Routed(route, _sorted(route.writable), _sorted(route.readable))


def _sorted(queues: Sequence[Queue]) -> tuple[Queue, ...]:
    return tuple(sorted(queues, key=lambda queue: (queue.broker, queue.queue_id)))


Kept = TypeVar("Kept", Routed, GroupConfig)

_FRESH_S: Final = 1.0
_MOST: Final = 16_384


def check_type(kind: MessageType, route: Route) -> None:
    """Raises MessageTypeMismatch. Topics without declared types, and those made for groups, take all."""
    if route.message_types and kind not in route.message_types and not is_derived_topic(route.topic):
        accepts = " and ".join(accepted.value for accepted in route.message_types)
        raise MessageTypeMismatch(route.topic, accepts, kind.value)


def place(
    messages: Sequence[Message],
    to: Routed,
    pick: Callable[[Message, Sequence[Queue], float], Queue] | None,
    now: float,
    *,
    check_types: bool,
) -> None:
    """Assign every message a queue. Without `pick` the broker chooses, for messages that name none.

    Raises Forbidden when the topic has no writable queue, BadRequest when a message names a queue
    that is not writable or does not exist, MessageTypeMismatch.
    """
    route, queues = to.route, to.writable
    if not queues and pick is not None:
        raise Forbidden(f"topic {route.topic} has no writable queue", "no writable queue")
    check_types = check_types and bool(route.message_types)
    shared = None
    checked = None
    for message in messages:
        if check_types and message.type is not checked:
            check_type(message.type, route)
            checked = message.type
        if pick is None:
            if message.queue_id >= 0:
                check_queue(message.broker, message.queue_id, route.topic, queues)
            continue
        if message.priority is not None:
            queue = _queue_of_priority(message.priority, pick(message, queues, now), queues)
            message.broker, message.queue_id = queue.broker, queue.queue_id
            continue
        if message.queue_id >= 0:
            check_queue(message.broker, message.queue_id, route.topic, queues)
            continue
        if message.message_group:
            queue = pick(message, queues, now)
        else:
            # The rest of a batch stays together: one queue, one write.
            queue = shared = shared or pick(message, queues, now)
        message.broker, message.queue_id = queue.broker, queue.queue_id


def _queue_of_priority(priority: int, picked: Queue, queues: Sequence[Queue]) -> Queue:
    """A priority is a queue of the topic: those above the last queue count as the highest.

    Pops go through the queues from the highest down. Source: RocketMQ 5.4, where the same is so.
    """
    there = [queue for queue in queues if queue.broker == picked.broker]
    return there[min(priority, len(there) - 1)]


def check_queue(broker: str, queue_id: int, topic: str, queues: Sequence[Queue]) -> None:
    """Raises BadRequest for a queue that is not among these, Forbidden where there is none at all.

    An empty `broker` is any.
    """
    if not queues:
        raise Forbidden(f"topic {topic} has no writable queue", "no writable queue")
    for queue in queues:
        if queue.queue_id == queue_id and broker in ("", queue.broker):
            return
    where = f" at broker {shown(broker)}" if broker else ""
    raise BadRequest(f"topic {topic} has no writable queue {queue_id}{where}")


class Routing:
    """Routes and group settings of one broker, with a bounded memory."""

    def __init__(self, broker: Broker, clock: Clock, limits: Limits, observer: Observer) -> None:
        self._broker = broker
        self._clock = clock
        self._limits = limits
        self._observer = observer
        self._routes: dict[str, tuple[float, Routed]] = {}
        self._groups: dict[str, tuple[float, GroupConfig]] = {}

    def __repr__(self) -> str:
        return f"<Routing topics {len(self._routes)} groups {len(self._groups)}>"

    async def for_tombstones(self, topic: str, limits: Limits, refusal: GatewayError) -> Limits:
        """The limits for messages to a topic that takes some without a body, when they were refused for that.

        Else raises the refusal. A topic that is not there takes none, and is not made. One for retries takes
        what its group has been given.
        """
        if refusal.fault is Fault.BODY_EMPTY:
            try:
                tombstones = topic.startswith(RETRY_PREFIX) or (await self._broker.route(topic)).tombstones
            except GatewayError:
                raise refusal from None
            if tombstones:
                return replace(limits, refuse_empty_bodies=False)
        raise refusal

    async def route(self, topic: str, *, system: bool = False) -> Routed:
        """The topic's route; an unknown topic is created when the limits allow it. Raises TopicNotFound.

        A system topic is created only with `system`.
        """
        kept = self._routes.get(topic)
        if kept is not None and self._clock.monotonic() < kept[0]:
            return kept[1]
        route = None
        try:
            route = await self._broker.route(topic)
        except TopicNotFound:
            self._routes.pop(topic, None)
            if not self._limits.auto_create_topics or is_derived_topic(topic):
                raise
            if is_system_topic(topic) and not system:
                raise
        if route is None:
            await self._create_topic(topic)
            route = await self._broker.route(topic)
        kept_now = routed(route)
        _keep(self._routes, topic, kept_now, self._clock.monotonic() + _FRESH_S)
        return kept_now

    async def group(self, name: str) -> GroupConfig:
        """The group's settings; an unknown group is made when the limits allow it. Raises GroupNotFound.

        That of tools is made in any case: clients take it for granted, and RocketMQ's brokers all have it.
        """
        kept = self._groups.get(name)
        if kept is not None and self._clock.monotonic() < kept[0]:
            return kept[1]
        config = None
        try:
            config = await self._broker.group(name)
        except GroupNotFound:
            self._groups.pop(name, None)
            if not self._limits.auto_create_groups and name != TOOLS_GROUP:
                raise
        if config is None:
            await self._create_group(name)
            config = await self._broker.group(name)
        _keep(self._groups, name, config, self._clock.monotonic() + _FRESH_S)
        return config

    def kept_route(self, topic: str, now: float) -> Routed | None:
        """What `route` returns, if it is kept and fresh at `now`: most requests need not wait."""
        kept = self._routes.get(topic)
        return kept[1] if kept is not None and now < kept[0] else None

    def kept_group(self, name: str, now: float) -> GroupConfig | None:
        """What `group` returns, if it is kept and fresh at `now`."""
        kept = self._groups.get(name)
        return kept[1] if kept is not None and now < kept[0] else None

    async def known(self, name: str) -> GroupConfig | None:
        """The group's settings; None when there is no such group, and none is made."""
        kept = self._groups.get(name)
        if kept is not None and self._clock.monotonic() < kept[0]:
            return kept[1]
        try:
            config = await self._broker.group(name)
        except GroupNotFound:
            return None
        _keep(self._groups, name, config, self._clock.monotonic() + _FRESH_S)
        return config

    def assign(self, to: Routed, group: GroupConfig) -> Assignments:
        """What a consumer may receive from. Raises Forbidden when no queue is readable.

        Source: protocol facts 1.4, QueryAssignment.
        """
        route, readable = to.route, to.readable
        if not readable:
            raise Forbidden(f"topic {route.topic} has no readable queue", "no readable queue")
        if group.ordered and not takes_lite_topics(group, route.topic):
            return Assignments(route, group, readable)
        brokers = {queue.broker: Queue(queue.broker, -1, queue.permission) for queue in readable}
        return Assignments(route, group, tuple(brokers.values()))

    def __len__(self) -> int:
        """How many topics and groups are kept."""
        return len(self._routes) + len(self._groups)

    def expire(self, now: float) -> None:
        """Remove expired entries. `now` is in loop seconds."""
        for table in (self._routes, self._groups):
            for name in [name for name, (until, _) in table.items() if until <= now]:
                del table[name]

    def told(self, route: Route) -> None:
        """A client is told this route: what it does by that is not judged by another one."""
        kept = self._routes.get(route.topic)
        if kept is not None and kept[1].route != route:
            self.forget_topic(route.topic)

    def forget_topic(self, topic: str) -> None:
        self._routes.pop(topic, None)

    def forget_group(self, group: str) -> None:
        self._groups.pop(group, None)

    async def _create_topic(self, name: str) -> None:
        most = self._limits.max_auto_topics
        if len(await self._broker.topics()) >= most:
            raise TooManyRequests(
                f"topic {name} is not made on first use: there are {most} topics, which is the limit", 60.0
            )
        queues = self._limits.new_topic_queues
        try:
            await self._broker.create_topic(TopicConfig(name, read_queues=queues, write_queues=queues))
        except AlreadyExists:
            return
        self._observer.created("topic", name)

    async def _create_group(self, name: str) -> None:
        most = self._limits.max_auto_groups
        # Clients of a broadcast group have one each, and a limit of their own.
        named = [
            existing
            for existing in await self._broker.groups()
            if not existing.name.startswith(MEMBER_PREFIX)
        ]
        if len(named) >= most:
            raise TooManyRequests(
                f"consumer group {name} is not made on first use: there are {most} groups,"
                " which is the limit",
                60.0,
            )
        try:
            await self._broker.create_group(replace(self._limits.new_group, name=name))
        except AlreadyExists:
            return
        self._observer.created("group", name)

    async def settings(self, name: str, *, make: bool = True) -> GroupConfig:
        """Like `group`, but of a group that is not there and cannot be made: the defaults."""
        try:
            return await (self.group(name) if make else self._broker.group(name))
        except (GroupNotFound, TooManyRequests):
            return replace(self._limits.new_group, name=name)


def _keep(table: dict[str, tuple[float, Kept]], name: str, value: Kept, until: float) -> None:
    if len(table) >= _MOST:
        # Whatever is asked for again is one question away.
        table.clear()
    table[name] = (until, value)
