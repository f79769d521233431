"""What is held of lite topics is found in the store, too, and looking at it fills no memory."""

from __future__ import annotations

from pathlib import Path

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from popgate.context import Context
from popgate.filters.compiled import EVERYTHING
from popgate.lite import LITE_BIND_TOPIC, LiteAction, LiteSync
from popgate.model import GroupConfig, Message, MessageType, Pop, TopicConfig
from popgate.testing import MovableClock

ME = Context(client_id="me@host@1")
NAMES = tuple(f"room-{number:03}" for number in range(300))


async def test_what_left_memory_is_told_all_the_same(tmp_path: Path) -> None:
    clock = MovableClock()
    broker = EmbeddedBroker(
        tmp_path / "store", clock=clock, settings=EmbeddedSettings(max_lite_cached=4, max_lite_topics=1_000)
    )
    await broker.start()
    try:
        await broker.create_topic(TopicConfig("L", message_types=(MessageType.LITE,)))
        await broker.create_group(GroupConfig("G", attributes={LITE_BIND_TOPIC: "L"}))
        await broker.subscribe_lite(ME, LiteSync("L", "G", LiteAction.ADD, NAMES))
        for name in NAMES:
            for body in (b"1", b"2"):
                await broker.send(ME, [Message("L", body, type=MessageType.LITE, lite_topic=name)])
        taken = []
        while found := await broker.pop_lite(ME, Pop("L", "G", EVERYTHING, 600_000, max_messages=1)):
            taken += found
            clock.advance(0.01)
        assert len(taken) == len(NAMES)
        held = await broker.held("G", "L", 200)
        assert [one.receipt for one in held] == [one.receipt for one in taken[:200]]
        assert {one.waiting_behind for one in held} == {1}
        standing = await broker.standing("G", "L")
        assert (standing.lag, standing.in_flight, standing.behind) == (600, 300, 300)
        assert "places 4 " in repr(broker._engine.lites)
        assert await broker.ack(ME, "L", "G", [one.receipt for one in taken[:299]]) == [None] * 299
        [last] = await broker.held("G", "L", 200)
        assert (last.lite_topic, last.receipt) == (NAMES[299], taken[299].receipt)
    finally:
        await broker.stop()
