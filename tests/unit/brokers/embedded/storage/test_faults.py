"""The store with faults on order: each fault is what the real trouble is, and ends as that does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.storage.faults import FaultyStore, store_maker
from brokers.embedded.storage.keys import MESSAGES
from brokers.embedded.storage.store import Durability, Store
from popgate.errors import BrokerTimeout, BrokerUnavailable
from popgate.faults import Faults
from popgate.testing import MovableClock

Make = Callable[..., FaultyStore]


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def killed() -> list[str]:
    return []


@pytest.fixture
def make(tmp_path: Path, clock: MovableClock, killed: list[str]) -> Iterator[Make]:
    made: list[Store] = []

    def kill() -> None:
        killed.append("now")

    def make_store(text: str, durability: Durability = Durability.NONE) -> FaultyStore:
        faults = Faults.parse(text, kill=kill)
        store = store_maker(faults)(tmp_path / "store", clock, durability=durability)
        assert isinstance(store, FaultyStore)
        made.append(store)
        store.open()
        return store

    yield make_store
    for store in made:
        store.close()


def put(store: Store, key: bytes) -> asyncio.Future[None]:
    store.put(MESSAGES, key, b"1")
    return store.commit()


async def test_a_failed_write_is_told_as_not_done_and_the_store_comes_back(
    make: Make, clock: MovableClock
) -> None:
    store = make("seed=1;fail=commit:after=1:times=1")
    await put(store, b"a")
    with pytest.raises(BrokerUnavailable, match="failed on purpose"):
        await put(store, b"b")
    assert store.failing
    clock.advance(1)
    await put(store, b"c")
    assert [key for key, _ in store.scan(MESSAGES, b"")] == [b"a", b"c"]
    assert [(one.number, one.call) for one in store.faults.happened] == [(1, 2)]


async def test_a_failed_sync_leaves_everybody_in_doubt(make: Make, clock: MovableClock) -> None:
    store = make("seed=1;fail=sync:times=1", Durability.SYNC)
    with pytest.raises(BrokerTimeout, match="not known"):
        await put(store, b"a")
    clock.advance(1)
    await put(store, b"b")
    assert [key for key, _ in store.scan(MESSAGES, b"")] == [b"a", b"b"]


async def test_a_delayed_commit_comes_late_with_what_came_meanwhile(make: Make, clock: MovableClock) -> None:
    store = make("seed=1;delay=commit:200ms:times=1")
    first = put(store, b"a")
    await asyncio.sleep(0)
    second = put(store, b"b")
    for _ in range(5):
        await asyncio.sleep(0)
    assert not first.done()
    clock.advance(0.2)
    await asyncio.gather(first, second)
    assert [key for key, _ in store.scan(MESSAGES, b"")] == [b"a", b"b"]


async def test_a_full_disk_fails_writes_and_opening_until_its_time_is_over(
    make: Make, clock: MovableClock
) -> None:
    store = make("seed=1;full=commit:for=3s:times=1")
    with pytest.raises(BrokerUnavailable, match="No space left"):
        await put(store, b"a")
    clock.advance(1)
    assert store.failing
    with pytest.raises(BrokerUnavailable, match="No space left"):
        await put(store, b"b")
    clock.advance(10)
    assert not store.failing
    await put(store, b"c")


async def test_opening_again_can_fail_too(make: Make, clock: MovableClock) -> None:
    store = make("seed=1;fail=commit:times=1;fail=open:times=2")
    with pytest.raises(BrokerUnavailable):
        await put(store, b"a")
    clock.advance(0.3)
    assert store.failing
    with pytest.raises(BrokerUnavailable):  # a disk with errors is not read either
        store.first(MESSAGES, b"")
    clock.advance(10)
    assert not store.failing
    assert store.faults.calls["open"] == 3


async def test_a_disk_can_be_read_only_for_a_while(make: Make, clock: MovableClock) -> None:
    store = make("seed=1;readonly=commit:for=5s:after=1:times=1")
    await put(store, b"a")
    for _ in range(2):
        with pytest.raises(BrokerUnavailable, match="Read-only file system"):
            await put(store, b"b")
        clock.advance(1)
        assert [key for key, _ in store.scan(MESSAGES, b"")] == [b"a"]
    clock.advance(10)
    await put(store, b"c")
    assert [key for key, _ in store.scan(MESSAGES, b"")] == [b"a", b"c"]


@pytest.mark.parametrize(
    ("step", "found"), [("commit", []), ("committed", [b"a"]), ("sync", [b"a"]), ("synced", [b"a"])]
)
async def test_the_process_can_end_at_every_step(
    make: Make, killed: list[str], step: str, found: list[bytes]
) -> None:
    store = make(f"seed=1;kill={step}:times=1", Durability.SYNC)
    seen: list[list[bytes]] = []

    def die() -> None:
        seen.append([key for key, _ in store.scan(MESSAGES, b"")])

    store.faults._kill = die
    put(store, b"a")
    async with asyncio.timeout(100):  # a disk that has much to do takes seconds to sync
        while not seen:
            await asyncio.sleep(0.01)
    assert seen == [found]


async def test_the_start_of_a_store_is_no_call(make: Make) -> None:
    store = make("seed=1;fail=commit")
    assert store.faults.calls == {}


def test_a_broker_without_faults_has_the_plain_store(tmp_path: Path, clock: MovableClock) -> None:
    assert type(EmbeddedBroker(tmp_path, clock=clock)._engine.store) is Store
    faulty = EmbeddedBroker(tmp_path, clock=clock, faults=Faults.parse("seed=1;fail=commit"))
    assert type(faulty._engine.store) is FaultyStore


def test_the_disk_has_no_room_for_a_while(make: Make, clock: MovableClock) -> None:
    store = make("seed=1;full=disk:for=5s:after=1:times=1")
    assert store.free_bytes() > 0
    assert store.free_bytes() == 0
    clock.advance(4)
    assert store.free_bytes() == 0
    clock.advance(2)
    assert store.free_bytes() > 0
