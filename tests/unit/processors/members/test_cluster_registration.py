from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brokers.client_registration import AsksClients, ConnectedClient, RegistersClients
from popgate.context import Context
from popgate.errors import BadRequest, ClientNotFound, TooManyRequests, Unsupported
from popgate.groups.verdict import Verdict
from popgate.model import FilterKind, Message, MessageType, StoredMessage
from popgate.testing.clock import MovableClock
from processors.clients.client_registry import ClientKind
from processors.clients.query import RunningInfoQuestion, StackQuestion, VerifyQuestion
from processors.messaging import MessagingProcessor
from tests.support.waiting import until

STORED = StoredMessage("orders", "b", 0, 0, 0, 0, 0, 0, "", 0, "", b"whole", b"")


@pytest.fixture
def cluster(broker: Any, processor: MessagingProcessor) -> Any:
    """The fake broker, of a cluster that wants to know its clients; and the processor of it."""

    class Knowing(type(broker), RegistersClients):  # type: ignore[misc]
        here: list[ConnectedClient]
        gone: list[str]
        asker: AsksClients

        def client_is_here(self, client: ConnectedClient) -> None:
            self.here.append(client)

        def client_left(self, key: str) -> None:
            self.gone.append(key)

        def on_question(self, asker: AsksClients) -> None:
            self.asker = asker

    knowing = Knowing(broker.clock)
    knowing.here, knowing.gone = [], []
    return knowing


@pytest.fixture
async def gateway(cluster: Any, clock: MovableClock) -> Any:
    processor = MessagingProcessor(cluster, clock=clock)
    await processor.start()
    yield processor
    await processor.stop()


async def test_the_cluster_is_told_of_consumers_with_their_filters(
    cluster: Any, gateway: MessagingProcessor, make_client: Any
) -> None:
    filters = {"orders": (FilterKind.TAG, "a || b")}
    for name, kind in (("push", ClientKind.PUSH_CONSUMER), ("simple", ClientKind.SIMPLE_CONSUMER)):
        gateway.clients.register(
            make_client(name, kind=kind, group="g", topics=frozenset(filters), subscriptions=filters)
        )
    assert cluster.here == [
        ConnectedClient("push", "g", True, frozenset({"orders"}), frozenset(), filters, "JAVA", "5.0.7"),
        ConnectedClient("simple", "g", False, frozenset({"orders"}), frozenset(), filters, "JAVA", "5.0.7"),
    ]


async def test_scenario_06_the_cluster_is_told_of_a_producer_before_its_half_message_is_sent(
    cluster: Any, gateway: MessagingProcessor, make_client: Any
) -> None:
    gateway.clients.register(make_client("client", kind=ClientKind.PRODUCER, topics=frozenset({"bills"})))
    half = Message("orders", b"half", type=MessageType.TRANSACTION, message_id="M")
    await gateway.send(Context(client_id="client"), [half, half])
    assert [client.topics for client in cluster.here] == [{"bills"}, {"bills", "orders"}]
    assert [client.group for client in cluster.here] == ["", ""]


async def test_a_producer_without_a_stream_is_asked_nothing_and_a_consumer_stays_until_it_is_silent(
    cluster: Any, gateway: MessagingProcessor, make_client: Any, clock: MovableClock
) -> None:
    producer = make_client("producer", kind=ClientKind.PRODUCER, topics=frozenset({"orders"}))
    consumer = make_client("consumer", group="g")
    for client in (producer, consumer):
        gateway.clients.register(client)
        client.alive = False
        gateway.clients.disconnected(client)
    assert cluster.gone == ["producer"]
    gateway.clients.produces("producer", "bills")
    assert len(cluster.here) == 2
    clock.advance(200)
    gateway.clients.expire(clock.monotonic())
    assert "consumer" in cluster.gone


async def test_the_end_of_an_older_stream_takes_nobody_away(
    cluster: Any, gateway: MessagingProcessor, make_client: Any
) -> None:
    old, new = (make_client("p", kind=ClientKind.PRODUCER, topics=frozenset({"orders"})) for _ in range(2))
    gateway.clients.register(old)
    gateway.clients.register(new)
    gateway.clients.disconnected(old)
    assert cluster.gone == []
    gateway.goodbye(Context(client_id="p"))
    assert cluster.gone == ["p"]


async def test_scenario_14_the_cluster_asks_a_client_for_its_stack_and_makes_it_consume(
    cluster: Any, gateway: MessagingProcessor, make_client: Any
) -> None:
    client = make_client("c", group="g")
    gateway.clients.register(client)
    stack = asyncio.ensure_future(cluster.asker.stack("c"))
    consumed = asyncio.ensure_future(cluster.asker.consume("c", "g", STORED))
    while len(client.questions) < 2:
        await asyncio.sleep(0)
    first, second = client.questions
    assert isinstance(first, StackQuestion)
    assert isinstance(second, VerifyQuestion)
    assert second.message is STORED
    first.answered("main: waiting")
    second.answered(Verdict.CORRUPTED)
    assert await stack == "main: waiting"
    assert await consumed is Verdict.CORRUPTED


async def test_scenario_14_the_cluster_asks_a_client_what_it_runs(
    cluster: Any, gateway: MessagingProcessor, make_client: Any
) -> None:
    client = make_client("c", group="g")
    gateway.clients.register(client)
    asked = asyncio.ensure_future(cluster.asker.running_info("c", "g", with_stacks=True))
    await until(lambda: client.questions)
    (question,) = client.questions
    assert isinstance(question, RunningInfoQuestion)
    assert question.with_stacks
    question.answered(b"info")
    assert await asked == b"info"
    # A client of another protocol has no such question.
    asked = asyncio.ensure_future(cluster.asker.running_info("c", "g", with_stacks=True))
    await until(lambda: len(client.questions) == 2)
    client.questions[1].failed(Unsupported("to ask that"))
    assert await asked is None
    with pytest.raises(ClientNotFound):
        await cluster.asker.running_info("nobody", "g", with_stacks=False)
    with pytest.raises(BadRequest, match="not of consumer group 'other'"):
        await cluster.asker.running_info("c", "other", with_stacks=False)
    client.full = True
    with pytest.raises(TooManyRequests):
        await cluster.asker.running_info("c", "g", with_stacks=False)


async def test_what_cannot_be_asked_is_refused(
    cluster: Any, gateway: MessagingProcessor, make_client: Any
) -> None:
    with pytest.raises(ClientNotFound):
        await cluster.asker.stack("nobody")
    client = make_client("c", group="g")
    gateway.clients.register(client)
    with pytest.raises(BadRequest, match="is of consumer group g, not of consumer group 'h'"):
        await cluster.asker.consume("c", "h", STORED)
    client.alive = False
    with pytest.raises(BadRequest, match="no open stream"):
        await cluster.asker.stack("c")


async def test_a_broker_that_knows_no_clients_is_told_nothing(
    processor: MessagingProcessor, make_client: Any
) -> None:
    await processor.start()
    client = make_client("c", group="g")
    processor.clients.register(client)
    processor.clients.unregister("c")
    assert "not wanted" in repr(processor._registration)
