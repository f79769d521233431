"""Topics and groups as clients and operators see them."""

from __future__ import annotations

from brokers.embedded.engine.facet import Facet
from popgate.model import GroupConfig, Permission, Queue, Route, TopicConfig


class DirectoryFacet(Facet):
    """The part of the port's `Directory` that is about topics and groups themselves."""

    async def route(self, topic: str) -> Route:
        self._engine.check_open()
        config = self._engine.catalogue.topic(topic).config
        name = self._engine.settings.name
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
        self._engine.check_open()
        return self._engine.catalogue.topic(name).config

    async def topics(self) -> list[TopicConfig]:
        self._engine.check_open()
        return [topic.config for topic in self._engine.catalogue.topics()]

    async def create_topic(self, config: TopicConfig) -> None:
        self._engine.check_writable()
        self._engine.catalogue.create_topic(config)
        await self._engine.settled()

    async def update_topic(self, config: TopicConfig) -> None:
        self._engine.check_writable()
        topic = self._engine.catalogue.update_topic(config)
        self._engine.lites.settings_changed(topic)
        self._engine.arm()
        self._engine.waiting.wake_all(topic.id)
        await self._engine.settled()

    async def delete_topic(self, name: str) -> None:
        engine = self._engine
        engine.check_writable()
        topic = engine.catalogue.delete_topic(name)
        for retries in engine.shares.retry_topics_of(topic):
            engine.shares.drop_topic(engine.catalogue.delete_topic(retries.name))
        engine.shares.drop_topic(topic)
        engine.lites.drop_topic(topic)
        engine.waiting.wake_all(topic.id)
        await engine.settled()

    async def group(self, name: str) -> GroupConfig:
        self._engine.check_open()
        return self._engine.catalogue.group(name).config

    async def groups(self) -> list[GroupConfig]:
        self._engine.check_open()
        return [group.config for group in self._engine.catalogue.groups()]

    async def create_group(self, config: GroupConfig) -> None:
        self._engine.check_writable()
        self._engine.catalogue.create_group(config)
        await self._engine.settled()

    async def update_group(self, config: GroupConfig) -> None:
        engine = self._engine
        engine.check_writable()
        group = engine.catalogue.update_group(config)
        engine.lites.group_changed(group)
        for share in engine.shares:
            if share.group is group:
                engine.waiting.wake_all(share.topic.id, group.id)
        await engine.settled()

    async def delete_group(self, name: str) -> None:
        engine = self._engine
        engine.check_writable()
        group = engine.catalogue.delete_group(name)
        for share in engine.shares:
            if share.group is group:
                engine.waiting.wake_all(share.topic.id, group.id)
        for retries in engine.shares.retry_topics_of(group):
            engine.shares.drop_topic(engine.catalogue.delete_topic(retries.name))
        engine.shares.drop_group(group)
        engine.lites.drop_group(group)
        await engine.settled()
