from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from popgate.context import Context
from popgate.errors import BrokerUnavailable, TopicNotFound
from popgate.model import Message
from popgate.testing.clock import MovableClock
from processors.consume.push import PushSession
from processors.messaging import MessagingProcessor
from processors.requests import Receive

Settle = Callable[[], Awaitable[None]]
REQUEST = Receive("orders", "readers", invisible_ms=30_000)


async def sent(processor: MessagingProcessor, context: Context, *bodies: bytes) -> None:
    await processor.send(context, [Message("orders", body, message_id=body.decode()) for body in bodies])


async def test_messages_come_as_they_are_sent(processor: MessagingProcessor, context: Context) -> None:
    session = processor.push(context, REQUEST, window=8)
    await sent(processor, context, b"a", b"b")
    assert [(await anext(session)).body for _ in range(2)] == [b"a", b"b"]
    waiting = asyncio.ensure_future(anext(session))
    await sent(processor, context, b"c")
    assert (await waiting).body == b"c"
    await session.stop()


async def test_no_more_than_the_window_is_taken(
    processor: MessagingProcessor, broker: Any, context: Context, settle: Settle
) -> None:
    await sent(processor, context, b"a", b"b", b"c", b"d")
    session = processor.push(context, REQUEST, window=3)
    taken = [await anext(session) for _ in range(3)]
    await settle()
    assert session.out == 3
    assert len(broker.messages["orders"]) == 1
    session.settled()
    assert (await anext(session)).body == b"d"
    session.settled(len(taken))
    await session.stop()


async def test_scenario_03_stopping_gives_back_what_was_not_handed_out(
    processor: MessagingProcessor, broker: Any, context: Context, settle: Settle
) -> None:
    await sent(processor, context, b"a", b"b", b"c")
    session = processor.push(context, REQUEST, window=3)
    first = await anext(session)
    await session.stop()
    await session.stop()
    assert [message.body for message in broker.messages["orders"]] == [b"b", b"c"]
    assert list(broker.in_hand) == [first.receipt]
    with pytest.raises(StopAsyncIteration):
        await anext(session)
    assert "stopped buffered 0 out 1/3" in repr(session)


async def test_stopping_ends_a_waiting_reader_and_a_waiting_pop(
    processor: MessagingProcessor, broker: Any, context: Context, settle: Settle
) -> None:
    session = processor.push(context, REQUEST, window=3)
    reader = asyncio.ensure_future(anext(session))
    await settle()
    assert len(broker.asked("pop")) == 1
    await session.stop()
    with pytest.raises(StopAsyncIteration):
        await reader
    await sent(processor, context, b"a")
    await settle()
    assert broker.in_hand == {}


async def test_a_session_that_nobody_read_can_be_stopped(
    processor: MessagingProcessor, context: Context
) -> None:
    session = processor.push(context, REQUEST, window=3)
    await session.stop()
    assert [message async for message in session] == []


async def test_a_broker_that_is_away_is_waited_for_with_growing_pauses(
    processor: MessagingProcessor, broker: Any, clock: MovableClock, context: Context, settle: Settle
) -> None:
    broker.failure = BrokerUnavailable("away")
    session = processor.push(context, REQUEST, window=3)
    reader = asyncio.ensure_future(anext(session))
    await settle()
    assert len(broker.asked("pop")) == 1
    clock.advance(0.11)
    await settle()
    assert len(broker.asked("pop")) == 2
    clock.advance(0.11)
    await settle()
    assert len(broker.asked("pop")) == 2
    broker.failure = None
    await sent(processor, context, b"a")
    clock.advance(0.1)
    assert (await reader).body == b"a"
    await session.stop()


async def test_a_failure_that_stays_ends_the_iteration_after_what_was_taken(
    processor: MessagingProcessor, broker: Any, context: Context, settle: Settle
) -> None:
    await sent(processor, context, b"a")
    session = processor.push(context, REQUEST, window=3)
    first = asyncio.ensure_future(anext(session))
    await settle()
    broker.failure = TopicNotFound("orders")
    broker.arrival.set()
    assert (await first).body == b"a"
    with pytest.raises(TopicNotFound):
        await anext(session)
    await session.stop()


async def test_a_message_whose_time_was_over_before_anybody_read_it_is_not_handed_out(
    processor: MessagingProcessor, broker: Any, clock: MovableClock, context: Context, settle: Settle
) -> None:
    await sent(processor, context, b"a", b"b")
    session = processor.push(context, REQUEST, window=2)
    assert (await anext(session)).body == b"a"
    clock.advance(31)
    await sent(processor, context, b"c")
    assert (await anext(session)).body == b"c"
    await session.stop()


async def test_a_session_that_may_not_wait_does_not_spin(
    processor: MessagingProcessor, broker: Any, clock: MovableClock, context: Context, settle: Settle
) -> None:
    session = processor.push(context, Receive("orders", "readers", wait_s=0.0), window=2)
    reader = asyncio.ensure_future(anext(session))
    for _ in range(5):
        await settle()
    assert len(broker.asked("pop")) == 1
    clock.advance(0.06)
    await settle()
    assert len(broker.asked("pop")) == 2
    await session.stop()
    with pytest.raises(StopAsyncIteration):
        await reader


def test_a_window_has_room_for_a_message() -> None:
    with pytest.raises(ValueError, match="at least one"):
        PushSession(REQUEST, window=0, receive=None, give_back=None, backoff=None, clock=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
async def test_how_long_a_message_may_wait_in_the_buffer_is_no_matter_of_the_wall_clock(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    context: Context,
    settle: Settle,
    step_ms: int,
) -> None:
    await sent(processor, context, b"a", b"b", b"c")
    session = processor.push(context, REQUEST, window=3)
    assert (await anext(session)).body == b"a"
    clock.set_wall(clock.now_ms() + step_ms)
    clock.advance(29)
    assert (await anext(session)).body == b"b"
    clock.advance(2)
    waiting = asyncio.ensure_future(anext(session))
    await settle()
    assert not waiting.done()
    session.settled(2)
    await sent(processor, context, b"d")
    assert (await waiting).body == b"d"
    await session.stop()
