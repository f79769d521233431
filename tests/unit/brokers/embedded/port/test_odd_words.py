"""What only classic clients, and gateways that share the broker, can say: any block of properties."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.storage.store import Durability
from popgate.context import Context
from popgate.errors import BadRequest
from popgate.filters.compiled import EVERYTHING
from popgate.model import GroupConfig, Message, Pop, SendBack, Sent, TopicConfig
from popgate.testing import MovableClock
from popgate.wire.messages.properties import find_property

ME = Context(client_id="me")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    """A message of the topic "t" is a dead letter of the group "g", and was redriven."""
    broker = EmbeddedBroker(tmp_path / "data", clock=MovableClock(), durability=Durability.NONE)
    await broker.start()
    await broker.create_topic(TopicConfig("t", read_queues=1, write_queues=1))
    await broker.create_group(GroupConfig("g"))
    await broker.send(ME, [Message("t", b"body", "id")])
    [message] = await broker.pop(ME, Pop("t", "g", EVERYTHING, 10_000))
    await broker.dead_letter(ME, "t", "g", message.receipt)
    await broker.redrive(ME, "g", broker.name, 0, [0])
    yield broker
    await broker.stop()


@pytest.mark.parametrize("start", [-1, -(1 << 70), 1 << 64, 1 << 70])
async def test_standings_begin_at_a_number_that_can_be(broker: EmbeddedBroker, start: int) -> None:
    with pytest.raises(BadRequest, match=f"not from {start}"):
        await broker.standings(start, 5)
    assert await broker.standings((1 << 64) - 1, 5) == ([], None)


@pytest.mark.parametrize(
    ("begin", "end", "offsets"),
    [(-1, 99, [0]), (-(1 << 70), 1 << 70, [0]), (1, 1 << 70, []), (1 << 70, 1 << 71, []), (5, -5, [])],
)
async def test_redriven_dead_letters_are_found_by_any_bounds(
    broker: EmbeddedBroker, begin: int, end: int, offsets: list[int]
) -> None:
    assert list(await broker.redriven("g", broker.name, 0, begin, end)) == offsets


@pytest.mark.parametrize("block", [b"UNIQ_KEY\x01a\x01b\x02", b"UNIQ_KEY\x01\x02", b"\x01\x02"])
async def test_a_message_with_an_id_that_cannot_be_told_dies_as_others_do(
    broker: EmbeddedBroker, block: bytes
) -> None:
    """Once it was stored, the broker must not fail by it again and again."""
    await broker.send(ME, [Message("t", b"odd", "odd", properties=block)])
    found = await broker.pop(ME, Pop("t", "g", EVERYTHING, 10_000))
    odd = next(one for one in found if one.body == b"odd")
    await broker.dead_letter(ME, "t", "g", odd.receipt)
    dead = await broker.pull(
        *(ME, "%DLQ%g", broker.name, 0, 0),
        max_messages=9,
        max_bytes=1 << 20,
        passing=EVERYTHING,
        wait_until=None,
    )
    assert [one.body for one in dead.messages] == [b"body", b"odd"]
    await broker.send(ME, [Message("t", b"next", "next")])


async def test_a_topic_that_cannot_be_told_is_that_of_the_message(broker: EmbeddedBroker) -> None:
    """Neither a message that is sent back nor a send of the same moment fails by it."""
    block = b"UNIQ_KEY\x01odd\x02RETRY_TOPIC\x01a\x01b\x02"
    [sent] = await broker.send(ME, [Message("t", b"odd", "odd", properties=block)])
    assert isinstance(sent, Sent)
    back = broker.send_back(
        ME, SendBack("g", broker.name, sent.commit_offset, delay_level=-1, max_attempts=9)
    )
    _, [other] = await asyncio.gather(back, broker.send(ME, [Message("t", b"next", "next")]))
    assert isinstance(other, Sent)
    dead = await broker.pull(
        *(ME, "%DLQ%g", broker.name, 0, 1),
        max_messages=9,
        max_bytes=1 << 20,
        passing=EVERYTHING,
        wait_until=None,
    )
    assert [find_property(one.properties, b"RETRY_TOPIC") for one in dead.messages] == [b"t"]
    await broker.send_back(ME, SendBack("g", broker.name, sent.commit_offset, delay_level=1, max_attempts=9))
