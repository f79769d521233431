"""Topics and groups: listed, created, changed, deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from brokers.capabilities import BrokerPlace, TellsBrokers
from popgate.context import Context
from popgate.kinds import Action
from popgate.model import (
    GroupConfig,
    Progress,
    Queue,
    TopicConfig,
)
from popgate.naming import check_group, check_topic
from processors.admin.config_checks import check_group_config, check_topic_config
from processors.core import ProcessorCore
from processors.members.broadcast import BroadcastGroups, Member, is_member
from processors.observer import Watch

DEFAULT_CLUSTER = "DefaultCluster"
"""The cluster of a broker that is none: RocketMQ's own default name."""


class Metadata:
    """Topics, groups and their queues.

    `topic_changed` and `group_changed` are called with the name of what was created, changed or deleted.
    """

    def __init__(self, core: ProcessorCore, broadcast: BroadcastGroups) -> None:
        self._broker = core.broker
        self._limits = core.limits
        self._admit = core.admit
        self._routing = core.routing
        self._broadcast = broadcast
        self.topic_changed: Callable[[str], None] = _nobody_listens
        self.group_changed: Callable[[str], None] = _nobody_listens
        self._watch_directory = Watch(core.observer, "directory")

    async def topic(self, context: Context, name: str) -> TopicConfig:
        """Raises TopicNotFound; nothing is made by asking."""
        with self._watch_directory:
            self._admit(context, Action.GET, topic=name)
            return await self._broker.topic(name)

    async def queues(self, context: Context, topic: str) -> Sequence[Queue]:
        """All queues of a topic, which is never made by asking. Raises TopicNotFound."""
        with self._watch_directory:
            self._admit(context, Action.GET, topic=topic)
            route = await self._broker.route(topic)
            self._routing.told(route)
            return route.queues

    async def brokers(self, context: Context) -> Sequence[BrokerPlace]:
        """The brokers behind this gateway, by the names that routes have. Raises BrokerUnavailable."""
        with self._watch_directory:
            self._admit(context, Action.GET)
        return await self.known_brokers()

    async def known_brokers(self) -> Sequence[BrokerPlace]:
        """As `brokers`, for what a listener does with them for any client. Raises BrokerUnavailable."""
        with self._watch_directory:
            several = self._broker.capability(TellsBrokers)
            if several is not None:
                return await several.known_brokers()
            return [BrokerPlace(DEFAULT_CLUSTER, self._broker.name)]

    async def topics(self, context: Context) -> list[TopicConfig]:
        with self._watch_directory:
            self._admit(context, Action.LIST)
            return await self._broker.topics()

    def check_config(self, config: TopicConfig | GroupConfig) -> None:
        """Raises what making it, or changing it to this, would raise before the broker is asked."""
        if isinstance(config, TopicConfig):
            check_topic(config.name)
            check_topic_config(config, self._limits)
        else:
            check_group(config.name)
            check_group_config(config, self._limits)

    async def create_topic(self, context: Context, config: TopicConfig) -> None:
        """Raises IllegalTopic, BadRequest (its settings), AlreadyExists."""
        with self._watch_directory:
            self._admit(context, Action.CREATE, topic=check_topic(config.name))
            check_topic_config(config, self._limits)
            await self._broker.create_topic(config)
            self._routing.forget_topic(config.name)
            self.topic_changed(config.name)

    async def update_topic(self, context: Context, config: TopicConfig) -> None:
        """Raises IllegalTopic, BadRequest (its settings, fewer queues), TopicNotFound."""
        with self._watch_directory:
            self._admit(context, Action.UPDATE, topic=check_topic(config.name))
            check_topic_config(config, self._limits)
            await self._broker.update_topic(config)
            self._routing.forget_topic(config.name)
            self.topic_changed(config.name)

    async def delete_topic(self, context: Context, name: str) -> None:
        """Raises TopicNotFound."""
        with self._watch_directory:
            self._admit(context, Action.DELETE, topic=name)
            self._routing.forget_topic(name)
            await self._broker.delete_topic(name)
            self._routing.forget_topic(name)
            self.topic_changed(name)

    async def group(self, context: Context, name: str) -> GroupConfig:
        """Raises GroupNotFound; nothing is made by asking."""
        with self._watch_directory:
            self._admit(context, Action.GET, group=name)
            return await self._broker.group(name)

    async def groups(self, context: Context) -> list[GroupConfig]:
        """Those that people made or named; `members` are those of one broadcast group."""
        with self._watch_directory:
            self._admit(context, Action.LIST)
            return [group for group in await self._broker.groups() if not is_member(group)]

    async def members(self, context: Context, group: str) -> list[Member]:
        """The clients of a broadcast group that have a cursor. Raises GroupNotFound."""
        with self._watch_directory:
            self._admit(context, Action.GET, group=group)
            await self._broker.group(group)
            return await self._broadcast.members(group)

    async def create_group(self, context: Context, config: GroupConfig) -> None:
        """Raises IllegalGroup, BadRequest (its settings), AlreadyExists."""
        with self._watch_directory:
            self._admit(context, Action.CREATE, group=check_group(config.name))
            check_group_config(config, self._limits)
            await self._broker.create_group(config)
            self._routing.forget_group(config.name)
            self.group_changed(config.name)

    async def update_group(self, context: Context, config: GroupConfig) -> None:
        """Raises IllegalGroup, BadRequest (its settings), GroupNotFound."""
        with self._watch_directory:
            self._admit(context, Action.UPDATE, group=check_group(config.name))
            check_group_config(config, self._limits)
            await self._broker.update_group(config)
            self._routing.forget_group(config.name)
            self.group_changed(config.name)
            if not config.broadcast:
                await self._broadcast.forget(config.name)

    async def delete_group(self, context: Context, name: str) -> None:
        """Raises GroupNotFound."""
        with self._watch_directory:
            self._admit(context, Action.DELETE, group=name)
            self._routing.forget_group(name)
            await self._broker.delete_group(name)
            self._routing.forget_group(name)
            self.group_changed(name)
            await self._broadcast.forget(name)

    async def progress(self, context: Context, group: str, topic: str) -> list[Progress]:
        """How far the group is, per queue. Raises GroupNotFound, TopicNotFound."""
        with self._watch_directory:
            self._admit(context, Action.GET, group=group, topic=topic)
            return await self._broker.progress(group, topic)

    async def topics_of(self, context: Context, group: str) -> list[str]:
        """The topics that the group has read. Raises GroupNotFound."""
        with self._watch_directory:
            self._admit(context, Action.GET, group=group)
            return await self._broker.topics_of(group)


def _nobody_listens(_name: str) -> None:
    """The listener until clients can be notified."""
