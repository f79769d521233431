from __future__ import annotations

import asyncio
from typing import Any

import pytest

from popgate.context import Context
from popgate.errors import (
    BadRequest,
    ClientNotFound,
    ClientTimeout,
    Fault,
    NotFound,
    TooManyRequests,
)
from popgate.groups.verdict import Verdict
from popgate.model import Message
from popgate.testing.clock import MovableClock
from processors.clients.client_queries import ANSWER_S, ClientQueries
from processors.clients.client_registry import ClientKind, ClientRegistry
from processors.clients.query import StackQuestion, VerifyQuestion
from processors.messaging import MessagingProcessor


@pytest.fixture
def reader(processor: MessagingProcessor, make_client: Any) -> Any:
    client = make_client("reader", group="readers", topics=frozenset({"orders"}))
    processor.clients.register(client)
    return client


async def asked(client: Any) -> Any:
    """The next question that the client got."""
    while not client.questions:
        await asyncio.sleep(0)
    return client.questions.pop()


async def test_a_client_tells_its_stack(processor: MessagingProcessor, reader: Any, context: Context) -> None:
    asking = asyncio.ensure_future(processor.client_queries.stack(context, "reader"))
    question = await asked(reader)
    assert isinstance(question, StackQuestion)
    question.answered("main: waiting")
    question.answered("too late")
    assert await asking == "main: waiting"


async def test_a_stored_message_is_consumed_and_nothing_is_taken(
    processor: MessagingProcessor, reader: Any, context: Context, message: Message
) -> None:
    await processor.send(context, [message])
    asking = asyncio.ensure_future(
        processor.client_queries.verify(context, "reader", "readers", "orders", message.message_id)
    )
    question = await asked(reader)
    assert isinstance(question, VerifyQuestion)
    assert (question.message.body, question.message.receipt) == (b"coffee", "")
    question.answered(Verdict.CONSUMED)
    assert await asking is Verdict.CONSUMED


async def test_who_does_not_answer_in_time_is_told_of(
    processor: MessagingProcessor, reader: Any, context: Context, clock: MovableClock
) -> None:
    asking = asyncio.ensure_future(processor.client_queries.stack(context, "reader"))
    question = await asked(reader)
    clock.advance(ANSWER_S - 0.01)
    await asyncio.sleep(0)
    assert not asking.done()
    clock.advance(0.02)
    with pytest.raises(ClientTimeout, match="did not answer within 5 s"):
        await asking
    assert question.settled
    question.failed(ClientNotFound("reader"))
    assert repr(processor.client_queries) == "<ClientQueries open 0>"


async def test_an_asker_that_leaves_withdraws_its_question(
    processor: MessagingProcessor, reader: Any, context: Context
) -> None:
    asking = asyncio.ensure_future(processor.client_queries.stack(context, "reader"))
    question = await asked(reader)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert question.settled
    assert repr(processor.client_queries) == "<ClientQueries open 0>"


async def test_who_is_not_there_cannot_be_asked(
    processor: MessagingProcessor, reader: Any, context: Context
) -> None:
    with pytest.raises(ClientNotFound) as unknown:
        await processor.client_queries.stack(context, "nobody")
    assert unknown.value.fault is Fault.CLIENT_NOT_FOUND
    reader.alive = False
    with pytest.raises(BadRequest) as gone:
        await processor.client_queries.stack(context, "reader")
    assert gone.value.fault is Fault.PRECONDITION_FAILED
    with pytest.raises(BadRequest):
        processor.client_queries.reconnect(context, "reader")


async def test_a_client_that_reads_nothing_is_not_asked(
    processor: MessagingProcessor, reader: Any, context: Context
) -> None:
    reader.full = True
    with pytest.raises(TooManyRequests):
        await processor.client_queries.stack(context, "reader")
    with pytest.raises(TooManyRequests):
        processor.client_queries.reconnect(context, "reader")


async def test_questions_have_a_bound(
    broker: Any, clock: MovableClock, make_client: Any, context: Context
) -> None:
    clients = ClientRegistry(clock)
    reader = make_client("reader")
    clients.register(reader)
    asking = ClientQueries(broker, clients, clock, lambda *_facts, **_names: None, most=2)
    waiting = [asyncio.ensure_future(asking.stack(context, "reader")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests, match="limit of 2"):
        await asking.stack(context, "reader")
    for question in reader.questions:
        question.answered("fine")
    assert await asyncio.gather(*waiting) == ["fine", "fine"]


async def test_only_consumers_of_the_group_consume_and_only_what_is_there(
    processor: MessagingProcessor,
    broker: Any,
    reader: Any,
    context: Context,
    make_client: Any,
    message: Message,
) -> None:
    await processor.send(context, [message])
    processor.clients.register(make_client("producer", kind=ClientKind.PRODUCER))
    with pytest.raises(BadRequest, match="is of consumer group readers"):
        await processor.client_queries.verify(context, "reader", "others", "orders", message.message_id)
    with pytest.raises(BadRequest, match="is no consumer"):
        await processor.client_queries.verify(context, "producer", "readers", "orders", message.message_id)
    broker.messages["orders"].clear()
    with pytest.raises(NotFound, match="has no message with the id"):
        await processor.client_queries.verify(context, "reader", "readers", "orders", "nothing")
    assert reader.questions == []


async def test_all_connected_clients_are_told_to_reconnect(
    processor: MessagingProcessor, reader: Any, context: Context, make_client: Any
) -> None:
    slow, gone = make_client("slow", full=True), make_client("gone", alive=False)
    processor.clients.register(slow)
    processor.clients.register(gone)
    assert processor.client_queries.reconnect_all(context) == (1, 1)
    processor.client_queries.reconnect(context, "reader")
    assert (reader.reconnects, slow.reconnects, gone.reconnects) == (2, 0, 0)
