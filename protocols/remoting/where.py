"""Which broker a request is about that names a place in a broker's log, and no queue.

Clients before 4.9.5 do not say it (protocol facts 7.7); where there is one broker there is no doubt.
"""

from __future__ import annotations

from popgate.errors import NotFound
from popgate.naming import DEAD_LETTER_PREFIX, RETRY_PREFIX
from popgate.wire.codes import ResponseCode
from processors.messaging import MessagingProcessor
from protocols.remoting.errors import Refused
from protocols.remoting.requests import Request
from protocols.remoting.routing import Brokers


async def broker_in(
    request: Request, brokers: Brokers, processor: MessagingProcessor, topic: str = ""
) -> str:
    """Its name. Raises Refused (VERSION_NOT_SUPPORTED) where there are several, also for `topic`."""
    named = request.fields.get("bname")
    if named:
        return named
    found = {place.name for place in await brokers.known(request.context)}
    if len(found) > 1 and topic and not topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        try:
            found = {queue.broker for queue in await processor.queues(request.context, topic)}
        except NotFound:
            found = set()
    if len(found) != 1:
        raise Refused(
            ResponseCode.VERSION_NOT_SUPPORTED,
            "the request has no field bname, and it may be about several brokers: clients from 4.9.5 on say"
            " which one they mean",
        )
    return found.pop()
