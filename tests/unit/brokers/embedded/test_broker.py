"""What the contract suite cannot see from outside: the store, the memory, and moments in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.keys import (
    INFLIGHT,
    PROGRESS,
    TOPICS,
    commit_offset,
    inflight_key,
    split_progress_value,
)
from brokers.embedded.storage.store import Durability
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerUnavailable,
    DelayTooLong,
    GatewayError,
    IllegalReceipt,
    PropertiesTooLarge,
)
from popgate.filters.compiled import EVERYTHING, compile_filter
from popgate.ids.message_id import encode_offset_message_id
from popgate.ids.receipt import parse_receipt
from popgate.model import FilterKind, GroupConfig, Message, Pop, Sent, StoredMessage, TopicConfig
from popgate.testing import MovableClock
from popgate.wire.messages.properties import decode_properties, encode_properties
from tests.support.waiting import until

CONTEXT = Context(client_id="me@host@1")
RED = compile_filter(FilterKind.TAG, "red")
Start = Callable[..., Awaitable[EmbeddedBroker]]


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def start(tmp_path: Path, clock: MovableClock) -> AsyncIterator[Start]:
    """Start a broker with a topic T and a group G, or start again on the same folder."""
    brokers: list[EmbeddedBroker] = []

    async def start_broker(
        group: GroupConfig | None = None, queues: int = 1, **settings: object
    ) -> EmbeddedBroker:
        for former in brokers:
            await former.stop()
        chosen = replace(EmbeddedSettings(), **settings)  # type: ignore[arg-type]
        broker = EmbeddedBroker(tmp_path / "store", clock=clock, settings=chosen)
        await broker.start()
        brokers.append(broker)
        if not await broker.topics():
            await broker.create_topic(TopicConfig("T", read_queues=queues, write_queues=queues))
            await broker.create_group(group or GroupConfig("G"))
        return broker

    yield start_broker
    for broker in brokers:
        await broker.stop()


def pop_of(**changes: object) -> Pop:
    return replace(Pop("T", "G", EVERYTHING, 30_000), **changes)  # type: ignore[arg-type]


async def send(broker: EmbeddedBroker, *bodies: bytes, **fields: object) -> list[Sent]:
    results = await broker.send(CONTEXT, [Message("T", body, **fields) for body in bodies])  # type: ignore[arg-type]
    assert all(isinstance(result, Sent) for result in results)
    return [result for result in results if isinstance(result, Sent)]


async def take(broker: EmbeddedBroker, **changes: object) -> list[StoredMessage]:
    return await broker.pop(CONTEXT, pop_of(**changes))


async def ack(broker: EmbeddedBroker, *messages: StoredMessage) -> None:
    handles = [message.receipt for message in messages]
    assert await broker.ack(CONTEXT, "T", "G", handles) == [None] * len(handles)


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def bodies(messages: list[StoredMessage]) -> list[bytes]:
    return [message.body for message in messages]


def in_flight(broker: EmbeddedBroker) -> list[int]:
    return [int.from_bytes(key[-8:], "big") for key, _ in broker._engine.store.scan(INFLIGHT, b"")]


def stored_frontiers(broker: EmbeddedBroker) -> list[int]:
    return [split_progress_value(value)[0] for _, value in broker._engine.store.scan(PROGRESS, b"")]


# -- what is written --------------------------------------------------------------------------


async def test_a_pop_writes_its_entries_and_the_frontier_and_an_ack_removes_them(start: Start) -> None:
    broker = await start()
    await send(broker, b"1", b"2", b"3")
    taken = await take(broker, max_messages=2)
    assert (in_flight(broker), stored_frontiers(broker)) == ([0, 1], [2])
    await ack(broker, taken[0])
    assert in_flight(broker) == [1]
    await ack(broker, *taken)  # again, and the other one
    assert in_flight(broker) == []


async def test_nothing_is_written_when_the_time_of_a_delivery_is_over(
    start: Start, clock: MovableClock
) -> None:
    broker = await start()
    await send(broker, b"1")
    await take(broker)
    before = list(broker._engine.store.scan(INFLIGHT, b""))
    await clock.run(40, turns)
    assert list(broker._engine.store.scan(INFLIGHT, b"")) == before
    (again,) = await take(broker)
    assert again.attempt == 2


async def test_messages_that_do_not_pass_leave_only_a_frontier(start: Start) -> None:
    broker = await start()
    await send(broker, *[b"x"] * 50, tag="blue")
    assert await take(broker, filter=RED) == []
    await turns()
    assert (in_flight(broker), stored_frontiers(broker)) == ([], [50])


async def test_a_pop_with_a_filter_finds_what_is_far_away_in_small_steps(start: Start) -> None:
    broker = await start(max_scan=16)
    await send(broker, *[b"x"] * 500, tag="blue")
    await send(broker, b"here", tag="red")
    assert bodies(await take(broker, filter=RED)) == [b"here"]


async def test_entries_above_the_frontier_are_of_a_step_that_failed_and_go_at_the_start(
    start: Start,
) -> None:
    broker = await start()
    await send(broker, b"1", b"2", b"3")
    (first,) = await take(broker, max_messages=1)
    state = broker._engine
    group, topic = state.catalogue.group("G"), state.catalogue.topic("T")
    entry = state.store.get(INFLIGHT, inflight_key(group.id, topic.id, 0, 0))
    state.store.put(INFLIGHT, inflight_key(group.id, topic.id, 0, 2), entry)
    await state.store.commit()
    broker = await start()
    await turns()
    assert in_flight(broker) == [0]
    assert bodies(await take(broker)) == [b"2", b"3"]
    await ack(broker, first)


async def test_messages_of_a_held_message_group_get_entries_only_when_the_frontier_passes_them(
    start: Start,
) -> None:
    broker = await start(GroupConfig("G", ordered=True))
    await send(broker, b"a1", message_group="a")
    assert bodies(await take(broker)) == [b"a1"]
    await send(broker, b"a2", b"a3", message_group="a")
    assert await take(broker) == []
    await turns()
    assert (in_flight(broker), stored_frontiers(broker)) == ([0], [1])
    await send(broker, b"b1", message_group="b")
    await send(broker, b"a4", message_group="a")
    assert bodies(await take(broker)) == [b"b1"]
    assert (in_flight(broker), stored_frontiers(broker)) == ([0, 1, 2, 3], [4])


async def test_an_ordered_group_is_found_again_without_reading_a_message(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start(GroupConfig("G", ordered=True))
    await send(broker, b"a1", message_group="a")
    await take(broker)
    await send(broker, b"a2", b"a3", message_group="a")
    await send(broker, b"b1", message_group="b")
    (b1,) = await take(broker)
    broker = await start()

    def refuse(*_: object) -> bytes:
        raise AssertionError("a message was read")

    with monkeypatch.context() as patch:
        patch.setattr(broker._engine.log, "get", refuse)
        patch.setattr(broker._engine.log, "get_many", refuse)
        assert await take(broker) == []
    await ack(broker, b1)
    assert await take(broker) == []


async def test_a_group_that_becomes_ordered_goes_on_with_what_it_had(
    start: Start, clock: MovableClock
) -> None:
    broker = await start()
    await send(broker, b"a1", b"a2", message_group="a")
    await send(broker, b"b1", message_group="b")
    held = await take(broker, max_messages=1)
    await broker.update_group(GroupConfig("G", ordered=True))
    assert bodies(await take(broker)) == [b"b1"]
    await ack(broker, *held)
    assert bodies(await take(broker)) == [b"a2"]
    await broker.update_group(GroupConfig("G"))
    await send(broker, b"a3", message_group="a")
    assert bodies(await take(broker)) == [b"a3"]
    await clock.run(31, turns)
    assert sorted(bodies(await take(broker))) == [b"a2", b"a3", b"b1"]


# -- bounds -----------------------------------------------------------------------------------


async def test_at_the_bound_of_what_is_in_flight_only_redeliveries_are_given(
    start: Start, clock: MovableClock
) -> None:
    broker = await start(max_in_flight=2)
    await send(broker, b"1", b"2", b"3")
    assert bodies(await take(broker)) == [b"1", b"2"]
    assert await take(broker) == []
    await clock.run(31, turns)
    again = await take(broker)
    assert [(message.body, message.attempt) for message in again] == [(b"1", 2), (b"2", 2)]
    await ack(broker, again[0])
    assert bodies(await take(broker)) == [b"3"]


async def test_the_window_of_an_ordered_group_is_bounded(start: Start) -> None:
    broker = await start(GroupConfig("G", ordered=True), max_order_window=4)
    await send(broker, *[b"a"] * 10, message_group="a")
    await send(broker, b"b", message_group="b")
    held = await take(broker, max_messages=1)
    assert await take(broker) == []
    assert broker.figures()["unfinished_deliveries"] == 4
    await ack(broker, *held)
    assert bodies(await take(broker, max_messages=9)) == [b"a"] * 4
    assert await take(broker) == []


# -- cancelled and failed -----------------------------------------------------------------------


async def test_a_pop_cancelled_before_it_is_written_gives_everything_back(start: Start) -> None:
    broker = await start(GroupConfig("G", max_attempts=1), durability=Durability.SYNC)
    await send(broker, b"1", b"2")
    pop = asyncio.create_task(take(broker))
    await asyncio.sleep(0)  # taken, and not yet written
    assert broker.figures()["unfinished_deliveries"] == 2
    pop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pop
    again = await take(broker)
    assert [(message.body, message.attempt) for message in again] == [(b"1", 1), (b"2", 1)]


async def test_a_pop_cancelled_in_the_turn_of_its_answer_gives_everything_back(start: Start) -> None:
    broker = await start()
    await send(broker, b"1")
    for wait in range(6):
        pop = asyncio.create_task(take(broker))
        await turns(wait)
        if pop.done():
            break
        pop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pop
        again = await take(broker)
        assert [message.attempt for message in again] == [1]
        assert await broker.give_back(CONTEXT, "T", "G", [again[0].receipt]) == 1
    else:
        raise AssertionError("it was never too late to cancel")


async def test_a_repeated_receive_keeps_what_the_first_one_gives_back(start: Start) -> None:
    """The first one was cut off as it was answered, when its client had asked again already."""
    broker = await start(GroupConfig("G", ordered=True, max_attempts=1))
    await send(broker, b"1", b"2")
    handles = [message.receipt for message in await take(broker, attempt_id="x")]
    assert [message.receipt for message in await take(broker, attempt_id="x")] == handles
    assert await broker.give_back(CONTEXT, "T", "G", handles) == 0
    assert await take(broker, attempt_id="y") == []
    assert await broker.give_back(CONTEXT, "T", "G", handles) == 2  # the repeated one was cut off, too
    again = await take(broker, attempt_id="y")
    assert [(message.body, message.attempt) for message in again] == [(b"1", 1), (b"2", 1)]
    assert await broker.give_back(CONTEXT, "T", "G", [message.receipt for message in again]) == 2


@pytest.mark.parametrize("first_leaves", [False, True])
async def test_one_of_two_receives_of_an_attempt_is_cancelled_before_it_is_written(
    start: Start, first_leaves: bool
) -> None:
    broker = await start(GroupConfig("G", ordered=True), durability=Durability.SYNC)
    await send(broker, b"1")
    pops = [asyncio.create_task(take(broker, attempt_id="x")) for _ in range(2)]
    await until(lambda: broker.figures()["unfinished_deliveries"], pause_s=0)
    assert not any(pop.done() for pop in pops), "it was written already"
    leaves, stays = pops if first_leaves else pops[::-1]
    leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    (message,) = await stays
    assert await take(broker, attempt_id="y") == []
    assert await broker.give_back(CONTEXT, "T", "G", [message.receipt]) == 1


async def test_a_repetition_of_an_earlier_delivery_keeps_none_of_a_later_one(
    start: Start, clock: MovableClock
) -> None:
    broker = await start(GroupConfig("G", ordered=True))
    await send(broker, b"1")
    for _ in range(2):
        await take(broker, attempt_id="x")
    clock.advance(30)
    (message,) = await take(broker, attempt_id="x")
    assert message.attempt == 2
    assert await broker.give_back(CONTEXT, "T", "G", [message.receipt]) == 1


async def test_what_was_given_back_comes_first_and_in_order(start: Start) -> None:
    broker = await start()
    await send(broker, *[b"%d" % number for number in range(6)])
    taken = await take(broker, max_messages=3)
    handles = [message.receipt for message in reversed(taken)]
    assert await broker.give_back(CONTEXT, "T", "G", handles) == 3
    assert bodies(await take(broker, max_messages=1)) == [b"0"]
    assert bodies(await take(broker, max_messages=4)) == [b"1", b"2", b"3", b"4"]


async def test_a_step_that_goes_wrong_half_way_is_not_written(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start()
    await send(broker, b"1", b"2", b"3")
    frontier = stored_frontiers(broker)
    with monkeypatch.context() as patch:
        patch.setattr("brokers.embedded.groups.pop_attempt.PopAttempt.deliver", _fail_at_the_second())
        with pytest.raises(RuntimeError):
            await take(broker)
    await turns()
    assert (in_flight(broker), stored_frontiers(broker)) == ([], frontier)
    assert [(m.body, m.attempt) for m in await take(broker)] == [(b"1", 1), (b"2", 1), (b"3", 1)]


def _fail_at_the_second() -> Callable[..., None]:
    calls: list[object] = []

    def deliver(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("a bug")

    return deliver


async def test_a_stopped_broker_answers_those_who_wait_and_those_who_come(
    start: Start, clock: MovableClock
) -> None:
    broker = await start()
    waiting = asyncio.create_task(take(broker, wait_until=clock.monotonic() + 60))
    await turns()
    await broker.stop()
    for call in (waiting, take(broker), broker.topics(), send(broker, b"1")):
        with pytest.raises(BrokerUnavailable, match="not running"):
            await call
    await broker.stop()
    assert broker.figures()["waiting_pops"] == 0


async def test_a_store_with_nonsense_in_it_is_refused_with_a_sentence(start: Start) -> None:
    broker = await start()
    broker._engine.store.put(TOPICS, b"T", b"{}")
    await broker._engine.store.commit()
    with pytest.raises(BrokerUnavailable, match="is damaged"):
        await start()
    await broker.stop()


async def test_a_broker_tells_its_figures(start: Start, clock: MovableClock) -> None:
    broker = await start()
    await send(broker, b"1", b"2")
    await take(broker, max_messages=1)
    waiting = asyncio.create_task(take(broker, queue_id=0, filter=RED, wait_until=clock.monotonic() + 60))
    await turns()
    figures = broker.figures()
    assert (figures["topics"], figures["groups"], figures["waiting_pops"]) == (1, 1, 1)
    assert figures["unfinished_deliveries"] == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert "popgate" in repr(broker)


# -- sending ----------------------------------------------------------------------------------


async def test_a_message_without_an_id_or_properties_gets_them(start: Start) -> None:
    broker = await start()
    (bare,) = await send(broker, b"1", tag="red", keys=("k1", "k2"), user_properties={"color": "blue"})
    (message,) = await take(broker)
    assert decode_properties(message.properties) == {
        "UNIQ_KEY": bare.message_id,
        "TAGS": "red",
        "KEYS": "k1 k2",
        "color": "blue",
    }
    (named,) = await send(broker, b"2", properties=encode_properties({"UNIQ_KEY": "mine"}))
    assert named.message_id == "mine"
    (given,) = await send(broker, b"3", properties=encode_properties({"a": "b"}))
    (_, third) = await take(broker)
    assert decode_properties(third.properties) == {"a": "b", "UNIQ_KEY": given.message_id}


async def test_messages_of_a_message_group_share_a_queue_and_others_take_turns(start: Start) -> None:
    broker = await start(queues=8)
    grouped = [await send(broker, b"x", message_group="customer-7") for _ in range(10)]
    assert len({sent.queue_id for (sent,) in grouped}) == 1
    others = [await send(broker, b"x", b"y") for _ in range(16)]
    assert sorted(first.queue_id for first, _ in others) == sorted([*range(8)] * 2)
    assert all(first.queue_id == second.queue_id for first, second in others)


async def test_what_is_wrong_with_one_message_is_its_result_and_with_all_is_raised(
    start: Start, clock: MovableClock
) -> None:
    broker = await start()
    good, late = Message("T", b"1"), Message("T", b"2", deliver_at_ms=clock.now_ms() + 10**12)
    huge = Message("T", b"3", message_id="i", properties=b"a\x01" + b"x" * 40_000 + b"\x02")
    strange = Message("T", b"4", message_id="i", properties=b"a\x01b\x02", flag=1 << 50)
    elsewhere = Message("U", b"5")
    results = await broker.send(CONTEXT, [good, late, huge, strange, elsewhere])
    assert [type(result) for result in results] == [
        *(Sent, DelayTooLong, PropertiesTooLarge, BadRequest, BadRequest)
    ]
    with pytest.raises(DelayTooLong):
        await broker.send(CONTEXT, [late, late])
    mixed = await broker.send(CONTEXT, [late, huge])
    assert all(isinstance(result, GatewayError) for result in mixed)
    assert await broker.send(CONTEXT, []) == []
    assert bodies(await take(broker)) == [b"1"]


# -- handles ----------------------------------------------------------------------------------


async def test_a_handle_names_the_delivery_and_nothing_else_opens_it(start: Start) -> None:
    broker = await start()
    await send(broker, b"1", b"2")
    first, _ = await take(broker)
    receipt = parse_receipt(first.receipt)
    assert (
        receipt.commit_offset
        == first.commit_offset
        == commit_offset(broker._engine.catalogue.topic("T").id, 0, 0)
    )
    forged = [
        receipt._replace(offset=7),
        receipt._replace(queue_id=9),
        receipt._replace(broker="other"),
        receipt._replace(commit_offset=receipt.commit_offset + 1),
    ]
    handles = [*(each.encode() for each in forged), "no handle", "1 2 3", " ".join("x" * 9), "9" * 1_000]
    results = await broker.ack(CONTEXT, "T", "G", handles)
    assert all(isinstance(result, IllegalReceipt) for result in results)
    # Without the ninth field, as remoting clients have it.
    assert await broker.ack(CONTEXT, "T", "G", [first.receipt.rpartition(" ")[0]]) == [None]
    assert in_flight(broker) == [1]


# -- look-ups ---------------------------------------------------------------------------------


async def test_an_offset_message_id_finds_its_message_and_no_other(start: Start) -> None:
    broker = await start(queues=2)
    await send(broker, b"1")
    (sent,) = await send(broker, b"2")
    (found,) = await broker.find_by_id(CONTEXT, "T", sent.message_id)
    assert found.body == b"2"
    own = encode_offset_message_id(broker.settings.store_host, found.commit_offset)
    assert bodies(await broker.find_by_id(CONTEXT, "T", own)) == [b"2"]
    for other in (
        encode_offset_message_id("9.9.9.9:1", found.commit_offset),
        encode_offset_message_id(broker.settings.store_host, found.commit_offset + 1),
        encode_offset_message_id(broker.settings.store_host, -1),
        encode_offset_message_id(broker.settings.store_host, (1 << 63) - 1),
        "F" * 32,
        "F" * 56,
        "",
    ):
        assert await broker.find_by_id(CONTEXT, "T", other) == []


async def test_a_hash_that_two_texts_share_is_no_hit(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("log.message_log", "port.lookup"):
        monkeypatch.setattr(f"brokers.embedded.{module}.text_hash", lambda kind, text: 7)
    broker = await start()
    (first, _) = await send(broker, b"1", b"2", keys=("one",))
    await send(broker, b"3", keys=("two", "one-two"))
    assert bodies(await broker.find_by_id(CONTEXT, "T", first.message_id)) == [b"1"]
    whole = {"begin_ms": 0, "end_ms": 1 << 60, "limit": 10}
    assert bodies(await broker.find_by_key(CONTEXT, "T", "two", **whole)) == [b"3"]
    assert bodies(await broker.find_by_key(CONTEXT, "T", "one", **whole)) == [b"2", b"1"]
    assert await broker.find_by_key(CONTEXT, "T", "three", **whole) == []


async def test_a_key_is_looked_up_over_hours_and_queues_newest_first(
    start: Start, clock: MovableClock
) -> None:
    broker = await start(queues=3)
    times = []
    for number in range(12):
        await send(broker, b"%d" % number, keys=("k",))
        times.append(clock.now_ms())
        clock.advance(1_801)
        await turns()
    whole = {"begin_ms": 0, "end_ms": 1 << 60}
    found = await broker.find_by_key(CONTEXT, "T", "k", limit=100, **whole)
    assert bodies(found) == [b"%d" % number for number in reversed(range(12))]
    assert bodies(await broker.find_by_key(CONTEXT, "T", "k", limit=2, **whole)) == [b"11", b"10"]
    some = await broker.find_by_key(CONTEXT, "T", "k", begin_ms=times[3], end_ms=times[5], limit=100)
    assert bodies(some) == [b"5", b"4", b"3"]
    assert await broker.find_by_key(CONTEXT, "T", "k", limit=0, **whole) == []
    assert await broker.find_by_key(CONTEXT, "T", "k", begin_ms=5, end_ms=4, limit=9) == []
