"""Trace contexts of messages that this process has not delivered, read from the stored messages.

It serves spans only, so it is bounded in messages and time; a context that is not found by then has no link.
Messages of lite topics are not found: their receipts name places in an index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace

import structlog

from brokers.port import Broker
from popgate.context import Context
from popgate.errors import GatewayError, IllegalReceipt
from popgate.filters.compiled import compile_filter
from popgate.ids.receipt import OF_RETRY_V1, OF_TOPIC, parse_receipt
from popgate.model import FilterKind
from popgate.naming import pop_retry_topic_v1, pop_retry_topic_v2
from proxy.tracing.contexts import context_of

_log = structlog.get_logger()

_MOST = 128
_PATIENCE_S = 1.0
"""A span is kept open meanwhile; no client waits for it."""
_EVERYTHING = compile_filter(FilterKind.TAG, "*")

Place = tuple[str, str, int, int]
"""topic, broker, queue, offset"""


async def contexts_of_receipts(
    broker: Broker, context: Context, topic: str, group: str, receipts: Sequence[str]
) -> list[str]:
    """The contexts of the messages of these receipts; none for an invalid receipt."""
    places = []
    for text in receipts:
        try:
            receipt = parse_receipt(text)
        except IllegalReceipt:
            continue
        name = topic
        if receipt.topic_type != OF_TOPIC:
            make = pop_retry_topic_v1 if receipt.topic_type == OF_RETRY_V1 else pop_retry_topic_v2
            name = make(group, topic)
        places.append((name, receipt.broker, receipt.queue_id, receipt.offset))
    return await contexts_of_places(broker, context, places)


async def contexts_of_places(broker: Broker, context: Context, places: Sequence[Place]) -> list[str]:
    """One for each of the first 128, in order, empty if not found."""
    return await _in_time([_at(broker, _own(context), place) for place in places[:_MOST]])


async def contexts_of_id(broker: Broker, context: Context, topic: str, message_id: str) -> list[str]:
    """Of the newest message in the topic that has this id."""
    return await _in_time([_of(broker, _own(context), topic, message_id)])


def _own(context: Context) -> Context:
    """Of a look-up, which goes on after its request: the room and the time of that are not its own."""
    return replace(context, allowance=None, deadline=None)


async def _in_time(looks: Sequence[Coroutine[None, None, str]]) -> list[str]:
    """The results, empty on failure or timeout: a span works without links."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(look) for look in looks]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, timeout=_PATIENCE_S)
    finally:
        for task in tasks:
            task.cancel()
    return [_result(task) for task in tasks]


def _result(task: asyncio.Task[str]) -> str:
    if not task.done() or task.cancelled():
        return ""
    if error := task.exception():
        _log.warning("a span has no link: looking up its message failed", error=repr(error))
        return ""
    return task.result()


async def _at(broker: Broker, context: Context, place: Place) -> str:
    try:
        pulled = await broker.pull(
            context, *place, max_messages=1, max_bytes=1, passing=_EVERYTHING, wait_until=None
        )
    except GatewayError:
        return ""
    return next(
        (context_of(message.properties) for message in pulled.messages if message.offset == place[3]), ""
    )


async def _of(broker: Broker, context: Context, topic: str, message_id: str) -> str:
    try:
        messages = await broker.find_by_id(context, topic, message_id)
    except GatewayError:
        return ""
    return context_of(messages[-1].properties) if messages else ""
