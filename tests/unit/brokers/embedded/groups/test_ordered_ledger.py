"""What one receive of an ordered group finds: all that may go with the heads of its lanes."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Durability
from popgate.context import Context
from popgate.errors import GatewayError
from popgate.filters.compiled import EVERYTHING, compile_filter
from popgate.model import FilterKind, GroupConfig, Message, Pop, StoredMessage, TopicConfig
from popgate.testing import MovableClock
from popgate.wire.messages.properties import encode_properties

CONTEXT = Context()
BROTHERS = compile_filter(FilterKind.TAG, "brother")


class House:
    """A broker with a topic T of one queue and an ordered group G."""

    def __init__(self, broker: EmbeddedBroker, clock: MovableClock) -> None:
        self.broker = broker
        self.clock = clock

    async def send(self, *bodies: str) -> None:
        """The first letter of a body is its message group; all but those with a small s are brothers."""
        sent = await self.broker.send(CONTEXT, [_message(body) for body in bodies])
        assert not any(isinstance(result, GatewayError) for result in sent)

    async def pop(self, at_most: int, **how: object) -> list[StoredMessage]:
        request = Pop("T", "G", EVERYTHING, 10_000, max_messages=at_most, ordered=True)
        return await self.broker.pop(CONTEXT, replace(request, **how))  # type: ignore[arg-type]

    async def bodies(self, at_most: int, **how: object) -> list[str]:
        return [message.body.decode() for message in await self.pop(at_most, **how)]

    async def make_ready(self, *bodies: str) -> None:
        """Send messages that are the heads of their lanes, and have them looked at."""
        await self.send(*bodies)
        for message in await self.pop(len(bodies)):
            await self.give_back(message)

    async def give_back(self, message: StoredMessage) -> None:
        assert await self.broker.give_back(CONTEXT, "T", "G", [message.receipt]) == 1


def _message(body: str) -> Message:
    tag = "sister" if "s" in body else "brother"
    block = {"UNIQ_KEY": body, "__SHARDINGKEY": body[0], "TAGS": tag}
    return Message(
        "T",
        body.encode(),
        message_group=body[0],
        tag=tag,
        properties=encode_properties(block),
        message_id=body,
    )


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    clock = MovableClock()
    settings = EmbeddedSettings(durability=Durability.NONE)
    broker = EmbeddedBroker(tmp_path / "store", clock=clock, settings=settings)
    await broker.start()
    await broker.create_topic(TopicConfig("T", read_queues=1, write_queues=1))
    await broker.create_group(GroupConfig("G", ordered=True, max_attempts=1))
    yield House(broker, clock)
    await broker.stop()


async def test_places_of_messages_that_died_in_line_keep_nothing_back(house: House) -> None:
    await house.send("A0", "A1", "B2")
    assert await house.bodies(5, attempt_id="x") == ["A0", "A1", "B2"]
    await house.broker.commit(CONTEXT, "G", "T", "popgate", 0, 0)
    await house.send("A3", "A4", "A5")
    assert await house.bodies(5, attempt_id="x") == ["A0", "A1", "A3", "A4", "A5"]
    await house.clock.run(60, turns)
    assert (await house.broker.bounds(CONTEXT, "%DLQ%G", "popgate", 0)).maximum == 5
    await house.send("A6", "A7", "B8")
    assert await house.bodies(5, attempt_id="x") == ["B2", "A6", "A7", "B8"]


async def test_what_is_found_behind_refused_heads_goes_along_with_what_was_taken(house: House) -> None:
    await house.make_ready("B1", "C1s")
    await house.send("B2", "B3", "B4")
    assert await house.bodies(2, filter=BROTHERS) == ["B1", "B2"]
    assert await house.bodies(2, filter=BROTHERS) == []  # B1 and B2 are held


async def test_one_of_each_message_group_is_one_also_when_more_is_found_later(house: House) -> None:
    await house.make_ready("B1", "C1s")
    await house.send("B2", "D1")
    assert await house.bodies(2, filter=BROTHERS, one_per_message_group=True) == ["B1", "D1"]


async def test_nothing_goes_along_past_a_message_that_somebody_has(house: House) -> None:
    await house.send("B1", "B2", "C1s")
    first, _, last = await house.pop(3)
    await house.give_back(first)
    await house.give_back(last)
    await house.send("B3")
    assert await house.bodies(2, filter=BROTHERS) == ["B1"]


async def test_nothing_goes_along_past_a_delivered_message_that_the_filter_refuses(house: House) -> None:
    await house.send("B1", "B2s", "C1s")
    for message in await house.pop(3):
        await house.give_back(message)
    await house.send("B3")
    assert await house.bodies(2, filter=BROTHERS) == ["B1"]


async def test_nothing_goes_along_with_what_does_not_fit(house: House) -> None:
    await house.make_ready("B1", "C1s")
    await house.send("B2")
    assert await house.bodies(2, filter=BROTHERS, max_bytes=1) == ["B1"]
