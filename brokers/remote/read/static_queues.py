"""Offsets by time in queues of static topics, whose pieces are physical queues of several brokers.

The leader of such a queue searches by itself, but uses its own piece for the result where an earlier piece,
at another broker, has the message: for a time before a remap it returns 0, or the first offset of its own
piece (RocketMQ 5.5.0, AdminBrokerProcessor.rewriteRequestForStaticTopic). So the gateway searches each
piece. Source: protocol facts 6.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.access.queries import number_in, object_in
from brokers.remote.cluster.queues import Place, place_of
from popgate.answers import error_of
from popgate.context import Context
from popgate.errors import BrokerUnavailable
from popgate.wire.bodies.static_topics import QueueMapping, QueuePiece
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.json_syntax import parts

_LOGIC, _PHYSICAL = {"lo": "true"}, {"lo": "false"}
_MOST_PIECES = 64
"""A queue has one more with each remap; each is asked for."""


async def pieces_of(
    access: ClusterAccess, context: Context | None, place: Place
) -> tuple[Place, Sequence[QueuePiece]]:
    """The pieces of a logic queue, oldest first, and its place, which may have moved.

    The last one is its leader's. A broker that leads it no longer may still answer, with the pieces that it
    knew: the route is looked up again then. Raises TopicNotFound, BadRequest, BrokerTimeout, and
    BrokerUnavailable, also while the queue moves.
    """
    pieces = await _pieces_at(access, context, place)
    if not _leads(place, pieces):
        place = place_of(place.topic, await access.routes.now(place.topic), place.broker, place.queue_id)
        pieces = await _pieces_at(access, context, place)
        if not _leads(place, pieces):
            raise BrokerUnavailable(f"{_named(place)} moves: broker {place.broker} does not lead it yet")
    if len(pieces) > _MOST_PIECES:
        raise BrokerUnavailable(f"{_named(place)} has {len(pieces)} pieces, the limit is {_MOST_PIECES}")
    return place, pieces


async def logic_offset_at(
    access: ClusterAccess, context: Context | None, place: Place, fields: Mapping[str, str]
) -> int:
    """The logic offset of the first message that is not older than a time, -1 when there is none.

    `fields`: of SEARCH_OFFSET_BY_TIMESTAMP, without topic and queue. Raises what `pieces_of` does, also when
    the broker of a piece is gone.
    """
    place, pieces = await pieces_of(access, context, place)
    for piece, following in zip_longest(pieces, pieces[1:]):
        offset = await _asked(access, context, place, piece, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
        if following is not None and offset >= 0:
            # Brokers never learn where a piece ended, and return the end of their queue where they have
            # nothing so new, or 0 where they have nothing at all.
            end = await _asked(access, context, place, piece, RequestCode.GET_MAX_OFFSET, {})
            if offset >= end or piece.logic(offset) >= following.logic_offset:
                continue
        if offset >= 0:
            return piece.logic(max(offset, piece.start_offset))
    return -1


async def _pieces_at(access: ClusterAccess, context: Context | None, place: Place) -> tuple[QueuePiece, ...]:
    answer = await access.read_from(
        place.broker, RequestCode.GET_TOPIC_CONFIG, {"topic": place.topic, **_LOGIC}, context=context
    )
    if answer.code != ResponseCode.SUCCESS:
        raise error_of(answer, broker=place.broker, topic=place.topic)

    def read(body: Mapping[str, Any]) -> tuple[QueuePiece, ...]:
        return QueueMapping.read(parts.table(body, "mappingDetail")).hosted.get(place.queue_id, ())

    return object_in(answer, place.broker, f"the queues of topic {place.topic}", read)


def _leads(place: Place, pieces: Sequence[QueuePiece]) -> bool:
    """Whether they are those of the queue's leader, and known to the end."""
    return bool(pieces) and pieces[-1].broker == place.broker and all(piece.placed for piece in pieces)


def _named(place: Place) -> str:
    return f"queue {place.queue_id} of topic {place.topic}"


async def _asked(
    access: ClusterAccess,
    context: Context | None,
    place: Place,
    piece: QueuePiece,
    code: RequestCode,
    fields: Mapping[str, str],
) -> int:
    """An offset of the piece's physical queue."""
    where = {"topic": place.topic, "queueId": str(piece.queue_id), **_PHYSICAL}
    answer = await access.read_from(piece.broker, code, {**where, **fields}, context=context)
    if answer.code != ResponseCode.SUCCESS:
        raise error_of(answer, broker=piece.broker, topic=place.topic)
    return number_in(answer, piece.broker, "offset")
