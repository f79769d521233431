"""Finds the broker of a request that names a place in a broker's log, and no queue.

Look-ups never name the broker, nor does any request of clients before 4.9.5 (protocol facts 7.7): then the
mark in the place, which all ids and records have, identifies it. With one broker there is no ambiguity.
"""

from __future__ import annotations

from popgate.errors import BadRequest, BrokerUnavailable, NotFound
from popgate.naming import DEAD_LETTER_PREFIX, RETRY_PREFIX
from popgate.wire.frames.codes import ResponseCode
from processors.messaging import MessagingProcessor
from protocols.remoting.codec.errors import Refused
from protocols.remoting.codec.marks import offset_in
from protocols.remoting.requests import Request
from protocols.remoting.routing import Brokers


async def broker_in(
    request: Request, brokers: Brokers, processor: MessagingProcessor, topic: str = ""
) -> str:
    """Its name. Raises Refused (VERSION_NOT_SUPPORTED) where there are several, also for `topic`."""
    named = request.fields.get("bname")
    if named:
        return named
    names = {place.name for place in await brokers.known()}
    if len(names) > 1 and topic and not topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        try:
            names = {queue.broker for queue in await processor.metadata.queues(request.context, topic)}
        except NotFound:
            names = set()
    if len(names) != 1:
        raise Refused(
            ResponseCode.VERSION_NOT_SUPPORTED,
            "the request has no field bname, and it may be about several brokers: clients from 4.9.5 on say"
            " which one they mean",
        )
    return names.pop()


async def place_in(
    request: Request, brokers: Brokers, processor: MessagingProcessor, place: int, topic: str = ""
) -> tuple[str, int]:
    """The broker that a place is of, and the offset in its log. Raises as `resolve_place` and `broker_in`."""
    broker, offset = await resolve_place(request, brokers, place)
    return broker or await broker_in(request, brokers, processor, topic), offset


async def resolve_place(request: Request, brokers: Brokers, place: int) -> tuple[str, int]:
    """As `place_in`, by what the request says alone: the broker is empty where it does not say one.

    A broker that is named counts, also where the place has no mark, as those that older gateways told.
    Raises BadRequest: it is of nobody; BrokerUnavailable: whose it is cannot be known now.
    """
    named = request.fields.get("bname", "")
    if named:
        return named, offset_in(place) if brokers.have_marks else place
    marks = await brokers.marks(request.context)
    if marks is None or place < 0:
        return "", place
    broker, offset = marks.broker_of(place)
    if broker is not None:
        return broker, offset
    if not marks.are_known:
        raise BrokerUnavailable("which broker the place is of cannot be known now: ask again, or say bname")
    raise BadRequest(f"the place {place} is of no broker that is known")
