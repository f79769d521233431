"""brokers.embedded.groups.receipts: a late acknowledgement is refused, whatever became of the message."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.groups import dead_letters
from popgate.context import Context
from popgate.errors import ReceiptExpired
from popgate.filters.compiled import EVERYTHING
from popgate.lite import LITE_BIND_TOPIC, LiteAction, LiteSync
from popgate.model import GroupConfig, Message, MessageType, Pop, TopicConfig
from popgate.testing import MovableClock
from tests.support.waiting import until

ME = Context(client_id="me@host@1")
HELD_S = 30


async def until_dead_letters(broker: EmbeddedBroker, clock: MovableClock, count: int) -> None:
    """Let the invisible time end."""
    clock.advance(HELD_S)
    await until(
        lambda: broker.figures()["dead_letters_total"] == count, turn=lambda: clock.advance(0), pause_s=0.001
    )


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def broker(tmp_path: Path, clock: MovableClock) -> AsyncIterator[EmbeddedBroker]:
    broker = EmbeddedBroker(tmp_path / "store", clock=clock)
    await broker.start()
    yield broker
    await broker.stop()


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_late_acknowledgement_of_the_last_attempt_is_refused(
    broker: EmbeddedBroker, clock: MovableClock, ordered: bool
) -> None:
    """The message is a dead letter: to say that it was acknowledged would be wrong."""
    await broker.create_topic(TopicConfig("T"))
    await broker.create_group(GroupConfig("G", ordered=ordered, max_attempts=1))
    await broker.send(ME, [Message("T", b"late"), Message("T", b"in time")])
    late, in_time = [
        message
        for _ in range(2)
        for message in await broker.pop(ME, Pop("T", "G", EVERYTHING, HELD_S * 1_000, max_messages=2))
    ][:2]
    assert await broker.ack(ME, "T", "G", [in_time.receipt]) == [None]
    await until_dead_letters(broker, clock, 1)
    refused, again = await broker.ack(ME, "T", "G", [late.receipt, in_time.receipt])
    assert isinstance(refused, ReceiptExpired)
    assert again is None
    with pytest.raises(ReceiptExpired):
        await broker.change_invisible(ME, "T", "G", late.receipt, 1_000)


async def test_the_same_of_a_lite_topic(broker: EmbeddedBroker, clock: MovableClock) -> None:
    await broker.create_topic(TopicConfig("T", (MessageType.LITE,)))
    await broker.create_group(GroupConfig("G", max_attempts=1, attributes={LITE_BIND_TOPIC: "T"}))
    await broker.subscribe_lite(ME, LiteSync("T", "G", LiteAction.ADD, ("room",)))
    await broker.send(ME, [Message("T", b"late", type=MessageType.LITE, lite_topic="room")])
    (late,) = await broker.pop_lite(ME, Pop("T", "G", EVERYTHING, HELD_S * 1_000))
    await until_dead_letters(broker, clock, 1)
    (refused,) = await broker.ack(ME, "T", "G", [late.receipt])
    assert isinstance(refused, ReceiptExpired)


async def test_only_the_newest_dead_letters_are_remembered_for_that(
    broker: EmbeddedBroker, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "MOST_MOVED", 2)
    await broker.create_topic(TopicConfig("T", read_queues=1, write_queues=1))
    await broker.create_group(GroupConfig("G", max_attempts=1))
    await broker.send(ME, [Message("T", b"%d" % number) for number in range(3)])
    held = await broker.pop(ME, Pop("T", "G", EVERYTHING, HELD_S * 1_000))
    await until_dead_letters(broker, clock, 3)
    answers = await broker.ack(ME, "T", "G", [message.receipt for message in held])
    assert [type(answer) for answer in answers] == [type(None), ReceiptExpired, ReceiptExpired]


@pytest.mark.parametrize("held", [False, True])
async def test_what_was_moved_to_classic_consumers_is_acknowledged_by_them_only(
    broker: EmbeddedBroker, clock: MovableClock, held: bool
) -> None:
    await broker.create_topic(TopicConfig("T", read_queues=1, write_queues=1))
    await broker.create_group(GroupConfig("G"))
    await broker.send(ME, [Message("T", b"moved"), Message("T", b"finished")])
    moved, finished = await broker.pop(ME, Pop("T", "G", EVERYTHING, HELD_S * 1_000))
    assert await broker.ack(ME, "T", "G", [finished.receipt]) == [None]
    if not held:
        clock.advance(HELD_S)
    assert (await broker.reclaim(ME, "G", "T", held=held)).moved == 1
    refused, again = await broker.ack(ME, "T", "G", [moved.receipt, finished.receipt])
    assert isinstance(refused, ReceiptExpired)
    assert again is None
