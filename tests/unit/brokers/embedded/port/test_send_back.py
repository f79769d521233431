"""What is sent back: what the contract cannot see, that is failures, crashes and properties without room."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from brokers.capabilities import Redriven
from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Durability
from popgate.context import Context
from popgate.errors import BrokerUnavailable, TopicNotFound
from popgate.filters.compiled import EVERYTHING
from popgate.model import GroupConfig, Message, Pop, SendBack, Sent, StoredMessage, TopicConfig
from popgate.testing import MovableClock
from popgate.testing.crash_copy import copy_as_after_a_crash
from popgate.wire.messages.properties import LONGEST_BLOCK, decode_properties, encode_properties

CONTEXT = Context(client_id="me@host@1")
RETRIES = "%RETRY%g"


class FullDisk:
    """A database that reads and closes, but cannot be written."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def write(self, *batch: Any) -> None:
        raise OSError(28, "No space left on device")


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


async def opened(path: Path, clock: MovableClock) -> EmbeddedBroker:
    broker = EmbeddedBroker(path, clock=clock, settings=EmbeddedSettings(durability=Durability.SYNC))
    await broker.start()
    return broker


async def pulled(broker: EmbeddedBroker, topic: str) -> list[StoredMessage]:
    found = await broker.pull(
        CONTEXT,
        *(topic, "", 0, 0),
        max_messages=32,
        max_bytes=1 << 24,
        passing=EVERYTHING,
        wait_until=None,
    )
    return found.messages


@pytest.fixture
async def broker(tmp_path: Path, clock: MovableClock) -> Any:
    made = await opened(tmp_path / "first", clock)
    await made.create_topic(TopicConfig("T", read_queues=1, write_queues=1))
    await made.create_group(GroupConfig("g"))
    yield made
    await made.stop()


async def sent(broker: EmbeddedBroker, **properties: str) -> StoredMessage:
    block = encode_properties({"UNIQ_KEY": "id", **properties})
    (told,) = await broker.send(CONTEXT, [Message("T", b"a", message_id="id", properties=block)])
    assert isinstance(told, Sent)
    return (await pulled(broker, "T"))[0]


async def later(broker: EmbeddedBroker, clock: MovableClock) -> list[StoredMessage]:
    """What came again after its delay."""
    clock.advance(1)
    async with asyncio.timeout(60):
        while not (found := await pulled(broker, RETRIES)):
            await asyncio.sleep(0.001)
            clock.advance(0)
    return found


async def test_what_was_answered_is_there_after_a_crash(
    broker: EmbeddedBroker, tmp_path: Path, clock: MovableClock
) -> None:
    message = await sent(broker)
    await broker.send_back(CONTEXT, SendBack("g", broker.name, message.commit_offset, 1))
    await broker.send_back(CONTEXT, SendBack("g", broker.name, message.commit_offset, -1))
    copy_as_after_a_crash(tmp_path / "first", tmp_path / "second")
    again = await opened(tmp_path / "second", clock)
    assert [one.reconsume_times for one in await pulled(again, "%DLQ%g")] == [1]
    assert await pulled(again, RETRIES) == []
    assert [(one.body, one.reconsume_times) for one in await later(again, clock)] == [(b"a", 1)]
    await again.stop()


async def test_nothing_is_half_done_where_it_cannot_be_written(
    broker: EmbeddedBroker, clock: MovableClock
) -> None:
    message = await sent(broker)
    store = broker._engine.store
    healthy = store._db
    store._db = FullDisk(healthy)  # type: ignore[assignment]
    request = SendBack("g", broker.name, message.commit_offset, 1)
    with pytest.raises(BrokerUnavailable):
        await broker.send_back(CONTEXT, request)
    with pytest.raises(BrokerUnavailable):
        await broker.send_back(CONTEXT, request)
    store._db = healthy
    clock.advance(10)
    with pytest.raises(TopicNotFound):
        await broker.bounds(CONTEXT, RETRIES, "", 0)
    await broker.send_back(CONTEXT, request)
    assert len(await later(broker, clock)) == 1


@pytest.mark.parametrize("spare", [0, 60, 1_000])
async def test_a_message_without_room_for_more_properties_comes_again_all_the_same(
    broker: EmbeddedBroker, clock: MovableClock, spare: int
) -> None:
    size = LONGEST_BLOCK - len(encode_properties({"UNIQ_KEY": "id", "big": ""})) - spare - 16
    message = await sent(broker, big="x" * size)
    request = SendBack("g", broker.name, message.commit_offset, 1, member="m" * 20)
    await broker.send_back(CONTEXT, request)
    (again,) = await later(broker, clock)
    found = decode_properties(again.properties)
    assert (again.body, again.reconsume_times, len(found["big"])) == (b"a", 1, size)
    assert ("RETRY_TOPIC" in found, "ORIGIN_MESSAGE_ID" in found) == (spare > 0, spare > 60)
    assert found.get("RETRY_MEMBER") == (request.member if spare else None)


@pytest.mark.parametrize("level", [-1, 1])
async def test_a_message_whose_properties_end_without_a_separator_and_fill_a_record_comes_again(
    broker: EmbeddedBroker, clock: MovableClock, level: int
) -> None:
    """As some clients write them: nothing is dropped from the block, so it does not become longer."""
    block = b"UNIQ_KEY\x01id\x02big\x01".ljust(LONGEST_BLOCK, b"x")
    await broker.send(CONTEXT, [Message("T", b"a", message_id="id", properties=block)])
    (message,) = await pulled(broker, "T")
    sending = broker.send(CONTEXT, [Message("T", b"b", message_id="another")])
    back = broker.send_back(CONTEXT, SendBack("g", broker.name, message.commit_offset, level))
    await asyncio.gather(sending, back)
    (again,) = await (later(broker, clock) if level > 0 else pulled(broker, "%DLQ%g"))
    assert (again.body, again.properties) == (b"a", block)


@pytest.mark.parametrize(("level", "most"), [(-1, None), (0, None), (5, None), (0, (1 << 31) - 1)])
async def test_a_message_that_claims_to_have_come_as_often_as_can_be_said_becomes_a_dead_letter(
    broker: EmbeddedBroker, level: int, most: int | None
) -> None:
    often = (1 << 31) - 1
    await broker.send(CONTEXT, [Message("T", b"a", message_id="id", attempt=often)])
    (message,) = await pulled(broker, "T")
    sending = broker.send(CONTEXT, [Message("T", b"b", message_id="another")])
    back = broker.send_back(CONTEXT, SendBack("g", broker.name, message.commit_offset, level, most))
    await asyncio.gather(sending, back)
    assert [(one.body, one.reconsume_times) for one in await pulled(broker, "%DLQ%g")] == [(b"a", often)]
    assert [one.body for one in await pulled(broker, "T")] == [b"a", b"b"]


async def test_what_an_orderly_consumer_gives_up_at_once_is_a_dead_letter(broker: EmbeddedBroker) -> None:
    await broker.create_topic(TopicConfig(RETRIES, read_queues=1, write_queues=1))
    given_up = Message(RETRIES, b"a", message_id="id", may_come_again=True)
    await broker.send(CONTEXT, [given_up])
    assert len(await pulled(broker, RETRIES)) == 1
    await broker.lock(CONTEXT, "g", "me", [("T", broker.name, 0)])
    await broker.send(CONTEXT, [given_up])
    assert len(await pulled(broker, RETRIES)) == 1
    assert [(one.body, one.reconsume_times) for one in await pulled(broker, "%DLQ%g")] == [(b"a", 1)]


@pytest.mark.parametrize("spare", [40, 1_000])
async def test_what_was_sent_back_is_redriven_to_where_it_is_pulled_from_whatever_its_properties_say(
    broker: EmbeddedBroker, spare: int
) -> None:
    size = LONGEST_BLOCK - len(encode_properties({"UNIQ_KEY": "id", "big": ""})) - spare
    message = await sent(broker, big="x" * size)
    await broker.send_back(CONTEXT, SendBack("g", broker.name, message.commit_offset, -1))
    (done,) = await broker.redrive(CONTEXT, "g", "", 0, [0])
    assert isinstance(done, Redriven)
    assert done.retry_topic == RETRIES
    assert len(await pulled(broker, RETRIES)) == 1


async def test_what_somebody_sent_on_and_popped_is_redriven_to_where_it_is_popped_from(
    broker: EmbeddedBroker,
) -> None:
    await sent(broker, ORIGIN_MESSAGE_ID="of another group", RETRY_TOPIC="T")
    pop = Pop("T", "g", EVERYTHING, 10_000)
    (popped,) = await broker.pop(CONTEXT, pop)
    await broker.dead_letter(CONTEXT, "T", "g", popped.receipt)
    (done,) = await broker.redrive(CONTEXT, "g", "", 0, [0])
    assert isinstance(done, Redriven)
    assert done.retry_topic != RETRIES
    (again,) = await broker.pop(CONTEXT, pop)
    assert again.body == b"a"
