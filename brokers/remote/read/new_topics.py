"""Makes topics, in which nobody goes on where an older topic of the same name ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.access.queries import of_each
from brokers.remote.cluster.queues import Place
from brokers.remote.metadata.config_codec import check_topic_settings
from brokers.remote.metadata.groups import Groups
from brokers.remote.metadata.topics import Topics
from brokers.remote.read.offsets import ClusterOffsets
from popgate.errors import Forbidden, GatewayError, NotFound
from popgate.model import Permission, TopicConfig
from popgate.wire.bodies.routes import MOST_QUEUES

_log = logging.getLogger(__name__)
_BEYOND = 8
"""After so many queues without a position that a new topic does not have, the older one had no more."""


class NewTopics:
    """The part of the port's `Directory` that creates topics.

    A broker stores the position of a pop a moment after it answered, also when the topic was deleted in
    between, as is done with topics whose consumers run. In a topic that is created with this name later the
    groups would begin at those positions, and never get the messages before them. Source: RocketMQ 5.5.0,
    PopBufferMergeService.scanCommitOffset, which commits without looking for the topic.
    """

    def __init__(
        self, access: ClusterAccess, topics: Topics, groups: Groups, offsets: ClusterOffsets
    ) -> None:
        self._access = access
        self._topics = topics
        self._groups = groups
        self._offsets = offsets

    async def create(self, config: TopicConfig) -> None:
        """As `Topics.create_topic`. A position that cannot be reset is logged: the topic is there."""
        check_topic_settings(config)
        # If the topic is not there when all are known, they are an older one's. Looked for at once, lest a
        # broker that says nothing is waited for twice.
        looking = asyncio.get_running_loop().create_task(self._positions(config))

        async def made(brokers: Collection[str]) -> None:
            await self._reset([position for position in looking.result() if position[1].broker in brokers])

        try:
            await self._topics.create_topic(config, looking, made)
        finally:
            looking.cancel()

    # -- inside -------------------------------------------------------------------------------

    async def _reset(self, positions: list[tuple[str, Place]]) -> None:
        for group, place in positions:
            try:
                await self._offsets.reset_place(group, place, 0)
            except NotFound:
                pass  # who is created later begins anew: `Groups.create_group`
            except GatewayError as error:
                self._may_stay(place.topic, place.broker, error)

    async def _positions(self, config: TopicConfig) -> list[tuple[str, Place]]:
        """Where groups have positions behind the first message."""
        try:
            masters = await self._access.masters()
        except GatewayError:
            return []  # nor is the topic created
        by_broker, failures = await of_each(masters, lambda broker: self._positions_at(broker, config))
        for broker, error in failures.items():
            self._may_stay(config.name, broker, error)
        return [position for positions in by_broker.values() for position in positions]

    async def _positions_at(self, broker: str, config: TopicConfig) -> list[tuple[str, Place]]:
        groups, failures = await self._groups.readers_at(config.name, [broker])
        if groups is None:
            raise failures[broker]
        positions = []
        for group in groups:
            try:
                without = 0
                for queue_id in range(MOST_QUEUES):
                    if without >= _BEYOND:
                        break
                    place = Place(config.name, broker, queue_id, Permission.READ)
                    position = await self._offsets.position_of(None, group, place)
                    without = without + 1 if position is None and queue_id >= config.read_queues else 0
                    if position:
                        positions.append((group, place))
            except Forbidden as error:
                self._may_stay(config.name, broker, error)  # that group's alone
        return positions

    def _may_stay(self, topic: str, broker: str, error: GatewayError) -> None:
        _log.warning("broker %s may keep old positions in topic %s: %s", broker, topic, error.sentence)
