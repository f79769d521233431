"""What a start reads: a little, however many messages there are, and each delivery in flight once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.column_families import ColumnFamilies
from popgate.context import Context
from popgate.filters.compiled import EVERYTHING
from popgate.model import GroupConfig, Message, Pop, TopicConfig
from popgate.testing import MovableClock

CONTEXT = Context(client_id="me@host@1")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many pairs of each keyspace were read."""
    counted: Counter[str] = Counter()

    def wrap(name: str, count: Callable[[Any], int]) -> None:
        real = getattr(ColumnFamilies, name)

        def wrapped(tables: ColumnFamilies, space: str, *rest: Any) -> Any:
            found = real(tables, space, *rest)
            counted[space] += count(rest)
            return found

        monkeypatch.setattr(ColumnFamilies, name, wrapped)

    real_scan = ColumnFamilies.scan

    def scan(tables: ColumnFamilies, space: str, *rest: Any) -> Iterator[tuple[bytes, bytes]]:
        for pair in real_scan(tables, space, *rest):
            counted[space] += 1
            yield pair

    monkeypatch.setattr(ColumnFamilies, "scan", scan)
    wrap("get", lambda _: 1)
    wrap("get_many", lambda rest: len(rest[0]))
    wrap("last_below", lambda _: 1)
    return counted


async def fill(path: Path, count: int, *, take: bool) -> None:
    settings = replace(EmbeddedSettings(), max_in_flight=count)
    broker = EmbeddedBroker(path, clock=MovableClock(), settings=settings)
    await broker.start()
    await broker.create_topic(TopicConfig("T", read_queues=4, write_queues=4))
    await broker.create_group(GroupConfig("G"))
    for at in range(0, count, 100):
        await broker.send(CONTEXT, [Message("T", b"x", message_id=f"id-{at}-{n}") for n in range(100)])
    taken = 0
    while take and taken < count:
        taken += len(await broker.pop(CONTEXT, Pop("T", "G", EVERYTHING, 60_000, max_messages=100)))
    await broker.stop()


async def read_at_start(path: Path, reads: Counter[str]) -> Counter[str]:
    reads.clear()
    broker = EmbeddedBroker(path, clock=MovableClock())
    await broker.start()
    found = Counter(reads)
    await broker.stop()
    return found


async def test_a_start_reads_little_of_many_messages(tmp_path: Path, reads: Counter[str]) -> None:
    await fill(tmp_path, 20_000, take=False)
    found = await read_at_start(tmp_path, reads)
    assert found["messages"] <= 600  # the ends of the queues
    assert found["seen"] <= 20_000 / 512 + 2
    assert found.total() - found["messages"] - found["seen"] <= 50


async def test_a_start_reads_each_delivery_in_flight_once(tmp_path: Path, reads: Counter[str]) -> None:
    await fill(tmp_path, 5_000, take=True)
    found = await read_at_start(tmp_path, reads)
    assert found["inflight"] == 5_000
    assert found["messages"] <= 600
    assert found.total() - found["inflight"] - found["messages"] <= 80
