"""Lite topics that rest cost room on the disk, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from popgate.context import Context
from popgate.filters.compiled import EVERYTHING
from popgate.lite import LITE_BIND_TOPIC, LITE_EXPIRATION, LiteAction, LiteSync
from popgate.model import GroupConfig, Message, MessageType, Pop, TopicConfig
from popgate.testing import MovableClock

ME = Context(client_id="me@host@1")
NAMES = tuple(f"room-{number:03}" for number in range(400))
CACHED, BATCH = 8, 32
DAYS = 30


async def turns() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


async def opened(path: Path, clock: MovableClock) -> EmbeddedBroker:
    broker = EmbeddedBroker(path, clock=clock, settings=EmbeddedSettings(max_lite_cached=CACHED))
    await broker.start()
    return broker


async def test_lite_topics_that_rest_are_not_in_memory_and_nothing_looks_at_them(
    tmp_path: Path, monkeypatch: Any
) -> None:
    clock = MovableClock()
    broker = await opened(tmp_path / "store", clock)
    expiring = {LITE_EXPIRATION: str(DAYS * 24 * 60)}
    await broker.create_topic(TopicConfig("L", message_types=(MessageType.LITE,), attributes=expiring))
    await broker.create_group(GroupConfig("G", attributes={LITE_BIND_TOPIC: "L"}))
    await broker.subscribe_lite(ME, LiteSync("L", "G", LiteAction.ADD, NAMES))
    for name in NAMES:
        await broker.send(ME, [Message("L", b"1", type=MessageType.LITE, lite_topic=name)])
    done = 0
    while found := await broker.pop_lite(ME, Pop("L", "G", EVERYTHING, 600_000, max_messages=BATCH)):
        assert await broker.ack(ME, "L", "G", [one.receipt for one in found]) == [None] * len(found)
        done += len(found)
        clock.advance(0.01)
    assert done == len(NAMES)
    # What is in memory has nothing to do with how many there are, but with what was under way at once.
    assert len(broker._engine.lites.topics._kept) <= CACHED + BATCH
    assert len(broker._engine.lites._places) <= CACHED + BATCH
    await broker.stop()

    broker = await opened(tmp_path / "store", clock)
    try:
        # A start reads none of them, and while they rest nobody does.
        assert (len(broker._engine.lites.topics._kept), len(broker._engine.lites._places)) == (0, 0)
        read = []
        get = broker._engine.store.get

        def counted(family: Any, key: bytes) -> bytes | None:
            read.append((family, key))
            return get(family, key)

        monkeypatch.setattr(broker._engine.store, "get", counted)
        await clock.run(24 * 3_600, turns)
        assert [key for _, key in read if b"room-" in key] == []
        # They are there all the same.
        await broker.send(ME, [Message("L", b"2", type=MessageType.LITE, lite_topic=NAMES[7])])
        assert [key for _, key in read if NAMES[7].encode() in key]
        await broker.subscribe_lite(ME, LiteSync("L", "G", LiteAction.ADD, NAMES))
        [message] = await broker.pop_lite(ME, Pop("L", "G", EVERYTHING, 600_000, max_messages=BATCH))
        assert (message.body, message.attempt) == (b"2", 1)
    finally:
        await broker.stop()
