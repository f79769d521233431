from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from popgate.context import Context
from popgate.errors import BrokerTimeout, BrokerUnavailable, Fault
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


async def test_a_long_handler_is_renewed_shortly_before_its_end(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
    observer: Any,
) -> None:
    (receipt,) = await popped(processor, context)
    clock.advance(49)
    await settle()
    assert broker.asked("change_invisible") == []
    clock.advance(2)
    await until(lambda: broker.asked("change_invisible"), turn=settle, pause_s=0.0)
    assert broker.asked("change_invisible") == [(receipt, 60_000)]
    assert observer.of("renewed") == [("orders", "readers", 1)]
    clock.advance(52)
    await until(lambda: len(broker.asked("change_invisible")) == 2, turn=settle, pause_s=0.0)


async def test_the_older_handle_of_the_client_finishes_a_renewed_message(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
) -> None:
    (receipt,) = await popped(processor, context)
    clock.advance(51)
    await until(lambda: broker.asked("change_invisible"), turn=settle, pause_s=0.0)
    assert receipt not in broker.in_hand
    assert await processor.ack(context, "orders", "readers", [receipt]) == [None]
    assert broker.in_hand == {}
    assert processor.auto_renewal.holdings.held == 0


async def test_what_is_finished_is_not_renewed(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
) -> None:
    first, second = await popped(processor, context, 2)
    await processor.ack(context, "orders", "readers", [first])
    clock.advance(51)
    await until(lambda: broker.asked("change_invisible"), turn=settle, pause_s=0.0)
    assert [receipt for receipt, _ in broker.asked("change_invisible")] == [second]


@pytest.mark.parametrize(("ordered", "checked"), [(False, False), (False, True), (True, False)])
async def test_scenario_01_what_may_be_finished_elsewhere_is_renewed_only_where_that_brings_nothing_back(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
    ordered: bool,
    checked: bool,
) -> None:
    broker.traits = replace(broker.traits, acks_are_checked=checked)
    broker.kept_groups["readers"] = GroupConfig("readers", consume_timeout_ms=60_000, ordered=ordered)
    await popped(processor, context)
    # It finishes what another replica gave it, so it may do the reverse.
    await processor.ack(context, "orders", "readers", ["of another replica"])
    clock.advance(51)
    if ordered or checked:
        await until(lambda: broker.asked("change_invisible"), turn=settle, pause_s=0.0)
    else:
        await until(lambda: processor.auto_renewal.holdings.held == 0, turn=settle, pause_s=0.0)
        assert broker.asked("change_invisible") == []


async def test_scenario_02_renewing_ends_after_three_hours(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
) -> None:
    await popped(processor, context)
    for _ in range(4 * 720):
        clock.advance(5)
        await settle()
    latest = max(message.invisible_until_ms for message in broker.in_hand.values())
    assert 10_790_000 <= latest - 1_700_000_000_000 <= 10_800_000
    assert processor.auto_renewal.holdings.held == 0


@pytest.mark.parametrize("how", ["stream ended", "unknown"])
async def test_a_client_that_is_not_there_keeps_nothing_alive(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
    how: str,
) -> None:
    if how == "unknown":
        context = replace(context, client_id="stranger")
    await popped(processor, context)
    client.alive = False
    clock.advance(55)
    await settle()
    assert broker.asked("change_invisible") == []
    assert processor.auto_renewal.holdings.held == 0


async def test_a_renewal_that_fails_for_a_moment_is_tried_again(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
    observer: Any,
) -> None:
    await popped(processor, context)
    broker.failure = BrokerUnavailable("away")
    clock.advance(51)
    await until(lambda: broker.asked("change_invisible"), turn=settle, pause_s=0.0)
    broker.failure = None
    clock.advance(2)
    await until(lambda: len(broker.asked("change_invisible")) == 2, turn=settle, pause_s=0.0)
    assert ("renew", Fault.BROKER_UNAVAILABLE) in observer.of("failed")
    assert processor.auto_renewal.holdings.held == 1


def busy_with(monkeypatch: pytest.MonkeyPatch, broker: Any, refused: str, *, times: int = 1_000) -> list[str]:
    """Have the broker refuse a change of one handle for so many times; the handles that it is asked about."""
    change_invisible, asked = broker.change_invisible, list[str]()

    async def busy(context: Context, topic: str, group: str, receipt: str, *args: Any, **more: Any) -> str:
        asked.append(receipt)
        if receipt == refused and asked.count(refused) <= times:
            raise BrokerUnavailable("busy")
        return str(await change_invisible(context, topic, group, receipt, *args, **more))

    monkeypatch.setattr(broker, "change_invisible", busy)
    return asked


async def test_what_was_renewed_keeps_its_new_handle_when_the_rest_was_not(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RocketMQ says OK to the older handle of a message that was renewed, and delivers it again."""
    renewed, refused = await popped(processor, context, 2)
    asked = busy_with(monkeypatch, broker, refused)
    for _ in range(62):
        clock.advance(1)
        await settle()
    assert asked.count(refused) > 2
    assert [receipt for receipt in asked if receipt != refused] == [renewed]
    assert processor.auto_renewal.holdings.held == 1
    assert await processor.ack(context, "orders", "readers", [renewed]) == [None]
    assert list(broker.in_hand) == [refused]


async def test_what_is_renewed_late_goes_on_with_the_rest(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    receipts = await popped(processor, context, 2)
    asked = busy_with(monkeypatch, broker, receipts[1], times=1)
    for _ in range(55):
        clock.advance(1)
        await settle()
    assert asked == [*receipts, receipts[1]]
    for _ in range(50):
        clock.advance(1)
        await settle()
    assert len(asked) == 5
    assert await processor.ack(context, "orders", "readers", receipts) == [None, None]
    assert broker.in_hand == {}


async def test_a_message_that_was_finished_elsewhere_is_forgotten_at_its_renewal(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
) -> None:
    await popped(processor, context)
    broker.in_hand.clear()
    clock.advance(51)
    await until(lambda: processor.auto_renewal.holdings.held == 0, turn=settle, pause_s=0.0)


async def test_a_message_being_finished_is_not_renewed_under_its_hands(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
) -> None:
    (receipt,) = await popped(processor, context)
    broker.blocked = asyncio.Event()
    ack = asyncio.ensure_future(processor.ack(context, "orders", "readers", [receipt]))
    await settle()
    clock.advance(51)
    await settle()
    assert broker.asked("change_invisible") == []
    broker.blocked.set()
    assert await ack == [None]


@pytest.mark.parametrize("operation", ["ack", "change_invisible", "dead_letter"])
async def test_a_message_being_renewed_is_settled_by_its_new_handle(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
    operation: str,
) -> None:
    """RocketMQ makes another handle when it renews: a client that settles by the older one meanwhile is not
    refused, and its message does not come again."""
    (receipt,) = await popped(processor, context)
    broker.blocked = asyncio.Event()
    clock.advance(51)
    await until(lambda: broker.asked("change_invisible"), turn=settle, pause_s=0.0)
    settling: Any
    if operation == "ack":
        settling = processor.ack(context, "orders", "readers", [receipt])
    elif operation == "change_invisible":
        settling = processor.change_invisible(context, "orders", "readers", receipt, 0)
    else:
        settling = processor.dead_letter(context, "orders", "readers", receipt)
    settled = asyncio.ensure_future(settling)
    await settle()
    assert not settled.done()
    broker.blocked.set()
    outcome = await settled
    if operation == "ack":
        assert outcome == [None]
    assert broker.in_hand == {}
    assert processor.auto_renewal.holdings.held == 0


async def test_a_settlement_that_is_cancelled_leaves_the_renewal_alone(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
) -> None:
    (receipt,) = await popped(processor, context)
    broker.blocked = asyncio.Event()
    clock.advance(51)
    await until(lambda: broker.asked("change_invisible"), turn=settle, pause_s=0.0)
    ack = asyncio.ensure_future(processor.ack(context, "orders", "readers", [receipt]))
    await settle()
    ack.cancel()
    await settle()
    broker.blocked.set()
    await until(lambda: not processor.auto_renewal.under_way, turn=settle, pause_s=0.0)
    assert await processor.ack(context, "orders", "readers", [receipt]) == [None]
    assert broker.in_hand == {}


async def test_scenario_01_an_acknowledgement_with_unknown_outcome_keeps_the_handle(
    processor: MessagingProcessor,
    broker: Any,
    client: Any,
    context: Context,
    clock: MovableClock,
    settle: Settle,
) -> None:
    (receipt,) = await popped(processor, context)
    broker.failure = BrokerTimeout("no answer")
    ack = asyncio.ensure_future(processor.ack(context, "orders", "readers", [receipt]))
    for _ in range(10):  # it is tried again for a while
        await settle()
        clock.advance(1)
    with pytest.raises(BrokerTimeout):
        await ack
    assert processor.auto_renewal.holdings.held == 1
    broker.failure = None
    assert await processor.ack(context, "orders", "readers", [receipt]) == [None]
    assert processor.auto_renewal.holdings.held == 0


async def test_scenario_19_a_dead_letter_ends_the_renewal(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
) -> None:
    (receipt,) = await popped(processor, context)
    await processor.dead_letter(context, "orders", "readers", receipt)
    clock.advance(55)
    await settle()
    assert broker.asked("change_invisible") == []


@pytest.mark.parametrize("proof", ["poll", "heartbeat"])
async def test_a_client_without_stream_is_renewed_while_it_shows_that_it_is_there(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
    proof: str,
) -> None:
    await popped(processor, context)
    client.alive = False
    clock.advance(45)
    if proof == "heartbeat":
        processor.clients.touch(context.client_id, clock.monotonic())
    else:
        poll = asyncio.ensure_future(processor.receive(context, replace(PUSHED, wait_s=20.0)))
        await settle()
    clock.advance(6)
    await until(lambda: broker.asked("change_invisible"), turn=settle, pause_s=0.0)
    assert processor.auto_renewal.holdings.held == 1
    if proof == "poll":
        poll.cancel()


async def test_a_consumer_that_renews_itself_is_not_followed(
    processor: MessagingProcessor, client: Any, context: Context
) -> None:
    await processor.send(context, [Message("orders", b"b", message_id="m")])
    request = Receive("orders", "readers", invisible_ms=30_000, wait_s=0.0)
    assert len(await processor.receive(context, request)) == 1
    assert processor.auto_renewal.holdings.held == 0


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
@pytest.mark.parametrize("when", ["before the pop", "after the pop"])
async def test_a_renewal_is_in_time_whatever_happens_to_the_wall_clock(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
    step_ms: int,
    when: str,
) -> None:
    pop = broker.pop

    async def pop_of_a_steady_broker(context: Context, request: Any) -> Any:
        messages = await pop(context, request)
        if when == "before the pop":
            clock.set_wall(clock.now_ms() + step_ms)
        return messages

    broker.pop = pop_of_a_steady_broker
    (receipt,) = await popped(processor, context)
    if when == "after the pop":
        clock.set_wall(clock.now_ms() + step_ms)
    clock.advance(45)
    await settle()
    assert broker.asked("change_invisible") == []
    clock.advance(6)
    await until(lambda: broker.asked("change_invisible"), turn=settle, pause_s=0.0)
    assert broker.asked("change_invisible") == [(receipt, 60_000)]


async def test_the_time_counts_from_before_the_pop(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
) -> None:
    pop = broker.pop

    async def slow_pop(context: Context, request: Any) -> Any:
        messages = await pop(context, request)
        clock.advance(8)  # the messages are hidden already, and the answer is on its way
        return messages

    broker.pop = slow_pop
    await popped(processor, context)
    clock.advance(43)
    await until(lambda: broker.asked("change_invisible"), turn=settle, pause_s=0.0)


async def test_a_short_hold_is_renewed_also_after_a_long_wait(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
) -> None:
    broker.kept_groups["readers"] = GroupConfig("readers", consume_timeout_ms=2_000)
    waiting = asyncio.ensure_future(processor.receive(context, replace(PUSHED, wait_s=20.0)))
    await settle()
    clock.advance(15)
    await processor.send(context, [Message("orders", b"b", message_id="m")])
    assert len(await waiting) == 1
    clock.advance(0.3)
    await settle()
    assert broker.asked("change_invisible") == []
    clock.advance(1.2)
    await until(lambda: broker.asked("change_invisible"), turn=settle, pause_s=0.0)


@pytest.mark.parametrize("used", [False, True])
async def test_scenario_02_what_may_have_been_lost_with_its_connection_is_not_renewed(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    make_client: Any,
    context: Context,
    settle: Settle,
    used: bool,
) -> None:
    first, _ = await popped(processor, context, 2)
    back = make_client(
        context.client_id, group="readers", topics=frozenset({"orders"}), connection="10.0.0.1:6000"
    )
    processor.clients.register(back)
    if used:
        await processor.ack(replace(context, connection="10.0.0.1:6000"), "orders", "readers", [first])
    clock.advance(51)
    for _ in range(5):
        await settle()
    assert bool(broker.asked("change_invisible")) is used
    assert processor.auto_renewal.holdings.held == used


@pytest.mark.parametrize("used", [False, True])
async def test_what_is_left_of_an_answer_that_was_cut_off_is_not_renewed_unless_it_is_used(
    processor: MessagingProcessor,
    broker: Any,
    clock: MovableClock,
    client: Any,
    context: Context,
    settle: Settle,
    used: bool,
) -> None:
    """Java's client drops what it has of an answer that fails, and is there all the same."""
    first, _, third = await popped(processor, context, 3)
    await processor.settlement.free_held(context, "orders", "readers", [third])
    if used:
        await processor.ack(context, "orders", "readers", [first])
    clock.advance(51)
    for _ in range(5):
        await settle()
    assert bool(broker.asked("change_invisible")) is used
    assert processor.auto_renewal.holdings.held == used
