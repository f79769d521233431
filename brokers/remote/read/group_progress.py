"""Progress of groups, as far as RocketMQ reports it.

It reports how far a group has popped, and what waits in its retry topics. Who holds a popped message, and
how many are held, is in its revive log and not reported (`Traits.tells_deliveries`): those figures are 0
here and not shown. Source: protocol facts 4.2 and 4.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.access.queries import object_in, of_each
from brokers.remote.cluster.queues import Place, places_of
from brokers.remote.metadata.groups import Groups
from brokers.remote.read.offsets import ClusterOffsets
from popgate.answers import error_of
from popgate.errors import BrokerUnavailable, GatewayError, PeerWireError, Unsupported
from popgate.model import GroupConfig, GroupStatus, Held, Permission, Progress, StartFrom
from popgate.naming import RETRY_PREFIX, pop_retry_topic_v1, pop_retry_topic_v2
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.json_syntax.parts import as_object, number, table, text, texts

_AT_ONCE = 32
"""Queues that are asked about at a time; three requests each."""
_MOST_TOPICS = 512
"""Of a group, for which one request asks: their names stand in a header."""


class GroupProgress:
    """The part of the port's `Directory` that looks at what groups have done."""

    def __init__(self, access: ClusterAccess, groups: Groups, offsets: ClusterOffsets) -> None:
        self._access = access
        self._groups = groups
        self._offsets = offsets

    async def progress(self, group: str, topic: str) -> list[Progress]:
        config = await self._groups.group(group)
        places = [(place, False) for place in places_of(topic, await self._access.routes.of(topic))]
        for make in (pop_retry_topic_v2, pop_retry_topic_v1):
            places += [(place, True) for place in await self._offsets.places_if_there(make(group, topic))]
        readable = iter([pair for pair in places if pair[0].permission & Permission.READ])
        progress: list[Progress] = []
        while some := list(islice(readable, _AT_ONCE)):
            progress += await asyncio.gather(*(self._progress(config, place, retry) for place, retry in some))
        return progress

    async def held(self, group: str, topic: str, limit: int) -> list[Held]:
        await self._groups.group(group)
        await self._access.routes.of(topic)
        raise Unsupported(
            "to list what a group holds in a RocketMQ cluster", "its brokers tell nobody who has a message"
        )

    async def standing(self, group: str, topic: str) -> GroupStatus:
        progress = await self.progress(group, topic)
        unread = sum(queue.lag for queue in progress if not queue.retry)
        return _standing(group, topic, unread, sum(queue.lag for queue in progress if queue.retry))

    async def standings(self, start: int, queues: int) -> tuple[list[GroupStatus], int | None]:
        """Group by group. One whose brokers do not all answer is left out: its figures would be too small."""
        names = [config.name for config in await self._groups.groups()]
        result: list[GroupStatus] = []
        at = start
        while queues > 0 and at < len(names):
            try:
                standings, looked_at = await self._standings_of(names[at])
            except GatewayError:
                standings, looked_at = [], 0
            result += standings
            queues -= 1 + looked_at
            at += 1
        return result, at if at < len(names) else None

    # -- inside -------------------------------------------------------------------------------

    async def _progress(self, config: GroupConfig, place: Place, retry: bool) -> Progress:
        bounds, position = await asyncio.gather(
            self._offsets.bounds_of(None, place), self._offsets.position_of(None, config.name, place)
        )
        if position is None:
            last = config.start_from is StartFrom.LAST and not retry
            position = bounds.maximum if last else bounds.minimum
        position = min(max(position, bounds.minimum), bounds.maximum)
        return Progress(place.broker, place.queue_id, position, position, 0, 0, bounds, retry)

    async def _standings_of(self, group: str) -> tuple[list[GroupStatus], int]:
        """The status of a group in each topic that it has read, and the number of queues."""
        by_broker, failures = await of_each(
            await self._access.brokers(), lambda broker: self._stats_at(broker, group)
        )
        if failures:
            raise BrokerUnavailable(f"not all brokers tell where group {group} stands")
        unread: dict[str, int] = {}
        free: dict[str, int] = {}
        looked_at = 0
        for stats in by_broker.values():
            for queue_stats in stats:
                looked_at += 1
                topic = _topic_of_retries(queue_stats.topic, group)
                if topic == queue_stats.topic:
                    unread[topic] = unread.get(topic, 0) + queue_stats.lag
                else:
                    free[topic] = free.get(topic, 0) + queue_stats.lag
        names = sorted(unread.keys() | free.keys())
        return [_standing(group, name, unread.get(name, 0), free.get(name, 0)) for name in names], looked_at

    async def _stats_at(self, broker: str, group: str) -> list[_Stats]:
        answer = await self._access.read_from(broker, RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": group})
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(answer, broker=broker, group=group)
        topics = object_in(
            answer, broker, f"the topics of group {group}", lambda body: texts(body, "topicList")
        )
        if not topics:
            return []
        # With the list also topics are told that no client of the group is subscribed to: its retries.
        fields = {"consumerGroup": group, "topicList": ";".join(topics[:_MOST_TOPICS])}
        answer = await self._access.read_from(broker, RequestCode.GET_CONSUME_STATS, fields)
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(answer, broker=broker, group=group)
        return object_in(answer, broker, f"the progress of group {group}", _stats_in)


class _Stats(NamedTuple):
    topic: str
    lag: int


def _stats_in(body: Mapping[str, Any]) -> list[_Stats]:
    """The offsets by queue, which are objects as keys (5.8)."""
    stats = []
    for key, value in table(body, "offsetTable").items():
        if not isinstance(key, tuple):
            raise PeerWireError("a key of offsetTable is no queue")
        here = as_object(value, "offsetTable")
        # A queue of a static topic that was never read is at -1.
        lag = number(here, "brokerOffset") - max(number(here, "consumerOffset"), 0)
        stats.append(_Stats(text(dict(key), "topic"), max(lag, 0)))
    return stats


def _topic_of_retries(topic: str, group: str) -> str:
    """The topic that a retry topic of the group's pops is for; else itself."""
    for sign in "+_":
        begin = f"{RETRY_PREFIX}{group}{sign}"
        if topic.startswith(begin):
            return topic[len(begin) :]
    return topic


def _standing(group: str, topic: str, unread: int, free: int) -> GroupStatus:
    return GroupStatus(
        group=group,
        topic=topic,
        lag=unread + free,
        unread=unread,
        free=free,
        in_flight=0,
        behind=0,
        refused=0,
        receivers=0,
        full=False,
        redelivered=0,
        dead_lettered=0,
    )
