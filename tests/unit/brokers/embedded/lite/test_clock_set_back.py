"""Held messages of lite topics after a start with a wall clock that was set back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from popgate.context import Context
from popgate.filters.compiled import EVERYTHING
from popgate.lite import LITE_BIND_TOPIC, LiteAction, LiteSync
from popgate.model import GroupConfig, Message, MessageType, Pop, TopicConfig
from popgate.testing import MovableClock

ME = Context(client_id="me@host@1")
POP = Pop("L", "G", EVERYTHING, 30_000)
Act = Callable[[EmbeddedBroker, str], Awaitable[object]]


async def turns() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


async def subscribe(broker: EmbeddedBroker) -> None:
    await broker.subscribe_lite(ME, LiteSync("L", "G", LiteAction.ADD, ("room",)))


async def hold(broker: EmbeddedBroker, receipt: str) -> None:
    """The client goes on with its message."""


async def suspend(broker: EmbeddedBroker, receipt: str) -> None:
    await broker.change_invisible(ME, "L", "G", receipt, 30_000, suspend=True)


@pytest.mark.parametrize("act", [hold, suspend])
async def test_a_waiting_client_gets_what_was_held_before_the_clock_went_back(
    tmp_path: Path, act: Act
) -> None:
    """It is woken when the message is free by the new time, not when the clock is where it was."""
    clock = MovableClock()
    before = EmbeddedBroker(tmp_path / "store", clock=clock)
    await before.start()
    await before.create_topic(TopicConfig("L", (MessageType.LITE,)))
    await before.create_group(GroupConfig("G", attributes={LITE_BIND_TOPIC: "L"}))
    await subscribe(before)
    await before.send(ME, [Message("L", b"a", type=MessageType.LITE, lite_topic="room")])
    [first] = await before.pop_lite(ME, POP)
    await act(before, first.receipt)
    await before.stop()
    clock.set_wall(clock.now_ms() - 3_600_000)
    after = EmbeddedBroker(tmp_path / "store", clock=clock)
    await after.start()
    await subscribe(after)
    waiting = asyncio.ensure_future(after.pop_lite(ME, replace(POP, wait_until=clock.monotonic() + 60)))
    await turns()
    assert not waiting.done(), "it is held"
    await clock.run(31, turns)
    assert waiting.done()
    [again] = await waiting
    assert again.body == b"a"
    assert await after.ack(ME, "L", "G", [again.receipt]) == [None]
    await after.stop()
