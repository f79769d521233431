"""Offsets by time of the queues of static topics, whose pieces lie in physical queues of several brokers.

The leader of such a queue looks the time up itself, but takes what it has for the answer where an earlier
piece, which is another broker's, has the message: after a remap it tells 0, or the first offset of its own,
for a time before that (RocketMQ 5.5.0, AdminBrokerProcessor.rewriteRequestForStaticTopic). So each piece is
asked here. Source: protocol facts 6.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.access.queries import number_in, object_in
from brokers.remote.cluster.queues import Place
from popgate.answers import error_of
from popgate.context import Context
from popgate.wire.bodies.static_topics import QueueMapping, QueuePiece
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.json_syntax import parts

_LOGIC, _PHYSICAL = {"lo": "true"}, {"lo": "false"}


async def pieces_of(access: ClusterAccess, context: Context | None, place: Place) -> tuple[QueuePiece, ...]:
    """The pieces of a logic queue, oldest first, without those whose place in it is not known yet.

    Raises TopicNotFound, BrokerUnavailable, BrokerTimeout.
    """
    answer = await access.read_from(
        place.broker, RequestCode.GET_TOPIC_CONFIG, {"topic": place.topic, **_LOGIC}, context=context
    )
    if answer.code != ResponseCode.SUCCESS:
        raise error_of(answer, broker=place.broker, topic=place.topic)

    def read(body: Mapping[str, Any]) -> tuple[QueuePiece, ...]:
        hosted = QueueMapping.read(parts.table(body, "mappingDetail")).hosted
        return tuple(piece for piece in hosted.get(place.queue_id, ()) if piece.placed)

    return object_in(answer, place.broker, f"the queues of topic {place.topic}", read)


async def logic_offset_at(
    access: ClusterAccess, context: Context | None, place: Place, fields: Mapping[str, str]
) -> int:
    """The logic offset of the first message that is not older than a time, -1 when there is none.

    `fields`: of SEARCH_OFFSET_BY_TIMESTAMP, without topic and queue. Raises what `pieces_of` does, also when
    the broker of a piece is gone.
    """
    for piece in await pieces_of(access, context, place):
        where = {"topic": place.topic, "queueId": str(piece.queue_id), **_PHYSICAL}
        answer = await access.read_from(
            piece.broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**where, **fields}, context=context
        )
        if answer.code != ResponseCode.SUCCESS:
            raise error_of(answer, broker=piece.broker, topic=place.topic)
        offset = number_in(answer, piece.broker, "offset")
        ended = piece.end_offset > piece.start_offset
        if offset >= 0 and not (ended and offset >= piece.end_offset):
            return piece.logic(max(offset, piece.start_offset))
    return -1
