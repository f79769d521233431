"""The queues of a classic consumer that leaves the assignment to the broker, and whether it pulls or pops.

Brokers of a cluster decide that themselves. Otherwise a group's attributes say which topics it pops, and
queues to pull are assigned here. Sources: protocol facts 5.5 (400, 401), 5.13 and 5.14; the strategies of
RocketMQ's AllocateMessageQueueAveragely and AllocateMessageQueueAveragelyByCircle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from brokers.capabilities import AssignedQueue, AssignsQueues
from brokers.port import Broker
from popgate.context import Context
from popgate.errors import BadRequest, Forbidden, shown
from popgate.kinds import Action
from popgate.model import Queue
from popgate.naming import RETRY_PREFIX, check_group, check_topic
from processors.routing import Routing

POPPED: Final = "popgate.popped."
"""Begins the attributes of a group that name a topic which it pops; the value: clients that share a queue."""
_MOST_TOPICS: Final = 256
_MOST_SHARED: Final = 10_000

Consumers = Callable[[Context, str], Awaitable[Sequence[str]]]


class QueueAssignment:
    """`consumers`: the ids of the clients of a group with whom the caller shares its queues."""

    def __init__(
        self, broker: Broker, routing: Routing, admit: Callable[..., None], consumers: Consumers
    ) -> None:
        self._broker = broker
        self._assigns = broker.capability(AssignsQueues)
        self._routing = routing
        self._admit = admit
        self._consumers = consumers
        self._changing = asyncio.Lock()
        """Settings of a group are read and written as a whole."""

    async def assigned(
        self, context: Context, topic: str, group: str, client_id: str, strategy: str, *, broadcast: bool
    ) -> list[AssignedQueue]:
        """What a client is to read of a topic; nothing while the group does not know it.

        Raises IllegalTopic, IllegalGroup, TopicNotFound, GroupNotFound, BadRequest (unknown strategy).
        """
        self._admit(context, Action.SUBSCRIBE, topic=check_topic(topic), group=check_group(group))
        if self._assigns is not None:
            return await self._assigns.assigned(
                context, topic, group, client_id, strategy, broadcast=broadcast
            )
        config = await self._routing.group(group)
        queues = sorted(
            (await self._routing.route(topic)).readable, key=lambda queue: (queue.broker, queue.queue_id)
        )
        if broadcast:
            return [AssignedQueue(queue.broker, queue.queue_id) for queue in queues]
        if POPPED + topic in config.attributes:
            # Messages are shared then, not queues.
            return [
                AssignedQueue(broker, -1, True) for broker in dict.fromkeys(queue.broker for queue in queues)
            ]
        share = share_of(strategy, queues, await self._consumers(context, group), client_id)
        return [AssignedQueue(queue.broker, queue.queue_id) for queue in share]

    async def set_popped(self, context: Context, topic: str, group: str, popped: bool, share: int) -> None:
        """Have a group read a topic by pop, or by pull. Raises as `assigned`, and Forbidden."""
        self._admit(context, Action.UPDATE, topic=check_topic(topic), group=check_group(group))
        if topic.startswith(RETRY_PREFIX):
            raise Forbidden("retry topic is not allowed to set mode")
        if not -1 <= share <= _MOST_SHARED:
            raise BadRequest(f"{share} clients cannot share a queue, 0 to {_MOST_SHARED} can")
        if self._assigns is not None:
            await self._assigns.set_popped(context, topic, group, popped, share)
            return
        async with self._changing:
            await self._routing.group(group)  # made on first use
            config = await self._broker.group(group)
            attributes = {name: value for name, value in config.attributes.items() if name != POPPED + topic}
            if popped:
                if sum(name.startswith(POPPED) for name in attributes) >= _MOST_TOPICS:
                    raise BadRequest(f"group {group} pops {_MOST_TOPICS} topics, which is the limit")
                attributes[POPPED + topic] = str(share)
            if attributes != dict(config.attributes):
                await self._broker.update_group(replace(config, attributes=attributes))
                self._routing.forget_group(group)


def share_of(
    strategy: str, queues: Sequence[Queue], clients: Sequence[str], client_id: str
) -> Sequence[Queue]:
    """The part of sorted queues that one of sorted clients reads; every client must come to the same parts.

    Raises BadRequest for a strategy that is not known.
    """
    if strategy not in ("AVG", "AVG_BY_CIRCLE"):
        raise BadRequest(f"the strategy {shown(strategy)} is not known here, AVG and AVG_BY_CIRCLE are")
    if client_id not in clients:
        return ()
    place, count = sorted(clients).index(client_id), len(clients)
    if strategy == "AVG_BY_CIRCLE":
        return queues[place::count]
    each, more = divmod(len(queues), count)
    begin = place * each + min(place, more)
    return queues[begin : begin + each + (place < more)]
