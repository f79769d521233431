from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from popgate.context import Context, Principal
from popgate.errors import (
    BadRequest,
    BrokerBusy,
    BrokerUnavailable,
    Fault,
    Forbidden,
    IllegalReceipt,
    IllegalTopic,
    IllegalTransactionId,
    MessageTypeMismatch,
    NotFound,
    ReceiptExpired,
    TooManyRequests,
    TopicNotFound,
)
from popgate.kinds import Action, Resource
from popgate.model import (
    EndTransaction,
    GroupConfig,
    Message,
    MessageType,
    Permission,
    Queue,
    Resolution,
    Sent,
    TopicConfig,
)
from popgate.testing.clock import MovableClock
from processors.clients.client_registry import ClientKind
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from processors.policies.registry import Policies
from processors.requests import Receive

Settle = Callable[[], Awaitable[None]]
Make = Callable[..., MessagingProcessor]
AT_ONCE = Receive("orders", "readers", invisible_ms=30_000, wait_s=0.0)


class FirstQueue:
    """A policy of an operator."""

    def pick(self, message: Message, queues: Sequence[Queue], now: float) -> Queue:
        return queues[0]


def batch(count: int, **fields: Any) -> list[Message]:
    return [Message("orders", b"body", message_id=f"m{n}", **fields) for n in range(count)]


# -- send ---------------------------------------------------------------------------------------


async def test_scenario_15_a_batch_has_one_result_for_each_message(
    processor: MessagingProcessor, context: Context, observer: Any
) -> None:
    results = await processor.send(context, batch(5))
    assert [result.message_id for result in results if isinstance(result, Sent)] == [
        "m0",
        "m1",
        "m2",
        "m3",
        "m4",
    ]
    assert observer.of("sent") == [("orders", 5, 20, 0.0)]


async def test_one_bad_message_of_a_batch_stores_nothing(
    processor: MessagingProcessor, context: Context, broker: Any, observer: Any
) -> None:
    messages = batch(3)
    messages[2].body = b""
    with pytest.raises(BadRequest, match="empty"):
        await processor.send(context, messages)
    assert broker.asked("send") == []
    assert observer.of("failed") == [("send", Fault.BODY_EMPTY)]


async def test_a_message_reaches_the_broker_with_its_queue_type_and_block(
    processor: MessagingProcessor, context: Context, broker: Any
) -> None:
    (result,) = await processor.send(context, batch(1, message_group="g"))
    assert isinstance(result, Sent)
    ((message,),) = broker.asked("send")
    assert message.type is MessageType.FIFO
    assert message.queue_id == result.queue_id >= 0
    assert b"UNIQ_KEY\x01m0\x02" in message.properties


async def test_a_type_that_the_topic_does_not_take_is_refused(
    make_processor: Make, context: Context, broker: Any
) -> None:
    broker.kept_topics["orders"] = TopicConfig("orders", (MessageType.DELAY,))
    with pytest.raises(MessageTypeMismatch, match="takes DELAY messages, this one is FIFO"):
        await make_processor().send(context, batch(1, message_group="g"))
    results = await make_processor(Limits(check_message_types=False)).send(context, batch(1))
    assert isinstance(results[0], Sent)


async def test_scenario_28_the_longest_delay_is_the_lower_of_the_setting_and_the_broker(
    processor: MessagingProcessor, context: Context, broker: Any, clock: MovableClock
) -> None:
    broker.traits = replace(broker.traits, max_delay_ms=5_000)
    with pytest.raises(BadRequest, match=r"the longest delay is 5000 ms \(5 s\)"):
        await processor.send(context, batch(1, deliver_at_ms=clock.now_ms() + 5_001))
    await processor.send(context, batch(1, deliver_at_ms=clock.now_ms() + 5_000))
    broker.traits = replace(broker.traits, max_delay_ms=1 << 50)
    with pytest.raises(BadRequest, match="the longest delay is 86400000 ms"):
        await processor.send(context, batch(1, deliver_at_ms=clock.now_ms() + 86_400_001))


async def test_a_broker_that_knows_better_chooses_the_queues_unless_an_operator_does(
    make_processor: Make, context: Context, broker: Any
) -> None:
    broker.traits = replace(broker.traits, chooses_queues=True)
    house, own = make_processor(), make_processor(policies=Policies(queues=FirstQueue()))
    for processor in (house, own):
        await processor.send(context, batch(1))
    (left,), (chosen,) = broker.asked("send")
    assert (left.broker, left.queue_id) == ("", -1)
    assert chosen.queue_id == 0


async def test_a_send_to_an_unknown_topic_is_topic_not_found_where_topics_are_not_made(
    make_processor: Make, context: Context
) -> None:
    processor = make_processor(Limits(auto_create_topics=False))
    with pytest.raises(TopicNotFound):
        await processor.send(context, [Message("fresh", b"b", message_id="m")])


async def test_a_topic_that_went_away_elsewhere_is_made_again_by_the_next_send(
    processor: MessagingProcessor, context: Context, broker: Any
) -> None:
    await processor.send(context, batch(1))
    broker.failure = TopicNotFound("orders")
    del broker.kept_topics["orders"]
    with pytest.raises(TopicNotFound):
        await processor.send(context, batch(1))
    broker.failure = None
    await processor.send(context, batch(1))
    assert "orders" in broker.kept_topics


async def test_a_door_may_send_to_topics_of_the_system(
    processor: MessagingProcessor, context: Context, broker: Any
) -> None:
    trace = Message("RMQ_SYS_TRACE_TOPIC", b"trace", message_id="m")
    with pytest.raises(IllegalTopic):
        await processor.send(context, [trace])
    assert broker.asked("send") == []
    (sent,) = await processor.send(context, [trace], system=True)
    assert isinstance(sent, Sent)
    assert "RMQ_SYS_TRACE_TOPIC" in broker.kept_topics
    with pytest.raises(IllegalTopic):
        await processor.send(context, [Message("or ders", b"x", message_id="m")], system=True)


async def test_a_topic_that_is_not_writable_is_forbidden(
    processor: MessagingProcessor, context: Context, broker: Any
) -> None:
    broker.kept_topics["orders"] = TopicConfig("orders", permission=Permission.READ)
    with pytest.raises(Forbidden, match="no writable queue"):
        await processor.send(context, batch(1))


async def test_scenario_06_who_sends_transactions_can_be_asked_about_them(
    processor: MessagingProcessor, context: Context, make_client: Any
) -> None:
    producer = make_client(context.client_id, kind=ClientKind.PRODUCER)
    processor.clients.register(producer)
    await processor.send(context, batch(1))
    assert processor.clients.producers_of("orders") == []
    await processor.send(context, batch(1, type=MessageType.TRANSACTION))
    assert processor.clients.producers_of("orders") == [producer]


async def test_a_failure_of_one_message_is_its_result_and_is_counted(
    processor: MessagingProcessor,
    context: Context,
    broker: Any,
    observer: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def half(_context: Context, _messages: object) -> list[object]:
        return [Sent("m0", "fake", 0, 0), BrokerBusy("later")]

    monkeypatch.setattr(broker, "send", half)
    results = await processor.send(context, batch(2))
    assert isinstance(results[1], BrokerBusy)
    assert observer.of("failed") == [("send", Fault.BROKER_BUSY)]
    assert observer.of("sent")[0][1] == 1


# -- receive ------------------------------------------------------------------------------------


async def test_messages_come_with_their_handles(
    processor: MessagingProcessor, context: Context, observer: Any
) -> None:
    await processor.send(context, batch(3))
    messages = await processor.receive(context, AT_ONCE)
    assert [message.attempt for message in messages] == [1, 1, 1]
    assert all(message.receipt for message in messages)
    assert observer.of("received") == [("orders", "readers", 3, 12, 0.0)]


async def test_scenario_25_an_empty_poll_is_a_normal_answer_before_the_deadline(
    processor: MessagingProcessor, context: Context, clock: MovableClock, settle: Settle, observer: Any
) -> None:
    context.deadline = clock.monotonic() + 5.0
    poll = asyncio.ensure_future(processor.receive(context, replace(AT_ONCE, wait_s=20.0)))
    await settle()
    assert "waiting 1" in repr(processor)
    clock.advance(4.7)
    await settle()
    assert not poll.done()
    clock.advance(0.1)
    assert await poll == []
    assert clock.monotonic() < context.deadline
    assert observer.of("received")[0][2] == 0


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (("fake", -1), ("fake", -1)),
        (("gone", -1), ("", -1)),
        (("", -1), ("", -1)),
        (("gone", 3), ("gone", 3)),
    ],
)
async def test_a_receive_that_names_a_broker_which_is_gone_takes_any(
    processor: MessagingProcessor,
    context: Context,
    broker: Any,
    asked: tuple[str, int],
    given: tuple[str, int],
) -> None:
    await processor.receive(context, replace(AT_ONCE, broker=asked[0], queue_id=asked[1]))
    (pop,) = broker.asked("pop")
    assert (pop.broker, pop.queue_id) == given


async def test_a_receive_makes_its_group_and_its_topic(
    processor: MessagingProcessor, context: Context, broker: Any
) -> None:
    assert await processor.receive(context, replace(AT_ONCE, topic="fresh", group="newcomers")) == []
    assert "fresh" in broker.kept_topics
    assert "newcomers" in broker.kept_groups


async def test_a_receive_from_dead_letters_that_are_not_there_is_topic_not_found(
    processor: MessagingProcessor, context: Context
) -> None:
    with pytest.raises(TopicNotFound):
        await processor.receive(context, replace(AT_ONCE, topic="%DLQ%readers"))


async def test_scenario_03_a_cancelled_receive_holds_nothing(
    processor: MessagingProcessor, context: Context, broker: Any, settle: Settle
) -> None:
    poll = asyncio.ensure_future(processor.receive(context, replace(AT_ONCE, wait_s=20.0)))
    await settle()
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    await processor.send(context, batch(1))
    await settle()
    assert broker.in_hand == {}
    assert "waiting 0" in repr(processor)


async def test_scenario_03_what_was_not_delivered_is_there_again_at_once_and_no_attempt(
    processor: MessagingProcessor, context: Context, broker: Any, observer: Any
) -> None:
    await processor.send(context, batch(2))
    messages = await processor.receive(context, replace(AT_ONCE, auto_renew=True))
    await processor.give_back(context, "orders", "readers", messages[1:])
    assert broker.asked("give_back") == [[messages[1].receipt]]
    assert processor.auto_renewal.holdings.held == 1
    assert observer.of("returned") == [("orders", "readers", 1)]
    (again,) = await processor.receive(context, AT_ONCE)
    assert again.attempt == 1


async def test_giving_back_goes_on_when_its_caller_is_cancelled(
    processor: MessagingProcessor, context: Context, broker: Any, settle: Settle
) -> None:
    await processor.send(context, batch(1))
    messages = await processor.receive(context, AT_ONCE)
    broker.blocked = asyncio.Event()
    giving = asyncio.ensure_future(processor.give_back(context, "orders", "readers", messages))
    await settle()
    giving.cancel()
    await settle()
    assert giving.cancelled()
    broker.blocked.set()
    await processor.stop()
    assert len(broker.messages["orders"]) == 1


async def test_giving_back_to_a_broker_that_is_away_raises_nothing(
    processor: MessagingProcessor, context: Context, broker: Any, observer: Any
) -> None:
    await processor.send(context, batch(1))
    messages = await processor.receive(context, AT_ONCE)
    broker.failure = BrokerUnavailable("away")
    await processor.give_back(context, "orders", "readers", messages)
    await processor.give_back(context, "orders", "readers", [])
    assert observer.of("failed") == [("give_back", Fault.BROKER_UNAVAILABLE)]


async def test_scenario_24_waiting_receives_are_bounded(
    make_processor: Make, context: Context, settle: Settle
) -> None:
    processor = make_processor(Limits(max_waiting=1))
    poll = asyncio.ensure_future(processor.receive(context, replace(AT_ONCE, wait_s=20.0)))
    await settle()
    with pytest.raises(TooManyRequests, match="limit of 1 waiting receives"):
        await processor.receive(context, AT_ONCE)
    poll.cancel()
    await settle()
    assert await processor.receive(context, AT_ONCE) == []


# -- ack, change, dead letter -------------------------------------------------------------------


async def test_mixed_handles_have_one_result_each(
    processor: MessagingProcessor, context: Context, observer: Any
) -> None:
    await processor.send(context, batch(2))
    good, other = (message.receipt for message in await processor.receive(context, AT_ONCE))
    results = await processor.ack(
        context, "orders", "readers", [good, "bad", "0 1 2 0 0 fake 0 9", other, good]
    )
    assert [type(result) for result in results] == [
        type(None),
        IllegalReceipt,
        ReceiptExpired,
        type(None),
        type(None),
    ]
    assert observer.of("acked") == [("orders", "readers", 3, 2, 0.0)]
    assert observer.of("failed") == [("ack", Fault.ILLEGAL_RECEIPT)] * 2


async def test_a_broker_is_given_the_settings_of_the_group(
    processor: MessagingProcessor, context: Context, broker: Any
) -> None:
    await processor.send(context, batch(1))
    (message,) = await processor.receive(context, AT_ONCE)
    assert context.group == broker.kept_groups["readers"]
    context.group = None
    await processor.ack(context, "orders", "readers", [message.receipt])
    assert context.group == broker.kept_groups["readers"]


async def test_an_acknowledgement_of_nothing_is_refused(
    processor: MessagingProcessor, context: Context
) -> None:
    with pytest.raises(IllegalReceipt, match="at least one handle"):
        await processor.ack(context, "orders", "readers", [])


async def test_a_change_gives_the_handle_to_use_on(
    processor: MessagingProcessor, context: Context, broker: Any, observer: Any
) -> None:
    await processor.send(context, batch(1))
    (message,) = await processor.receive(context, AT_ONCE)
    newer = await processor.change_invisible(context, "orders", "readers", message.receipt, 5_000)
    assert newer != message.receipt
    assert await processor.ack(context, "orders", "readers", [newer]) == [None]
    assert observer.of("changed") == [("orders", "readers", 0.0)]


async def test_a_change_beyond_twelve_hours_or_without_handle_is_refused(
    processor: MessagingProcessor, context: Context, observer: Any
) -> None:
    with pytest.raises(BadRequest, match="at most 43200000 ms"):
        await processor.change_invisible(context, "orders", "readers", "r", 43_200_001)
    with pytest.raises(IllegalReceipt, match="must not be blank"):
        await processor.change_invisible(context, "orders", "readers", "", 1)
    with pytest.raises(ReceiptExpired):
        await processor.change_invisible(context, "orders", "readers", "0 1 2 0 0 fake 0 9", 1)
    assert [fault for _, fault in observer.of("failed")] == [
        Fault.ILLEGAL_INVISIBLE_TIME,
        Fault.ILLEGAL_RECEIPT,
        Fault.ILLEGAL_RECEIPT,
    ]


@pytest.mark.parametrize(
    ("language", "kind", "auto_renew", "attempts", "rests_ms"),
    [
        ("NODE_JS", ClientKind.PUSH_CONSUMER, True, 1, 10_000),
        ("HTTP", ClientKind.PUSH_CONSUMER, True, 3, 60_000),
        ("NODE_JS", None, False, 1, 10_000),
        ("NODE_JS", ClientKind.SIMPLE_CONSUMER, False, 1, 0),
        ("JAVA", ClientKind.PUSH_CONSUMER, True, 1, 0),
    ],
)
async def test_a_push_consumer_of_node_js_that_gives_up_gets_the_rest_of_its_group(
    processor: MessagingProcessor,
    context: Context,
    broker: Any,
    make_client: Any,
    language: str,
    kind: ClientKind | None,
    auto_renew: bool,
    attempts: int,
    rests_ms: int,
) -> None:
    context.language = language
    if kind is not None:
        processor.clients.register(make_client(context.client_id, kind=kind, group="readers"))
    await processor.send(context, batch(1))
    broker.messages["orders"][0].attempt = attempts - 1
    request = replace(AT_ONCE, auto_renew=auto_renew)
    (message,) = await processor.receive(context, request)
    assert message.attempt == attempts
    await processor.change_invisible(context, "orders", "readers", message.receipt, 0)
    assert broker.asked("change_invisible") == [(message.receipt, rests_ms)]


async def test_node_js_may_ask_for_a_time_of_its_own(
    processor: MessagingProcessor, context: Context, broker: Any
) -> None:
    context.language = "NODE_JS"
    await processor.send(context, batch(1))
    (message,) = await processor.receive(context, AT_ONCE)
    await processor.change_invisible(context, "orders", "readers", message.receipt, 700)
    assert broker.asked("change_invisible") == [(message.receipt, 700)]


async def test_a_message_can_be_sent_to_the_dead_letters(
    processor: MessagingProcessor, context: Context, broker: Any, observer: Any
) -> None:
    await processor.send(context, batch(1))
    (message,) = await processor.receive(context, AT_ONCE)
    await processor.dead_letter(context, "orders", "readers", message.receipt)
    assert broker.asked("dead_letter") == [message.receipt]
    assert observer.of("dead_lettered") == [("orders", "readers")]
    with pytest.raises(IllegalReceipt):
        await processor.dead_letter(context, "orders", "readers", "bad")
    with pytest.raises(IllegalReceipt, match="blank"):
        await processor.dead_letter(context, "orders", "readers", "")


@pytest.mark.parametrize("call", ["ack", "change_invisible", "dead_letter"])
async def test_names_are_checked_topic_before_group(
    processor: MessagingProcessor, context: Context, call: str
) -> None:
    arguments: dict[str, tuple[Any, ...]] = {
        "ack": (["r"],),
        "change_invisible": ("r", 1),
        "dead_letter": ("r",),
    }
    for topic, group, fault in (
        ("", "", Fault.ILLEGAL_TOPIC),
        ("orders", " ", Fault.ILLEGAL_GROUP),
    ):
        with pytest.raises(BadRequest) as caught:
            await getattr(processor, call)(context, topic, group, *arguments[call])
        assert caught.value.fault is fault


# -- recall and transactions --------------------------------------------------------------------


async def test_a_delayed_message_is_recalled(
    processor: MessagingProcessor, context: Context, observer: Any
) -> None:
    assert await processor.recall(context, "orders", "handle") == "recalled"
    assert observer.of("recalled") == [("orders",)]
    with pytest.raises(NotFound, match="it was delivered"):
        await processor.recall(context, "orders", "gone")


async def test_a_recall_that_cannot_be_is_refused(
    processor: MessagingProcessor, context: Context, broker: Any
) -> None:
    with pytest.raises(BadRequest, match="must not be blank"):
        await processor.recall(context, "orders", " ")
    with pytest.raises(BadRequest, match="5000 characters, the limit is 4096"):
        await processor.recall(context, "orders", "h" * 5000)
    broker.kept_topics["strict"] = TopicConfig("strict", (MessageType.FIFO,))
    with pytest.raises(MessageTypeMismatch, match="takes FIFO messages, this one is DELAY"):
        await processor.recall(context, "strict", "handle")


async def test_the_end_of_a_transaction_reaches_the_broker_once(
    processor: MessagingProcessor, context: Context, broker: Any, observer: Any
) -> None:
    end = EndTransaction("orders", "t", "m", Resolution.COMMIT)
    await processor.end_transaction(context, end)
    assert broker.asked("end_transaction") == [end]
    assert observer.of("ended") == [("orders", Resolution.COMMIT, 0.0)]
    broker.failure = BrokerUnavailable("away")
    with pytest.raises(BrokerUnavailable):
        await processor.end_transaction(context, end)
    assert len(broker.asked("end_transaction")) == 2


@pytest.mark.parametrize(
    ("transaction_id", "words"), [("", "blank"), (" ", "blank"), ("t" * 5000, "limit is 4096")]
)
async def test_an_impossible_transaction_id_is_refused(
    processor: MessagingProcessor, context: Context, broker: Any, transaction_id: str, words: str
) -> None:
    with pytest.raises(IllegalTransactionId, match=words):
        await processor.end_transaction(
            context, EndTransaction("orders", transaction_id, "m", Resolution.ROLLBACK)
        )
    assert broker.asked("end_transaction") == []


# -- life ---------------------------------------------------------------------------------------


async def test_silent_clients_are_forgotten_while_it_runs(
    processor: MessagingProcessor, make_client: Any, clock: MovableClock
) -> None:
    client = make_client("c1", group="readers")
    processor.clients.register(client)
    client.alive = False
    clock.advance(131)
    assert processor.clients.get("c1") is None
    assert processor.figures()["clients"] == 0


async def test_good_bye_of_a_stranger_is_no_error(processor: MessagingProcessor, context: Context) -> None:
    assert processor.goodbye(context) is None


class Owners:
    """An `Authorizer` that lets an account use what bears its name alone."""

    def allows(self, context: Context, action: Action, resource: Resource, now: float) -> bool:
        return resource.name.startswith(context.principal.name)


@pytest.mark.parametrize("group", ["", "anna-readers"])
async def test_good_bye_ends_no_client_of_another_account(
    make_processor: Make, make_client: Any, context: Context, group: str
) -> None:
    """A client id is only what a request says, and what its client holds is renewed while it is there."""
    processor = make_processor(policies=Policies(authorizer=Owners()))
    anna, bert = (replace(context, principal=Principal(name)) for name in ("anna", "bert"))
    client = make_client(context.client_id, group=group, key=anna.client_key)
    processor.clients.register(client)
    for stranger in (bert, context, replace(context, certificate=("CN:anna",))):
        assert processor.goodbye(stranger) is None
    assert processor.clients.get(anna.client_key) is client
    assert processor.goodbye(anna) is client
    assert processor.clients.get(anna.client_key) is None


async def test_good_bye_ends_no_lite_subscription_of_another(
    make_processor: Make, make_client: Any, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the gateway knows the client that says it or not."""
    processor = make_processor(policies=Policies(authorizer=Owners()))
    left: list[str] = []
    lite = SimpleNamespace(left=lambda key, said_so: left.append(key))
    monkeypatch.setattr(processor, "lite", lite)
    anna, bert = (replace(context, principal=Principal(name)) for name in ("anna", "bert"))
    processor.goodbye(bert)
    processor.clients.register(make_client(context.client_id, key=bert.client_key))
    processor.goodbye(bert)
    assert left == [bert.client_key] * 2
    assert anna.client_key != bert.client_key


async def test_no_account_shows_that_a_client_of_another_is_there(
    make_processor: Make, make_client: Any, context: Context
) -> None:
    """While a client polls, or acknowledges, what it holds is renewed, also when its stream has ended."""
    processor = make_processor(policies=Policies(authorizer=Owners()))
    anna, bert = (replace(context, principal=Principal(name)) for name in ("anna", "bert"))
    for account in (anna, bert):
        group = f"{account.principal.name}-readers"
        processor.clients.register(make_client(context.client_id, group=group, key=account.client_key))
    poll = replace(AT_ONCE, topic="bert-orders", group="bert-readers", auto_renew=True)
    await processor.receive(bert, poll)
    await processor.ack(bert, "bert-orders", "bert-readers", ["receipt"])
    holdings = processor.auto_renewal.holdings
    assert holdings.holder(bert.client_key) is not None
    assert holdings.holder(anna.client_key) is None


async def test_the_settings_of_a_group_are_those_of_the_broker(
    processor: MessagingProcessor, context: Context, broker: Any
) -> None:
    broker.kept_groups["strict"] = GroupConfig("strict", ordered=True, max_attempts=3)
    assert await processor.settings(context, "strict") == broker.kept_groups["strict"]
