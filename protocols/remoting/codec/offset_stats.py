"""Encodes the positions of groups on queues for tools."""

from __future__ import annotations

from popgate.context import Context
from popgate.errors import BadRequest, NotFound
from popgate.model import Bounds, Progress
from popgate.wire.bodies.offset_stats import QueueProgress
from processors.messaging import MessagingProcessor
from processors.requests import Pull


async def standing_of(
    processor: MessagingProcessor, context: Context, topic: str, progress: Progress
) -> QueueProgress:
    """With the time of the message that was consumed last."""
    last_ms = await stored_ms(
        processor,
        context,
        (topic, progress.broker, progress.queue_id),
        progress.bounds,
        progress.committed - 1,
    )
    return QueueProgress(progress.bounds.maximum, progress.committed, progress.frontier, last_ms)


async def stored_ms(
    processor: MessagingProcessor, context: Context, queue: tuple[str, str, int], bounds: Bounds, offset: int
) -> int:
    """When the message at an offset was stored; 0: it is not there."""
    if not bounds.minimum <= offset < bounds.maximum:
        return 0
    try:
        pulled = await processor.pull(context, Pull(*queue, offset, max_messages=1))
    except (BadRequest, NotFound):  # it was deleted this very moment
        return 0
    return pulled.messages[0].store_ms if pulled.messages else 0
