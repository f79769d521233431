"""Checks before a pop: whether the request is possible, whether it is allowed now, and for how many bytes."""

from __future__ import annotations

from brokers.embedded.catalog.catalog import Group, Topic
from brokers.embedded.engine.engine import Engine
from popgate.context import Context
from popgate.errors import BadRequest, Fault, Forbidden
from popgate.model import Permission, Pop

LONGEST_INVISIBLE_MS = 1 << 45


def check_request(request: Pop) -> None:
    """Raises BadRequest for a pop that cannot be."""
    if request.max_messages < 1:
        raise BadRequest(f"a receive takes at least one message, not {request.max_messages}")
    if not 0 < request.invisible_ms <= LONGEST_INVISIBLE_MS:
        raise illegal_invisible_time(request.invisible_ms)


def illegal_invisible_time(invisible_ms: int) -> BadRequest:
    return BadRequest(f"an invisible time of {invisible_ms} ms is not possible", Fault.ILLEGAL_INVISIBLE_TIME)


def admit(engine: Engine, request: Pop) -> tuple[Topic, Group]:
    """Raises what a pop of this topic by this group is answered with now."""
    engine.check_writable()
    topic, group = engine.catalogue.topic(request.topic), engine.catalogue.group(request.group)
    if not topic.config.permission & Permission.READ:
        raise Forbidden(f"topic {topic.name} is not readable")
    if not group.config.consume_enabled:
        raise Forbidden(f"consumer group {group.name} is not allowed to consume")
    if request.broker or request.queue_id >= 0:
        engine.queue(topic, request.broker, max(request.queue_id, 0))
        if request.queue_id >= topic.config.read_queues:
            raise BadRequest(
                f"queue {request.queue_id} of topic {topic.name} is not readable, only"
                f" {topic.config.read_queues} are"
            )
    return topic, group


def bytes_for(context: Context, max_bytes: int) -> int:
    """How many bytes of messages a request may take at this moment. Raises TooManyRequests."""
    return max_bytes if context.allowance is None else min(max_bytes, context.allowance.room())
