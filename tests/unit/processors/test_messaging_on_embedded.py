"""The processor on the embedded broker: two replicas before one broker, on a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from brokers.embedded.broker import EmbeddedBroker
from popgate.context import Context
from popgate.errors import BadRequest, IllegalTransactionId, NotFound, ReceiptExpired
from popgate.lite import LITE_BIND_TOPIC, LiteAction, LiteSync
from popgate.model import (
    CustomizedRetry,
    EndTransaction,
    GroupConfig,
    Message,
    MessageType,
    Resolution,
    Sent,
    StoredMessage,
    TopicConfig,
)
from popgate.testing.clock import MovableClock
from processors.clients.client_registry import ClientKind
from processors.messaging import MessagingProcessor
from processors.requests import Receive
from tests.support.waiting import until

Found = TypeVar("Found")
ASKED = Receive("orders", "readers", invisible_ms=30_000, wait_s=0.0)
PUSHED = replace(ASKED, auto_renew=True, invisible_ms=None)


@pytest.fixture
async def embedded(tmp_path: Path, clock: MovableClock) -> AsyncIterator[EmbeddedBroker]:
    broker = EmbeddedBroker(tmp_path / "data", clock=clock)
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
async def replicas(
    embedded: EmbeddedBroker, clock: MovableClock
) -> AsyncIterator[tuple[MessagingProcessor, MessagingProcessor]]:
    one, other = MessagingProcessor(embedded, clock=clock), MessagingProcessor(embedded, clock=clock)
    await other.start()
    await one.start()
    await one.metadata.create_group(
        Context(),
        GroupConfig("readers", consume_timeout_ms=60_000, max_attempts=3, retry=CustomizedRetry((1_000,))),
    )
    yield one, other
    await one.stop()
    await other.stop()


@pytest.fixture
def one(replicas: tuple[MessagingProcessor, MessagingProcessor]) -> MessagingProcessor:
    return replicas[0]


@pytest.fixture
def other(replicas: tuple[MessagingProcessor, MessagingProcessor]) -> MessagingProcessor:
    return replicas[1]


async def send(processor: MessagingProcessor, context: Context, *messages: Message) -> list[Sent]:
    results = await processor.send(context, messages)
    assert all(isinstance(result, Sent) for result in results)
    return [result for result in results if isinstance(result, Sent)]


def made(body: bytes = b"coffee", **fields: Any) -> Message:
    return Message("orders", body, message_id=f"id-{body.decode()}", **fields)


def bodies(messages: list[StoredMessage]) -> list[bytes]:
    return [message.body for message in messages]


async def test_scenario_01_a_message_popped_through_one_replica_is_finished_through_the_other(
    one: MessagingProcessor,
    other: MessagingProcessor,
    context: Context,
    clock: MovableClock,
    make_client: Any,
) -> None:
    client = make_client(context.client_id, group="readers")
    one.clients.register(client)
    await send(one, context, made())
    (message,) = await one.receive(context, PUSHED)
    elsewhere = replace(context, peer="10.0.0.1:6000")
    other.clients.register(make_client(context.client_id, group="readers", connection="10.0.0.1:6000"))
    clock.advance(40)
    assert await other.ack(elsewhere, "orders", "readers", [message.receipt]) == [None]
    one.goodbye(context)
    other.goodbye(elsewhere)
    clock.advance(100)
    assert await one.receive(context, ASKED) == []


async def test_scenario_01_a_renewed_message_is_finished_with_its_first_handle_through_the_other_replica(
    one: MessagingProcessor,
    other: MessagingProcessor,
    context: Context,
    clock: MovableClock,
    make_client: Any,
) -> None:
    one.clients.register(make_client(context.client_id, group="readers"))
    await send(one, context, made())
    (message,) = await one.receive(context, PUSHED)
    for _ in range(3):
        clock.advance(51)
        await until(lambda: _is_renewed(one), turn=lambda: clock.advance(0))
    assert await other.receive(context, ASKED) == []
    assert await other.ack(context, "orders", "readers", [message.receipt]) == [None]


async def _is_renewed(processor: MessagingProcessor) -> bool:
    due = processor.auto_renewal.holdings.next_renewal_ms()
    return due is not None and due > processor.auto_renewal.now_ms() + 40_000


async def test_a_client_that_says_good_bye_passes_its_messages_on_at_once(
    one: MessagingProcessor,
    other: MessagingProcessor,
    context: Context,
    clock: MovableClock,
    make_client: Any,
) -> None:
    one.clients.register(make_client(context.client_id, group="readers"))
    await send(one, context, made(b"done"), made(b"open"))
    messages = {message.body: message for message in await one.receive(context, PUSHED)}
    await one.ack(context, "orders", "readers", [messages[b"done"].receipt])
    one.goodbye(context)
    (again,) = await until(lambda: other.receive(context, ASKED), turn=lambda: clock.advance(0))
    assert (again.body, again.attempt) == (b"open", 2)
    assert isinstance(
        (await one.ack(context, "orders", "readers", [messages[b"open"].receipt]))[0], ReceiptExpired
    )


async def test_scenario_03_an_undelivered_message_comes_again_as_the_same_attempt(
    one: MessagingProcessor, other: MessagingProcessor, context: Context, clock: MovableClock
) -> None:
    await send(one, context, made())
    for _ in range(5):
        messages = await one.receive(context, PUSHED)
        assert [message.attempt for message in messages] == [1]
        await one.give_back(context, "orders", "readers", messages)
    (message,) = await other.receive(context, ASKED)
    assert message.attempt == 1


async def test_a_message_given_up_by_node_js_rests_and_then_is_a_dead_letter(
    one: MessagingProcessor, context: Context, clock: MovableClock, make_client: Any
) -> None:
    context.language = "NODE_JS"
    one.clients.register(make_client(context.client_id, group="readers"))
    await send(one, context, made())
    for attempt in (1, 2, 3):
        (message,) = await until(lambda: one.receive(context, PUSHED), turn=lambda: clock.advance(0))
        assert message.attempt == attempt
        await one.change_invisible(context, "orders", "readers", message.receipt, 0)
        clock.advance(0.9)
        assert await one.receive(context, ASKED) == []
        clock.advance(0.2)
    dead = replace(ASKED, topic="%DLQ%readers", group="undertakers")

    async def found() -> list[StoredMessage]:
        try:
            return await one.receive(context, dead)
        except NotFound:
            return []

    assert bodies(await until(found, turn=lambda: clock.advance(0))) == [b"coffee"]


async def test_an_ordered_group_gives_go_one_message_of_each_message_group(
    one: MessagingProcessor, context: Context
) -> None:
    await one.metadata.create_topic(context, TopicConfig("orders", (MessageType.FIFO,), 1, 1))
    await one.metadata.create_group(context, GroupConfig("strict", ordered=True))
    await send(
        one, context, *(made(body.encode(), message_group=body[0]) for body in ("a1", "a2", "b1", "b2", "a3"))
    )
    request = replace(ASKED, group="strict", attempt_id="first")
    go = replace(context, language="GO")
    taken = await one.receive(go, request)
    assert bodies(taken) == [b"a1", b"b1"]
    assert [message.receipt for message in await one.receive(go, request)] == [m.receipt for m in taken]
    assert await one.receive(go, replace(request, attempt_id="second")) == []
    assert await one.ack(go, "orders", "strict", [taken[0].receipt]) == [None]
    assert bodies(await one.receive(go, replace(request, attempt_id="third"))) == [b"a2"]


async def test_a_delayed_message_comes_at_its_time_and_one_of_the_past_at_once(
    one: MessagingProcessor, context: Context, clock: MovableClock
) -> None:
    await send(one, context, made(b"past", deliver_at_ms=clock.now_ms() - 10_000))
    assert bodies(await one.receive(context, ASKED)) == [b"past"]
    (sent,) = await send(one, context, made(b"later", deliver_at_ms=clock.now_ms() + 5_000))
    assert sent.recall_handle
    clock.advance(4.9)
    assert await one.receive(context, ASKED) == []
    clock.advance(0.11)
    assert bodies(await until(lambda: one.receive(context, ASKED), turn=lambda: clock.advance(0))) == [
        b"later"
    ]
    with pytest.raises(NotFound):
        await one.recall(context, "orders", sent.recall_handle)


async def test_a_recalled_message_never_comes(
    one: MessagingProcessor, other: MessagingProcessor, context: Context, clock: MovableClock
) -> None:
    (sent,) = await send(one, context, made(b"later", deliver_at_ms=clock.now_ms() + 5_000))
    assert await other.recall(context, "orders", sent.recall_handle) == "id-later"
    clock.advance(10)
    assert await one.receive(context, ASKED) == []


async def test_scenario_05_a_transaction_ends_once_and_through_any_replica(
    one: MessagingProcessor, other: MessagingProcessor, context: Context
) -> None:
    (sent,) = await send(one, context, made(type=MessageType.TRANSACTION))
    assert await one.receive(context, ASKED) == []
    commit = EndTransaction("orders", sent.transaction_id, sent.message_id, Resolution.COMMIT)
    await other.end_transaction(context, commit)
    await one.end_transaction(context, commit)
    with pytest.raises(IllegalTransactionId):
        await one.end_transaction(context, replace(commit, resolution=Resolution.ROLLBACK))
    assert bodies(await one.receive(context, ASKED)) == [b"coffee"]
    assert await one.receive(context, ASKED) == []


async def test_scenario_06_a_half_message_nobody_ended_is_asked_about(
    one: MessagingProcessor, context: Context, clock: MovableClock, make_client: Any
) -> None:
    producer = make_client(context.client_id, kind=ClientKind.PRODUCER)
    one.clients.register(producer)
    await send(one, context, made(type=MessageType.TRANSACTION))
    clock.advance(7)

    async def asked() -> list[Any]:
        return list(producer.checks)

    (check,) = await until(asked, turn=lambda: clock.advance(0))
    assert (check.topic, check.message.body, check.checks) == ("orders", b"coffee", 1)
    await one.end_transaction(
        context,
        EndTransaction("orders", check.transaction_id, "id-coffee", Resolution.COMMIT, from_check=True),
    )
    assert bodies(await one.receive(context, ASKED)) == [b"coffee"]


async def test_binding_to_lite_topics_keeps_what_another_replica_changed(
    replicas: tuple[MessagingProcessor, MessagingProcessor], embedded: EmbeddedBroker
) -> None:
    """The settings that a replica keeps for a second are not written back."""
    one, other = replicas
    await one.metadata.create_topic(Context(), TopicConfig("events", message_types=(MessageType.LITE,)))
    await other._routing.group("readers")
    await one.metadata.update_group(Context(), replace(await embedded.group("readers"), max_attempts=7))
    sync = LiteSync("events", "readers", LiteAction.ADD, ("a",))
    await other.lite.sync(Context(client_id="c"), sync)
    config = await embedded.group("readers")
    assert (config.attributes[LITE_BIND_TOPIC], config.max_attempts) == ("events", 7)


async def test_a_group_that_another_replica_has_bound_stays_bound_there(
    replicas: tuple[MessagingProcessor, MessagingProcessor], embedded: EmbeddedBroker
) -> None:
    one, other = replicas
    for topic in ("events", "news"):
        await one.metadata.create_topic(Context(), TopicConfig(topic, message_types=(MessageType.LITE,)))
    await other._routing.group("readers")
    await one.lite.sync(Context(client_id="c"), LiteSync("events", "readers", LiteAction.ADD, ("a",)))
    with pytest.raises(BadRequest, match="bound to events"):
        await other.lite.sync(Context(client_id="d"), LiteSync("news", "readers", LiteAction.ADD, ("a",)))
    assert (await embedded.group("readers")).attributes[LITE_BIND_TOPIC] == "events"
