"""Messages without a body: taken by compacted topics, refused by all others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from popgate.context import Context
from popgate.errors import BadRequest, Fault
from popgate.model import Message, Route, Sent, TopicConfig
from popgate.testing.clock import MovableClock
from processors.limits import Limits
from processors.messaging import MessagingProcessor

COMPACTED = TopicConfig("compacted", (), 2, 2, attributes={"cleanup.policy": "COMPACTION"})


def message(topic: str, body: bytes = b"", *, key: str = "k", message_id: str = "m") -> Message:
    return Message(topic, body, message_id=message_id, keys=(key,) if key else ())


@pytest.fixture
async def processor(tmp_path: Path):
    clock = MovableClock()
    broker = EmbeddedBroker(tmp_path / "store", clock=clock)
    await broker.start()
    processor = MessagingProcessor(broker, clock=clock, limits=Limits())
    for config in (COMPACTED, replace(COMPACTED, name="plain", attributes={})):
        await processor.metadata.create_topic(Context(), config)
    yield processor
    await broker.stop()


async def test_a_compacted_topic_takes_them_with_a_key(processor: MessagingProcessor) -> None:
    (sent,) = await processor.send(Context(), [message("compacted")])
    assert isinstance(sent, Sent)
    several = [message("compacted", b"x", message_id="a"), message("compacted", message_id="b")]
    assert all(isinstance(one, Sent) for one in await processor.send(Context(), several))
    with pytest.raises(BadRequest, match="has no key") as told:
        await processor.send(Context(), [message("compacted", key="")])
    assert told.value.fault is Fault.ILLEGAL_KEY


async def test_of_several_messages_one_without_a_key_is_stored_with_none(
    processor: MessagingProcessor,
) -> None:
    several = [message("compacted", b"x", message_id="a"), message("compacted", key="", message_id="b")]
    with pytest.raises(BadRequest, match="has no key"):
        await processor.send(Context(), several)
    bounds = await processor.offsets.bounds(Context(), "compacted", "", 0)
    assert (bounds.minimum, bounds.maximum) == (0, 0)


async def test_what_else_is_wrong_with_them_is_told(processor: MessagingProcessor) -> None:
    with pytest.raises(BadRequest, match="control character"):
        await processor.send(Context(), [message("compacted", key="a\nb")])


@pytest.mark.parametrize("topic", ["plain", "unknown"])
async def test_every_other_topic_refuses_them_and_none_is_made(
    processor: MessagingProcessor, topic: str
) -> None:
    with pytest.raises(BadRequest, match="body is empty") as told:
        await processor.send(Context(), [message(topic)])
    assert told.value.fault is Fault.BODY_EMPTY
    assert {one.name for one in await processor.metadata.topics(Context())} == {"compacted", "plain"}


async def test_a_broker_that_tells_nothing_of_them_takes_none() -> None:
    assert not Route("orders", (), ()).tombstones
