"""brokers.embedded.storage.store_metrics: the store and the broker in numbers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.storage.store import Durability
from popgate.context import Context
from popgate.ids.message_id import make_message_id
from popgate.model import EndTransaction, Message, MessageType, Resolution, Sent, TopicConfig
from popgate.testing.clock import MovableClock
from popgate.wire.messages.properties import encode_properties

CONTEXT = Context(client_id="c")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    broker = EmbeddedBroker(tmp_path / "store", clock=MovableClock(), durability=Durability.SYNC)
    await broker.start()
    await broker.create_topic(TopicConfig("T"))
    yield broker
    await broker.stop()


async def send(broker: EmbeddedBroker, **fields: object) -> Sent:
    message_id = make_message_id()
    block = encode_properties({"UNIQ_KEY": message_id, "PGROUP": "P"})
    message = Message("T", b"body", message_id, properties=block, **fields)  # type: ignore[arg-type]
    (result,) = await broker.send(CONTEXT, [message])
    assert isinstance(result, Sent)
    return result


async def test_writes_and_syncs_are_counted_with_their_time(broker: EmbeddedBroker) -> None:
    before = broker.figures()
    for _ in range(3):
        await send(broker)
    after = broker.figures()
    for name in ("store_writes_total", "store_syncs_total"):
        assert after[name] >= before[name] + 3, name
    for what in ("write", "sync"):
        total = after[f"store_{what}_seconds_total"]
        assert total > before[f"store_{what}_seconds_total"]
        assert 0 < after[f"store_{what}_longest_seconds"] <= total


async def test_rocksdb_tells_of_its_memory_and_files(broker: EmbeddedBroker) -> None:
    await send(broker)
    figures = broker.figures()
    assert figures["store_memtable_bytes"] > 0
    assert figures["store_wal_bytes"] > 0
    for name in ("store_writes_stopped", "store_background_errors", "store_pending_compaction_bytes"):
        assert figures[name] == 0, name


async def test_delayed_and_half_messages_that_wait_are_told(broker: EmbeddedBroker) -> None:
    later = MovableClock().now_ms() + 3_600_000
    delayed = [await send(broker, type=MessageType.DELAY, deliver_at_ms=later) for _ in range(3)]
    halves = [await send(broker, type=MessageType.TRANSACTION, sys_flag=4) for _ in range(2)]
    figures = broker.figures()
    assert (figures["delayed_messages"], figures["half_messages"]) == (3, 2)
    await broker.recall(CONTEXT, "T", delayed[0].recall_handle)
    end = EndTransaction("T", halves[0].transaction_id, halves[0].message_id, Resolution.COMMIT)
    await broker.end_transaction(CONTEXT, end)
    figures = broker.figures()
    assert (figures["delayed_messages"], figures["half_messages"]) == (2, 1)


async def test_half_messages_are_told_after_a_restart_too(broker: EmbeddedBroker) -> None:
    for _ in range(4):
        await send(broker, type=MessageType.TRANSACTION, sys_flag=4)
    await broker.stop()
    await broker.start()
    assert broker.figures()["half_messages"] == 4


async def test_a_store_that_is_closed_has_figures_all_the_same(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "never", clock=MovableClock())
    assert broker.figures()["store_bytes"] == 0


async def test_a_slow_sync_is_told_as_such(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    store = broker._engine.store
    real = store._opened()

    class Slow:
        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

        def flush_wal(self, sync: bool) -> None:
            time.sleep(0.01)
            real.flush_wal(sync)

    monkeypatch.setattr(store, "_db", Slow())
    await asyncio.wait_for(send(broker), 60)
    assert broker.figures()["store_sync_longest_seconds"] >= 0.01
