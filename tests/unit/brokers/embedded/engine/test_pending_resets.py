"""brokers.embedded.engine.pending_resets: resets wait for a reader, for a time, over restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.engine import pending_resets
from brokers.embedded.engine.pending_resets import HELD_MS, PendingResets, ResetQueue
from brokers.embedded.storage.keys import META
from brokers.embedded.storage.store import Store
from popgate.context import Context
from popgate.filters.compiled import EVERYTHING
from popgate.model import GroupConfig, Message, Pop, StartFrom, TopicConfig
from popgate.testing import MovableClock
from popgate.wire.messages.properties import encode_properties

NOW_MS = 1_700_000_000_000
ONE, OTHER = ResetQueue(1, 2, 0), ResetQueue(1, 2, 1)
PLACE = "readers", "orders", "popgate", 0
ME = Context(client_id="reader")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path, MovableClock())
    store.open()
    yield store
    store.close()


def stored(store: Store) -> int:
    return sum(1 for _ in store.scan(META, b"pending reset ", b"pending reset \xff"))


async def test_a_reset_waits_for_its_reader_until_its_time_is_over(store: Store) -> None:
    resets = PendingResets(store)
    resets.begin(ONE, NOW_MS)
    assert resets.is_pending(ONE, NOW_MS + HELD_MS - 1)
    assert not resets.is_pending(ONE, NOW_MS + HELD_MS)
    assert not resets.is_pending(OTHER, NOW_MS)
    resets.end(ONE)
    assert not resets.is_pending(ONE, NOW_MS)
    await store.commit()
    assert stored(store) == 0


async def test_what_waits_is_there_after_a_restart_and_what_is_over_is_gone(store: Store) -> None:
    resets = PendingResets(store)
    resets.begin(ONE, NOW_MS)
    resets.begin(OTHER, NOW_MS + 5_000)
    await store.commit()
    again = PendingResets(store)
    again.load(NOW_MS + HELD_MS)
    assert not again.is_pending(ONE, NOW_MS + HELD_MS)
    assert again.is_pending(OTHER, NOW_MS + HELD_MS)
    await store.commit()
    assert stored(store) == 1


async def test_a_clock_that_was_set_back_makes_none_wait_for_longer(store: Store) -> None:
    PendingResets(store).begin(ONE, NOW_MS)
    await store.commit()
    again = PendingResets(store)
    again.load(NOW_MS - 3_600_000)
    assert not again.is_pending(ONE, NOW_MS - 3_600_000)


async def test_memory_is_bounded_by_the_oldest(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_resets, "MOST", 2)
    resets = PendingResets(store)
    for number in (0, 1, 0, 2):
        resets.begin(ResetQueue(1, 2, number), NOW_MS)
    assert [resets.is_pending(ResetQueue(1, 2, number), NOW_MS) for number in range(3)] == [True, False, True]
    await store.commit()
    assert stored(store) == 2
    resets.begin(OTHER, NOW_MS + HELD_MS)
    assert repr(resets) == "<PendingResets 1>"


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[EmbeddedBroker]:
    broker = EmbeddedBroker(path, clock=MovableClock())
    await broker.start()
    yield broker
    await broker.stop()


async def fill(broker: EmbeddedBroker) -> None:
    """Three messages in one queue, all of them read."""
    await broker.create_topic(TopicConfig("orders", write_queues=1, read_queues=1))
    await broker.create_group(GroupConfig("readers"))
    names = [f"id{number}" for number in range(3)]
    blocks = [encode_properties({"UNIQ_KEY": name}) for name in names]
    await broker.send(
        ME, [Message("orders", b"", name, properties=at) for name, at in zip(names, blocks, strict=True)]
    )
    assert await broker.commit_read(ME, *PLACE, 3) is None


async def test_a_reset_is_not_undone_across_a_restart_of_the_broker(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await fill(broker)
        await broker.reset("readers", "orders", StartFrom.FIRST)
    async with running(tmp_path) as broker:
        assert await broker.commit_read(ME, *PLACE, 3) == 0
        assert await broker.begin_read(ME, *PLACE, 3) == 0
        assert await broker.commit_read(ME, *PLACE, 2) is None
        assert await broker.begin_read(ME, "strangers", *PLACE[1:], 1) == 1


async def test_a_group_that_popped_on_after_a_reset_is_not_sent_back(tmp_path: Path) -> None:
    """Nobody reads by true pull meanwhile; who does so later begins where the pops are."""
    async with running(tmp_path) as broker:
        await fill(broker)
        await broker.reset("readers", "orders", StartFrom.FIRST)
        pop = Pop("orders", "readers", EVERYTHING, 60_000, max_messages=2)
        receipts = [message.receipt for message in await broker.pop(ME, pop)]
        await broker.ack(ME, "orders", "readers", receipts)
        assert await broker.begin_read(ME, *PLACE, 0) == 2
        assert await broker.commit_read(ME, *PLACE, 3) is None
