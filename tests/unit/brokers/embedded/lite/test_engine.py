"""Lite topics when the clock, or the disk, is not what it should be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.storage.keys import LITE
from popgate.context import Context
from popgate.errors import BrokerUnavailable
from popgate.filters.compiled import EVERYTHING
from popgate.lite import LITE_BIND_TOPIC, LITE_EXPIRATION, LiteAction, LiteSync
from popgate.model import (
    GroupConfig,
    Message,
    MessageType,
    Pop,
    StartFrom,
    StoredMessage,
    TopicConfig,
)
from popgate.testing import MovableClock
from tests.support.waiting import until

ME = Context(client_id="me@host@1")
MINUTES = 30
Run = Callable[[float], Awaitable[None]]


class FullDisk:
    """A database that reads and closes, but cannot be written."""

    def __init__(self, db: object) -> None:
        self._db = db

    def write(self, *_: object) -> None:
        raise OSError("no space left on device")

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)


async def turns() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def broker(tmp_path: Path, clock: MovableClock) -> AsyncIterator[EmbeddedBroker]:
    """With a topic L of lite topics that may be idle for half an hour, and a group G that is bound to it."""
    broker = EmbeddedBroker(tmp_path / "store", clock=clock)
    await broker.start()
    await broker.create_topic(
        TopicConfig("L", (MessageType.LITE,), attributes={LITE_EXPIRATION: str(MINUTES)})
    )
    await broker.create_group(GroupConfig("G", attributes={LITE_BIND_TOPIC: "L"}))
    yield broker
    await broker.stop()


async def send(broker: EmbeddedBroker, body: bytes, lite_topic: str = "room") -> None:
    await broker.send(ME, [Message("L", body, type=MessageType.LITE, lite_topic=lite_topic)])


async def subscribe(broker: EmbeddedBroker) -> None:
    await broker.subscribe_lite(ME, LiteSync("L", "G", LiteAction.ADD, ("room",)))


async def pop(
    broker: EmbeddedBroker, until: float | None = None, attempt_id: str = ""
) -> list[StoredMessage]:
    return await broker.pop_lite(
        ME, replace(Pop("L", "G", EVERYTHING, 30_000), wait_until=until, attempt_id=attempt_id)
    )


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
async def test_a_clock_that_jumps_deletes_no_lite_topic_that_was_just_used(
    broker: EmbeddedBroker, clock: MovableClock, jump_ms: int
) -> None:
    clock.set_wall(clock.now_ms() + jump_ms)
    await clock.run(1, turns)
    await send(broker, b"a")
    await clock.run(5 * 60, turns)
    await broker.stop()
    await broker.start()
    await clock.run(5 * 60, turns)
    await subscribe(broker)
    assert [message.body for message in await pop(broker)] == [b"a"]


async def test_a_lite_topic_that_is_idle_goes_though_the_clock_was_set_back(
    broker: EmbeddedBroker, clock: MovableClock
) -> None:
    clock.set_wall(clock.now_ms() - 3_600_000)
    await send(broker, b"a")
    await clock.run((MINUTES + 2) * 60, turns)
    assert await broker.lite_topics("L", "", 10) == []


@pytest.mark.parametrize("suspended", [False, True])
async def test_who_waits_gets_what_was_held_before_the_clock_was_set_back(
    broker: EmbeddedBroker, clock: MovableClock, tmp_path: Path, suspended: bool
) -> None:
    """When it is free by the new time, not when the clock is where it was."""
    await subscribe(broker)
    await send(broker, b"a")
    (first,) = await pop(broker)
    if suspended:
        await broker.change_invisible(ME, "L", "G", first.receipt, 30_000, suspend=True)
    await broker.stop()
    clock.set_wall(clock.now_ms() - 3_600_000)
    other = EmbeddedBroker(tmp_path / "store", clock=clock)
    await other.start()
    await subscribe(other)
    waiting = asyncio.ensure_future(pop(other, clock.monotonic() + 60))
    await clock.run(29, turns)
    assert not waiting.done(), "it is held"
    await clock.run(2, turns)
    assert waiting.done()
    (again,) = await waiting
    assert again.body == b"a"
    assert await other.ack(ME, "L", "G", [again.receipt]) == [None]
    await other.stop()


async def test_who_subscribes_goes_on_after_a_write_that_failed(
    broker: EmbeddedBroker, clock: MovableClock
) -> None:
    """Without telling its subscriptions again, which clients do only every 30 s."""
    await subscribe(broker)
    waiting = asyncio.ensure_future(pop(broker, clock.monotonic() + 60))
    await turns()
    store = broker._engine.store
    store._db = FullDisk(store._db)  # type: ignore[assignment]
    with pytest.raises(BrokerUnavailable):
        await send(broker, b"lost")
    await clock.run(5, turns)
    await send(broker, b"a")
    await turns()
    assert waiting.done()
    (message,) = await waiting
    assert message.body == b"a"
    assert await broker.ack(ME, "L", "G", [message.receipt]) == [None]


async def test_who_belongs_to_a_group_that_was_never_stored_is_forgotten(
    broker: EmbeddedBroker, clock: MovableClock
) -> None:
    store = broker._engine.store
    store._db = FullDisk(store._db)  # type: ignore[assignment]
    config = GroupConfig("new", attributes={LITE_BIND_TOPIC: "L"})
    making = asyncio.ensure_future(broker.create_group(config))
    await asyncio.sleep(0)
    await broker.subscribe_lite(ME, LiteSync("L", "new", LiteAction.ADD))
    assert broker._engine.subscriptions.sweep_due_s() is not None
    with pytest.raises(BrokerUnavailable):
        await making
    await clock.run(5, turns)
    assert broker._engine.subscriptions.sweep_due_s() is None, "nobody is left"


async def test_a_subscription_whose_place_was_not_stored_is_none(
    broker: EmbeddedBroker, clock: MovableClock
) -> None:
    """A group that starts at the end misses nothing that is sent after the answer to its subscription."""
    last = GroupConfig("G", start_from=StartFrom.LAST, attributes={LITE_BIND_TOPIC: "L"})
    await broker.update_group(last)
    store = broker._engine.store
    store._db = FullDisk(store._db)  # type: ignore[assignment]
    other = Context(client_id="other@host@1")
    both = (subscribe(broker), broker.subscribe_lite(other, LiteSync("L", "G", LiteAction.ADD, ("room",))))
    failed = await asyncio.gather(*both, return_exceptions=True)
    assert [type(one) for one in failed] == [BrokerUnavailable] * 2
    assert broker.lite_subscriptions(ME.client_id) == broker.lite_subscriptions(other.client_id) == 0
    await clock.run(5, turns)
    await subscribe(broker)
    await send(broker, b"a")
    assert [message.body for message in await pop(broker)] == [b"a"]


async def test_redeliveries_and_dead_letters_of_lite_topics_are_counted(
    broker: EmbeddedBroker, clock: MovableClock
) -> None:
    await subscribe(broker)
    await send(broker, b"a")
    await pop(broker)
    await clock.run(31, turns)
    (again,) = await pop(broker)
    assert again.attempt == 2
    await broker.dead_letter(ME, "L", "G", again.receipt)
    figures = broker.figures()
    assert (figures["redeliveries_total"], figures["dead_letters_total"]) == (1, 1)


async def test_many_lite_topics_that_go_at_once_look_at_all_groups_once(
    broker: EmbeddedBroker, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await subscribe(broker)
    rooms = [f"room{number}" for number in range(100)]
    await broker.send(ME, [Message("L", b"a", type=MessageType.LITE, lite_topic=room) for room in rooms])
    catalogue = broker._engine.catalogue
    groups, looks = catalogue.groups, 0

    def counted() -> object:
        nonlocal looks
        looks += 1
        return groups()

    await clock.run(MINUTES * 60 - 1, turns)
    monkeypatch.setattr(catalogue, "groups", counted)
    await clock.run(2, turns)
    assert await broker.lite_topics("L", "", 1_000) == []
    assert 1 <= looks <= 10


async def test_a_repeated_receive_of_lite_topics_keeps_what_the_first_one_gives_back(
    broker: EmbeddedBroker, clock: MovableClock
) -> None:
    await subscribe(broker)
    await send(broker, b"a")
    (first,) = await pop(broker, attempt_id="x")
    (again,) = await pop(broker, attempt_id="x")
    assert again.receipt == first.receipt
    assert await broker.give_back(ME, "L", "G", [first.receipt]) == 0
    assert await pop(broker, attempt_id="y") == []
    assert await broker.give_back(ME, "L", "G", [first.receipt]) == 1  # the repeated one was cut off, too
    (message,) = await pop(broker, attempt_id="x")
    assert message.attempt == 1
    await pop(broker, attempt_id="x")
    clock.advance(30)
    (later,) = await pop(broker, attempt_id="x")
    assert later.attempt == 2
    assert await broker.give_back(ME, "L", "G", [later.receipt]) == 1


async def test_a_repeated_receive_of_lite_topics_that_is_cancelled_leaves_the_first_one_its_messages(
    broker: EmbeddedBroker,
) -> None:
    await subscribe(broker)
    await send(broker, b"a")
    first, again = (asyncio.ensure_future(pop(broker, attempt_id="x")) for _ in range(2))
    places = broker._engine.lites._places
    await until(lambda: [place for _, place in places.items() if place.entries], pause_s=0)
    assert not first.done(), "it was written already"
    again.cancel()
    (message,) = await first
    assert again.cancelled()
    assert await pop(broker, attempt_id="y") == []
    assert await broker.give_back(ME, "L", "G", [message.receipt]) == 1


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_group_that_was_bound_elsewhere_leaves_no_place_behind(
    broker: EmbeddedBroker, clock: MovableClock, restarted: bool
) -> None:
    """Lite topics come and go for as long as their topic is there."""
    await send(broker, b"a")
    await subscribe(broker)
    (message,) = await pop(broker)
    assert await broker.ack(ME, "L", "G", [message.receipt]) == [None]
    await broker.create_topic(TopicConfig("M", (MessageType.LITE,)))
    await broker.update_group(GroupConfig("G", attributes={LITE_BIND_TOPIC: "M"}))
    if restarted:
        await broker.stop()
        await broker.start()
    store = broker._engine.store
    assert len(list(store.scan(LITE, b"p", b"q"))) == 1
    await clock.run((MINUTES + 2) * 60, turns)
    assert await broker.lite_topics("L", "", 10) == []
    assert list(store.scan(LITE, b"p", b"q")) == []


async def test_a_repeat_after_memory_was_read_again_leaves_the_first_its_own(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many receives of an attempt have a message is not in the store."""
    await subscribe(broker)
    await send(broker, b"a")
    (first,) = await pop(broker, attempt_id="x")
    engine = broker._engine
    settled = engine.settled

    async def read_again() -> None:
        await settled()
        engine.abandon(RuntimeError("a step of another client went wrong"))
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(engine, "settled", read_again)
        with pytest.raises(asyncio.CancelledError):
            await pop(broker, attempt_id="x")
    assert await pop(broker, attempt_id="y") == []
    assert await broker.ack(ME, "L", "G", [first.receipt]) == [None]


async def test_a_place_of_the_moment_in_which_a_lite_topic_goes_is_left_by_none(
    broker: EmbeddedBroker, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not in the store yet when the places there are counted."""
    await send(broker, b"a")
    await send(broker, b"b", lite_topic="other")
    await subscribe(broker)
    engine = broker._engine
    settled = engine.settled

    def and_another_goes() -> asyncio.Future[None]:
        other = engine.lites.topics.find(engine.catalogue.topic("L"), "other")
        assert other is not None
        engine.lites.delete(other)
        return settled()

    with monkeypatch.context() as patch:
        patch.setattr(engine, "settled", and_another_goes)
        (message,) = await pop(broker)
    assert await broker.ack(ME, "L", "G", [message.receipt]) == [None]
    await broker.create_topic(TopicConfig("M", (MessageType.LITE,)))
    await broker.update_group(GroupConfig("G", attributes={LITE_BIND_TOPIC: "M"}))
    await clock.run((MINUTES + 2) * 60, turns)
    assert list(engine.store.scan(LITE, b"p", b"q")) == []
