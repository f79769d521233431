from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from popgate.context import Context
from popgate.errors import BrokerTimeout, BrokerUnavailable
from popgate.model import GroupConfig, Message
from popgate.testing.clock import MovableClock
from processors.messaging import MessagingProcessor
from processors.requests import Receive
from tests.support.waiting import until

Settle = Callable[[], Awaitable[None]]
PUSHED = Receive("orders", "readers", auto_renew=True, wait_s=0.0)


@pytest.fixture(autouse=True)
def short_timeout(broker: Any) -> None:
    broker.kept_groups["readers"] = GroupConfig("readers", consume_timeout_ms=60_000)


@pytest.fixture
def client(processor: MessagingProcessor, make_client: Any, context: Context) -> Any:
    client = make_client(context.client_id, group="readers", topics=frozenset({"orders"}))
    processor.clients.register(client)
    return client


async def popped(processor: MessagingProcessor, context: Context, count: int = 1) -> list[str]:
    await processor.send(context, [Message("orders", b"b", message_id=f"m{n}") for n in range(count)])
    return [message.receipt for message in await processor.receive(context, PUSHED)]


async def test_scenario_07_a_client_that_says_good_bye_gives_its_messages_to_others_at_once(
    processor: MessagingProcessor, broker: Any, client: Any, context: Context, settle: Settle, observer: Any
) -> None:
    done, open_one = await popped(processor, context, 2)
    await processor.ack(context, "orders", "readers", [done])
    assert processor.goodbye(context) is client
    await until(lambda: broker.messages["orders"], turn=settle, pause_s=0.0)
    assert broker.asked("change_invisible") == [(open_one, 0)]
    assert observer.of("released") == [("orders", "readers", 1)]


async def test_a_message_being_renewed_is_freed_by_its_new_handle(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
) -> None:
    await popped(processor, context)
    broker.blocked = asyncio.Event()
    clock.advance(51)
    await until(lambda: broker.asked("change_invisible"), turn=settle, pause_s=0.0)
    processor.goodbye(context)
    await settle()
    broker.blocked.set()
    await until(lambda: broker.in_hand == {}, turn=settle, pause_s=0.0)
    assert len(broker.messages["orders"]) == 1
    # Of what is freed nothing is renewed any more.
    assert processor.auto_renewal.holdings.next_renewal_ms() is None


async def test_good_bye_over_another_connection_frees_nothing(
    processor: MessagingProcessor, broker: Any, client: Any, context: Context, settle: Settle
) -> None:
    await popped(processor, context)
    processor.goodbye(replace(context, peer="10.9.9.9:1"))
    await settle()
    assert broker.asked("change_invisible") == []


async def test_good_bye_after_telemetry_elsewhere_frees_nothing(
    processor: MessagingProcessor, broker: Any, make_client: Any, context: Context, settle: Settle
) -> None:
    processor.clients.register(make_client(context.client_id, group="readers", connection="10.7.7.7:7"))
    await popped(processor, context)
    processor.goodbye(context)
    await settle()
    assert broker.asked("change_invisible") == []


async def test_good_bye_after_acknowledging_what_came_from_another_replica_frees_nothing(
    processor: MessagingProcessor, broker: Any, client: Any, context: Context, settle: Settle
) -> None:
    await popped(processor, context)
    await processor.ack(context, "orders", "readers", ["bad handle of another replica"])
    processor.goodbye(context)
    await settle()
    assert broker.asked("change_invisible") == []


async def test_a_broken_stream_frees_after_a_grace(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
) -> None:
    await popped(processor, context)
    client.alive = False
    processor.clients.disconnected(client)
    clock.advance(4.9)
    await settle()
    assert broker.asked("change_invisible") == []
    clock.advance(0.2)
    await until(lambda: broker.messages["orders"], turn=settle, pause_s=0.0)


@pytest.mark.parametrize("life", ["new stream", "heartbeat", "receive", "ack"])
async def test_a_client_that_comes_back_within_the_grace_keeps_what_it_holds(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    make_client: Any,
    context: Context,
    settle: Settle,
    life: str,
) -> None:
    first, _ = await popped(processor, context, 2)
    client.alive = False
    processor.clients.disconnected(client)
    clock.advance(2)
    if life == "new stream":
        processor.clients.register(make_client(context.client_id, group="readers"))
    elif life == "heartbeat":
        processor.clients.touch(context.client_id, clock.monotonic())
    elif life == "receive":
        await popped(processor, context)
    else:
        await processor.ack(context, "orders", "readers", [first])
    clock.advance(10)
    await settle()
    assert broker.asked("change_invisible") == []


async def test_a_client_without_stream_that_goes_on_polling_keeps_what_it_holds(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
) -> None:
    await popped(processor, context)
    poll = asyncio.ensure_future(processor.receive(context, replace(PUSHED, wait_s=20.0)))
    await settle()
    client.alive = False
    processor.clients.disconnected(client)
    clock.advance(12)
    await settle()
    assert broker.asked("change_invisible") == []
    poll.cancel()
    await settle()
    clock.advance(6)
    await until(lambda: broker.asked("change_invisible"), turn=settle, pause_s=0.0)


async def test_scenario_07_a_drain_takes_nothing_from_clients_that_are_sent_elsewhere(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
) -> None:
    await popped(processor, context)
    processor.drain()
    client.alive = False
    processor.clients.disconnected(client)
    clock.advance(20)
    await settle()
    assert broker.asked("change_invisible") == []


async def test_a_release_whose_outcome_is_unknown_is_never_tried_again(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
) -> None:
    await popped(processor, context)
    broker.failure = BrokerTimeout("no answer")
    processor.goodbye(context)
    await until(lambda: broker.asked("change_invisible"), turn=settle, pause_s=0.0)
    broker.failure = None
    clock.advance(300)
    await settle()
    assert len(broker.asked("change_invisible")) == 1


async def test_what_is_being_acknowledged_is_not_freed_meanwhile(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
) -> None:
    """The store is in trouble, the acknowledgement is tried again, and its client says good-bye."""
    [receipt] = await popped(processor, context)
    broker.failure = BrokerUnavailable("the disk is full")
    acking = asyncio.ensure_future(processor.ack(context, "orders", "readers", [receipt]))
    await until(lambda: broker.asked("ack"), turn=settle, pause_s=0.0)
    broker.failure = None
    processor.goodbye(context)
    await settle()
    assert broker.asked("change_invisible") == []
    while not acking.done():
        clock.advance(0.1)
        await settle()
    assert await acking == [None]


async def test_where_the_broker_does_not_check_acknowledgements_a_silent_client_waits_for_the_timeout(
    processor: MessagingProcessor, broker: Any, client: Any, context: Context, settle: Settle
) -> None:
    broker.traits = replace(broker.traits, acks_are_checked=False)
    await popped(processor, context)
    processor.goodbye(context)
    await settle()
    assert broker.asked("change_invisible") == []


async def test_where_the_broker_does_not_check_a_client_that_stayed_here_is_released(
    processor: MessagingProcessor, broker: Any, client: Any, context: Context, settle: Settle
) -> None:
    broker.traits = replace(broker.traits, acks_are_checked=False)
    done, open_one = await popped(processor, context, 2)
    await processor.ack(context, "orders", "readers", [done])
    processor.goodbye(context)
    await until(lambda: broker.asked("change_invisible") == [(open_one, 0)], turn=settle, pause_s=0.0)


async def test_stopping_ends_renewals_and_graces(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
) -> None:
    await popped(processor, context)
    client.alive = False
    processor.clients.disconnected(client)
    await processor.stop()
    clock.advance(100)
    await settle()
    assert broker.asked("change_invisible") == []
    assert "tasks 0" in repr(processor.auto_renewal)
