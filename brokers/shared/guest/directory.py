"""The port's `Directory` at a guest, dead letters that are redriven, and retries that are reclaimed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from brokers.capabilities import Reclaimed, Redriven
from brokers.shared.codec.calls import (
    CREATE_GROUP,
    CREATE_TOPIC,
    DELETE_GROUP,
    DELETE_TOPIC,
    GROUP,
    GROUPS,
    HELD,
    PROGRESS,
    RECLAIM,
    REDRIVE,
    REDRIVEN,
    RESET,
    ROUTE,
    STANDING,
    STANDINGS,
    TOPIC,
    TOPICS,
    TOPICS_OF,
    UPDATE_GROUP,
    UPDATE_TOPIC,
)
from brokers.shared.guest.facet import Facet
from popgate.context import Context
from popgate.errors import GatewayError
from popgate.model import (
    GroupConfig,
    GroupStatus,
    Held,
    Progress,
    QueueOffsets,
    Route,
    StartFrom,
    TopicConfig,
)


class SharedDirectory(Facet):
    async def route(self, topic: str) -> Route:
        return await self._link.ask(ROUTE, topic)

    async def topic(self, name: str) -> TopicConfig:
        return await self._link.ask(TOPIC, name)

    async def topics(self) -> list[TopicConfig]:
        return await self._link.ask(TOPICS)

    async def create_topic(self, config: TopicConfig) -> None:
        return await self._link.ask(CREATE_TOPIC, config)

    async def update_topic(self, config: TopicConfig) -> None:
        return await self._link.ask(UPDATE_TOPIC, config)

    async def delete_topic(self, name: str) -> None:
        return await self._link.ask(DELETE_TOPIC, name)

    async def group(self, name: str) -> GroupConfig:
        return await self._link.ask(GROUP, name)

    async def groups(self) -> list[GroupConfig]:
        return await self._link.ask(GROUPS)

    async def create_group(self, config: GroupConfig) -> None:
        return await self._link.ask(CREATE_GROUP, config)

    async def update_group(self, config: GroupConfig) -> None:
        return await self._link.ask(UPDATE_GROUP, config)

    async def delete_group(self, name: str) -> None:
        return await self._link.ask(DELETE_GROUP, name)

    async def progress(self, group: str, topic: str) -> list[Progress]:
        return await self._link.ask(PROGRESS, group, topic)

    async def topics_of(self, group: str) -> list[str]:
        return await self._link.ask(TOPICS_OF, group)

    async def held(self, group: str, topic: str, limit: int) -> list[Held]:
        return await self._link.ask(HELD, group, topic, limit)

    async def standing(self, group: str, topic: str) -> GroupStatus:
        return await self._link.ask(STANDING, group, topic)

    async def standings(self, start: int, queues: int) -> tuple[list[GroupStatus], int | None]:
        return await self._link.ask(STANDINGS, start, queues)

    async def reset(self, group: str, topic: str, to: StartFrom | int) -> QueueOffsets:
        return await self._link.ask(RESET, group, topic, to)

    async def redriven(
        self, group: str, broker: str, queue_id: int, begin: int, end: int
    ) -> Mapping[int, int]:
        return await self._link.ask(REDRIVEN, group, broker, queue_id, begin, end)

    async def redrive(
        self, context: Context, group: str, broker: str, queue_id: int, offsets: Sequence[int]
    ) -> list[Redriven | GatewayError]:
        return await self._link.ask(REDRIVE, context, group, broker, queue_id, offsets)

    async def reclaim(self, context: Context, group: str, topic: str, *, held: bool = False) -> Reclaimed:
        return await self._link.ask(RECLAIM, context, group, topic, held=held)
