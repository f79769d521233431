"""Lite topics: subscriptions of clients, and the groups that are bound to a topic for them.

Not every broker has them (`brokers.capabilities.LiteTopics`). Source: protocol facts 4.10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from brokers.capabilities import LiteTopics
from brokers.port import Broker
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    GatewayError,
    IllegalLiteTopic,
    MessageTypeMismatch,
    Unsupported,
    shown,
)
from popgate.kinds import Action
from popgate.lite import (
    LITE_BIND_TOPIC,
    LITE_CLIENT_QUOTA,
    LiteAction,
    LiteSync,
    LiteTopicState,
    takes_lite_topics,
)
from popgate.model import GroupConfig, MessageType
from popgate.naming import check_group, check_lite_topic, check_topic
from processors.clients.client_registry import ClientHandle, ClientRegistry
from processors.limits import Limits
from processors.observer import Observer, Watch
from processors.routing import Routing

MOST_LISTED = 1_000
"""Lite topics of one page."""
_MOST_VERSIONS = 64
"""Topics and groups of one client whose changes are counted."""
_NO_LIMIT = (1 << 31) - 1


def lite_quota(group: GroupConfig, limits: Limits) -> int:
    """To how many lite topics one client of the group may subscribe; the attribute's -1 is no limit."""
    quota = group.attributes.get(LITE_CLIENT_QUOTA, "")
    if quota == "-1":
        return _NO_LIMIT
    if quota.isascii() and quota.isdigit() and len(quota) < 10:
        return min(int(quota), _NO_LIMIT)
    return limits.max_lite_subscriptions_per_client


class LiteSubscriptions:
    """The part of the processor that is about lite topics."""

    def __init__(
        self,
        broker: Broker,
        routing: Routing,
        clients: ClientRegistry,
        limits: Limits,
        admit: Callable[..., None],
        observer: Observer,
    ) -> None:
        self._lites = broker.capability(LiteTopics)
        self._broker = broker
        self._routing = routing
        self._clients = clients
        self._limits = limits
        self._admit = admit
        self._watch = Watch(observer, "lite")
        self._versions: dict[str, dict[tuple[str, str], int]] = {}

    def __repr__(self) -> str:
        return f"<LiteSubscriptions {'on' if self._lites is not None else 'not on'} {self._broker.name}>"

    def start(self) -> None:
        if self._lites is not None:
            self._lites.on_lite_gone(self.gone)

    @property
    def available(self) -> bool:
        """Whether this kind of broker has lite topics."""
        return self._lites is not None

    @property
    def topics(self) -> LiteTopics:
        """Raises Unsupported: this kind of broker has no lite topics."""
        if self._lites is None:
            raise Unsupported(
                "a lite topic at this broker",
                "only the embedded one has them; in front of a cluster use topics",
            )
        return self._lites

    async def sync(self, context: Context, sync: LiteSync, version: int | None = None) -> None:
        """Change the subscriptions of a client; a removal is never refused because of the removed names.

        `version`: a client may number its changes, so that a late one does not undo
        a later one: it is refused (BadRequest). Kept here for `max_clients` at most.

        Invalid names in a complete set are ignored: no messages can be in them, and a client that has
        them could otherwise remove nothing. Raises IllegalTopic, IllegalGroup, IllegalLiteTopic,
        TopicNotFound, GroupNotFound, BadRequest (the group is bound to another topic),
        MessageTypeMismatch, LiteSubscriptionQuotaExceeded, LiteTopicQuotaExceeded, Unsupported.
        """
        with self._watch:
            topic, group = check_topic(sync.topic), check_group(sync.group)
            self._admit(context, Action.SUBSCRIBE, topic=topic, group=group)
            lites = self.topics
            if version is not None:
                self._check_version(context, topic, group, version)
            if sync.action in (LiteAction.REMOVE, LiteAction.CLEAR):
                await lites.subscribe_lite(context, sync)
                return
            names = self._checked(sync)
            config = await self._bound(topic, group)
            await lites.subscribe_lite(
                context, replace(sync, lite_topics=names, most=lite_quota(config, self._limits))
            )

    async def bind(self, context: Context, topic: str, group: str) -> None:
        """A lite consumer sent its settings: a group that is created on first use is bound to its topic.

        A reason against that is reported when the client subscribes.
        """
        if self._lites is not None:
            self._admit(context, Action.SUBSCRIBE, topic=check_topic(topic), group=check_group(group))
            try:
                await self._bound(topic, group)
            except GatewayError:
                return

    async def listed(self, context: Context, topic: str, after: str, limit: int) -> list[LiteTopicState]:
        """Lite topics of a topic by name, from behind `after` on. Raises TopicNotFound, Unsupported."""
        with self._watch:
            self._admit(context, Action.GET, topic=topic)
            return await self.topics.lite_topics(topic, after, min(max(limit, 1), MOST_LISTED))

    async def delete(self, context: Context, topic: str, lite_topic: str) -> None:
        """Raises NotFound, TopicNotFound, Unsupported."""
        with self._watch:
            self._admit(context, Action.DELETE, topic=topic)
            await self.topics.delete_lite_topic(topic, lite_topic)

    def subscriptions(self, client_key: str) -> int:
        """To how many lite topics a client subscribes."""
        return self._lites.lite_subscriptions(client_key) if self._lites is not None else 0

    def _check_version(self, context: Context, topic: str, group: str, version: int) -> None:
        """Raises BadRequest for a version below 0 or below one that was seen."""
        if version < 0:
            raise BadRequest(f"the version {version} of a lite subscription must not be negative")
        known = self._versions.setdefault(context.client_key, {})
        newest = known.get((topic, group), version)
        if version < newest:
            raise BadRequest(
                f"version {version} of the lite subscriptions of client {shown(context.client_id)}"
                f" is older than {newest}, which was sent before"
            )
        if len(known) < _MOST_VERSIONS or (topic, group) in known:
            known[topic, group] = version
        while len(self._versions) > self._limits.max_clients:
            del self._versions[next(iter(self._versions))]

    def left(self, client_key: str, *, said_so: bool) -> None:
        """The client is gone, or its stream is."""
        if said_so:
            self._versions.pop(client_key, None)
        if self._lites is not None:
            self._lites.leave_lite(client_key, said_so=said_so)

    def gone(self, client_key: str, group: str, topic: str, lite_topic: str) -> None:
        """A lite topic was deleted, or taken from a client: notify the client, if possible."""
        client: ClientHandle | None = self._clients.get(client_key)
        if client is not None and client.group == group:
            client.leave_lite(lite_topic)

    # -- inside -------------------------------------------------------------------------------

    def _checked(self, sync: LiteSync) -> tuple[str, ...]:
        longest = self._limits.max_lite_topic_bytes
        if sync.action is LiteAction.ADD:
            return tuple(check_lite_topic(name, longest) for name in sync.lite_topics)
        return tuple(name for name in sync.lite_topics if _is_legal(name, longest))

    async def _bound(self, topic: str, group: str) -> GroupConfig:
        """The group, bound to the topic now if it is bound to none and takes nothing of the topic yet.

        Raises BadRequest where that may not be.
        """
        route = (await self._routing.route(topic)).route
        if route.message_types and MessageType.LITE not in route.message_types:
            accepts = " and ".join(kind.value for kind in route.message_types)
            raise MessageTypeMismatch(topic, accepts, MessageType.LITE.value)
        config = await self._routing.group(group)
        if takes_lite_topics(config, topic):
            return config
        reads = route.message_types != (MessageType.LITE,) and topic in await self._broker.topics_of(group)
        # What is kept may be a second old, and would be written back.
        config = await self._broker.group(group)
        if takes_lite_topics(config, topic):
            return config
        other = config.attributes.get(LITE_BIND_TOPIC)
        if other or not self._limits.auto_create_groups or config.broadcast:
            is_bound = f"it is bound to {other}" if other else "it is bound to none"
            raise BadRequest(
                f"consumer group {group} takes no lite topics of {topic}: its attribute"
                f" {LITE_BIND_TOPIC} must name that topic, but {is_bound}"
            )
        if reads:
            # Its other consumers would get nothing more of it, and their handles would be worth nothing.
            raise BadRequest(
                f"consumer group {group} reads topic {topic} as a whole, so it is not made to take lite"
                f" topics of it unasked: use another group, or set its attribute {LITE_BIND_TOPIC}"
            )
        bound = replace(config, attributes={**config.attributes, LITE_BIND_TOPIC: topic})
        await self._broker.update_group(bound)
        self._routing.forget_group(group)
        return bound


def _is_legal(name: str, longest: int) -> bool:
    try:
        check_lite_topic(name, longest)
    except IllegalLiteTopic:
        return False
    return True
