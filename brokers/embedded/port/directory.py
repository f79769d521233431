"""Topics and groups as clients and operators see them."""

from __future__ import annotations

from brokers.embedded.engine.component import Facet
from popgate.model import GroupConfig, Permission, Queue, Route, TopicConfig


class Directing(Facet):
    """The part of the port's `Directory` that is about topics and groups themselves."""

    async def route(self, topic: str) -> Route:
        self._state.check_open()
        config = self._state.catalogue.topic(topic).config
        name = self._state.settings.name
        queues = []
        for queue_id in range(config.queues):
            allowed = Permission.NONE
            if queue_id < config.read_queues:
                allowed |= config.permission & Permission.READ
            if queue_id < config.write_queues:
                allowed |= config.permission & Permission.WRITE
            queues.append(Queue(name, queue_id, allowed))
        return Route(topic, config.message_types, tuple(queues), config.compacted)

    async def topic(self, name: str) -> TopicConfig:
        self._state.check_open()
        return self._state.catalogue.topic(name).config

    async def topics(self) -> list[TopicConfig]:
        self._state.check_open()
        return [topic.config for topic in self._state.catalogue.topics()]

    async def create_topic(self, config: TopicConfig) -> None:
        self._state.check_writable()
        self._state.catalogue.create_topic(config)
        await self._state.settled()

    async def update_topic(self, config: TopicConfig) -> None:
        self._state.check_writable()
        topic = self._state.catalogue.update_topic(config)
        self._state.lites.settings_changed(topic)
        self._state.arm()
        self._state.waiting.wake_all(topic.id)
        await self._state.settled()

    async def delete_topic(self, name: str) -> None:
        state = self._state
        state.check_writable()
        topic = state.catalogue.delete_topic(name)
        for retries in state.shares.retry_topics_of(topic):
            state.shares.drop_topic(state.catalogue.delete_topic(retries.name))
        state.shares.drop_topic(topic)
        state.lites.drop_topic(topic)
        state.waiting.wake_all(topic.id)
        await state.settled()

    async def group(self, name: str) -> GroupConfig:
        self._state.check_open()
        return self._state.catalogue.group(name).config

    async def groups(self) -> list[GroupConfig]:
        self._state.check_open()
        return [group.config for group in self._state.catalogue.groups()]

    async def create_group(self, config: GroupConfig) -> None:
        self._state.check_writable()
        self._state.catalogue.create_group(config)
        await self._state.settled()

    async def update_group(self, config: GroupConfig) -> None:
        state = self._state
        state.check_writable()
        group = state.catalogue.update_group(config)
        state.lites.group_changed(group)
        for share in state.shares:
            if share.group is group:
                state.waiting.wake_all(share.topic.id, group.id)
        await state.settled()

    async def delete_group(self, name: str) -> None:
        state = self._state
        state.check_writable()
        group = state.catalogue.delete_group(name)
        for share in state.shares:
            if share.group is group:
                state.waiting.wake_all(share.topic.id, group.id)
        for retries in state.shares.retry_topics_of(group):
            state.shares.drop_topic(state.catalogue.delete_topic(retries.name))
        state.shares.drop_group(group)
        state.lites.drop_group(group)
        await state.settled()
