"""Which queues a classic consumer reads: brokers know all members of a group, and decide.

Source: protocol facts 5.5 (400, 401) and 5.14.
"""

from __future__ import annotations

import random

from brokers.capabilities import AssignedQueue, AssignsQueues
from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.access.queries import of_each, worst
from popgate.context import Context
from popgate.errors import BrokerTimeout, BrokerUnavailable, PeerWireError
from popgate.wire.bodies.heartbeats import BROADCASTING, CLUSTERING
from popgate.wire.bodies.small_bodies import AssignmentQuery, decode_assignments
from popgate.wire.frames.codes import RequestCode
from popgate.wire.json_syntax.fastjson import dumps

POP = "POP"


class QueueAssignment(AssignsQueues):
    """`brokers.capabilities.AssignsQueues`."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self._routes = access.routes
        self._client = access.client

    async def assigned(
        self, context: Context, topic: str, group: str, client_id: str, strategy: str, *, broadcast: bool
    ) -> list[AssignedQueue]:
        """Any broker of the topic answers for all of them."""
        route = await self._routes.of(topic)
        masters = [data.name for data in route.brokers if data.master is not None]
        if not masters:
            raise BrokerUnavailable(f"no broker of topic {topic} has a master now")
        broker = random.choice(masters)  # noqa: S311
        query = AssignmentQuery(topic, group, client_id, strategy, BROADCASTING if broadcast else CLUSTERING)
        answer = await self._client.done(
            broker, RequestCode.QUERY_ASSIGNMENT, {}, query.encode(), context=context
        )
        try:
            assignments = decode_assignments(answer.body)
        except PeerWireError as error:
            raise BrokerTimeout(f"broker {broker} assigned what cannot be read: {error}") from error
        return [
            AssignedQueue(assignment.queue.broker, assignment.queue.queue_id, assignment.mode == POP)
            for assignment in assignments
            if assignment.queue.topic == topic
        ]

    async def set_popped(self, context: Context, topic: str, group: str, popped: bool, share: int) -> None:
        body = dumps(
            {
                "consumerGroup": group,
                "mode": POP if popped else "PULL",
                "popShareQueueNum": share,
                "topic": topic,
            }
        )
        _, failures = await of_each(
            await self._access.masters(),
            lambda broker: self._client.done(
                broker, RequestCode.SET_MESSAGE_REQUEST_MODE, {}, body, context=context
            ),
        )
        if failures:
            raise worst(failures)
