"""Batches in one piece, and single messages: checked like a send, counted like one."""

from __future__ import annotations

import pytest

from brokers.batches import Batch, ForwardsBatches, Single, StoredBatch
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerBusy,
    Forbidden,
    GatewayError,
    IllegalTopic,
    MessageTypeMismatch,
    Unsupported,
)
from popgate.model import Message, MessageType, Permission, Sent, TopicConfig
from popgate.testing.clock import MovableClock
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from tests.unit.processors.conftest import FakeBroker, Tally


class Forwarder(FakeBroker, ForwardsBatches):
    """Stores a batch at offset 5."""

    async def forward_batch(self, context: Context, batch: Batch) -> StoredBatch:
        await self._called("forward_batch", batch)
        return StoredBatch("fake-1", batch.queue_id, 5, "")

    async def forward_message(self, context: Context, message: Single) -> Sent:
        await self._called("forward_message", message)
        return Sent(message.message_id, "fake-1", message.queue_id, 5)


def batch(topic: str = "orders", count: int = 2) -> Batch:
    return Batch(topic, "fake", 0, b"data", count, 8)


def single(topic: str = "orders", queue_id: int = 0) -> Single:
    return Single(topic, "", queue_id, b"body", "ID", b"UNIQ_KEY\x01ID\x02")


@pytest.fixture
def broker(clock: MovableClock) -> Forwarder:
    broker = Forwarder(clock)
    for name, kinds in {"orders": (), "ordered": (MessageType.FIFO,)}.items():
        broker.kept_topics[name] = TopicConfig(name, permission=Permission.READ_WRITE, message_types=kinds)
    return broker


async def test_a_batch_is_stored_and_counted(
    processor: MessagingProcessor, broker: Forwarder, context: Context, observer: Tally
) -> None:
    assert processor.batches.supported
    assert await processor.batches.forward(context, batch()) == StoredBatch("fake-1", 0, 5, "")
    assert broker.asked("forward_batch") == [batch()]
    assert observer.of("sent") == [("orders", 2, 8, 0.0)]


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (batch("or ders"), IllegalTopic),
        (batch("ordered"), MessageTypeMismatch),
        (batch(count=Limits().max_messages_per_send + 1), BadRequest),
    ],
)
async def test_what_cannot_be_stored_is_not_forwarded(
    processor: MessagingProcessor,
    broker: Forwarder,
    context: Context,
    observer: Tally,
    refused: Batch,
    error: type[GatewayError],
) -> None:
    with pytest.raises(error):
        await processor.batches.forward(context, refused)
    assert broker.asked("forward_batch") == []
    assert [operation for operation, _ in observer.of("failed")] == ["send"]


async def test_what_the_broker_raises_is_counted(
    processor: MessagingProcessor, broker: Forwarder, context: Context, observer: Tally
) -> None:
    broker.failure = BrokerBusy("wait")
    with pytest.raises(BrokerBusy):
        await processor.batches.forward(context, batch())
    assert observer.of("failed") == [("send", BrokerBusy.fault)]
    assert observer.of("sent") == []


async def test_a_broker_may_not_take_batches(clock: MovableClock, observer: Tally, context: Context) -> None:
    processor = MessagingProcessor(FakeBroker(clock), clock=clock, observer=observer)
    assert not processor.batches.supported
    with pytest.raises(Unsupported):
        await processor.batches.forward(context, batch())
    with pytest.raises(Unsupported):
        await processor.batches.forward_message(context, single())


async def test_a_message_is_stored_and_counted(
    processor: MessagingProcessor, broker: Forwarder, context: Context, observer: Tally
) -> None:
    stored = await processor.batches.forward_message(context, single())
    assert stored == Sent("ID", "fake-1", 0, 5)
    assert broker.asked("forward_message") == [single()]
    assert observer.of("sent") == [("orders", 1, 4, 0.0)]


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (single("or ders"), IllegalTopic),
        (single("ordered"), MessageTypeMismatch),
        (single(queue_id=99), BadRequest),
        (single("closed"), Forbidden),
    ],
)
async def test_a_message_that_cannot_be_stored_is_not_forwarded(
    processor: MessagingProcessor,
    broker: Forwarder,
    context: Context,
    observer: Tally,
    refused: Single,
    error: type[GatewayError],
) -> None:
    """As a send of the same message."""
    broker.kept_topics["closed"] = TopicConfig("closed", permission=Permission.READ)
    with pytest.raises(error) as forwarded:
        await processor.batches.forward_message(context, refused)
    assert broker.asked("forward_message") == []
    message = Message(
        refused.topic, b"body", message_id="ID", properties=b"x\x01y\x02", queue_id=refused.queue_id
    )
    with pytest.raises(error) as sent:
        await processor.send(context, [message])
    assert str(forwarded.value) == str(sent.value)
    assert [operation for operation, _ in observer.of("failed")] == ["send", "send"]


async def test_what_the_broker_raises_for_a_message_is_counted(
    processor: MessagingProcessor, broker: Forwarder, context: Context, observer: Tally
) -> None:
    broker.failure = BrokerBusy("wait")
    with pytest.raises(BrokerBusy):
        await processor.batches.forward_message(context, single())
    assert observer.of("failed") == [("send", BrokerBusy.fault)]
    assert observer.of("sent") == []
