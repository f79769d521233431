"""Power loss: only what a completed sync has put on the disk is left of the folder.

The test keeps a second name for every file and its size as of the last completed sync, which is
what a disk is sure to have; what came later may be there, torn, zero or garbage.
"""

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Durability, Store
from popgate.clock import Clock, SystemClock
from popgate.context import Context
from popgate.filters.compiled import compile_filter
from popgate.model import (
    EndTransaction,
    FilterKind,
    GroupConfig,
    Message,
    MessageType,
    Pop,
    Resolution,
    Sent,
    TopicConfig,
)
from popgate.testing import MovableClock

CONTEXT = Context(client_id="test")
EVERYTHING = compile_filter(FilterKind.TAG, "*")
Tail = Callable[[random.Random, bytes], bytes]
"""What the disk has of the bytes that were written to a file and not synced."""

TAILS: dict[str, Tail] = {
    "nothing": lambda chance, late: b"",
    "a part": lambda chance, late: late[: chance.randrange(len(late) + 1)],
    "zeros": lambda chance, late: bytes(len(late)),
    "garbage": lambda chance, late: chance.randbytes(len(late)),
    "torn pages": lambda chance, late: bytes(min(len(late), 512)) + late[512:],
}


class Disk:
    """Knows what of a store's folder would be left if the power failed now."""

    def __init__(self, store: Store, links: Path) -> None:
        self.syncs = 0
        self._store = store
        self._links = links
        self._looks = 0
        self._synced = self._look()
        self._syncing = self._synced
        store.on_syncing = self._begin
        store.on_synced = self._end

    def _begin(self) -> None:
        self._syncing = self._look()

    def _end(self) -> None:
        self._synced = self._syncing
        self.syncs += 1

    def _look(self) -> dict[Path, int]:
        """A link to every file, and its size; again, until nothing changed meanwhile."""
        while True:
            self._looks += 1
            folder = self._links / str(self._looks)
            folder.mkdir(parents=True)
            found: dict[Path, int] = {}
            for file in self._files():
                try:
                    os.link(file, folder / file.name)
                except FileNotFoundError:
                    break
                found[folder / file.name] = (folder / file.name).stat().st_size
            else:
                # A file that grew meanwhile may have been looked at before what another one says of it.
                if self._sizes() == {link.name: size for link, size in found.items()}:
                    return found

    def _sizes(self) -> dict[str, int]:
        with suppress(FileNotFoundError):
            return {file.name: file.stat().st_size for file in self._files()}
        return {}

    def _files(self) -> list[Path]:
        return [file for file in self._store.path.iterdir() if not file.name.startswith(("LOCK", "LOG"))]

    def fail_power(self, target: Path, tail: Tail, chance: random.Random) -> None:
        """Make `target` the folder as the disk has it."""
        target.mkdir()
        for link, size in self._synced.items():
            data = link.read_bytes()
            late = tail(chance, data[size:]) if link.suffix == ".log" else b""
            (target / link.name).write_bytes(data[:size] + late)


async def started(
    folder: Path, durability: Durability, clock: Clock | None = None, **settings: object
) -> EmbeddedBroker:
    values = EmbeddedSettings(durability=durability, **settings)  # type: ignore[arg-type]
    broker = EmbeddedBroker(folder, clock=clock or SystemClock(), settings=values)
    await broker.start()
    return broker


async def prepared(broker: EmbeddedBroker) -> None:
    await broker.create_topic(TopicConfig("T", read_queues=2, write_queues=2))
    await broker.create_topic(TopicConfig("X", read_queues=1, write_queues=1))
    await broker.create_group(GroupConfig("g"))


async def send(broker: EmbeddedBroker, *bodies: str) -> None:
    results = await broker.send(CONTEXT, [Message("T", body.encode(), message_id=body) for body in bodies])
    assert all(isinstance(result, Sent) for result in results)


async def pop(broker: EmbeddedBroker, topic: str = "T") -> list[str]:
    """The bodies of everything that the group may have now, by popping until nothing comes."""
    found: list[str] = []
    empty = 0
    while empty < 4:
        messages = await broker.pop(CONTEXT, Pop(topic, "g", EVERYTHING, 3_600_000, max_messages=1000))
        found += [message.body.decode().rstrip() for message in messages]
        empty = 0 if messages else empty + 1
    return found


class Load:
    """Clients of a broker, who note what they were answered."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.chance = random.Random(7)
        self.sent: set[str] = set()
        self.acking: set[str] = set()
        self.acked: set[str] = set()
        self.committed: set[str] = set()
        self.rolled_back: set[str] = set()

    async def send(self, who: int, count: int) -> None:
        for number in range(count):
            bodies = [f"{who}-{number}-{n}".ljust(self.chance.choice([20, 3000])) for n in range(4)]
            await send(self.broker, *bodies)
            self.sent.update(body.rstrip() for body in bodies)

    async def consume(self, count: int) -> None:
        while count:
            request = Pop("T", "g", EVERYTHING, 3_600_000, max_messages=4)
            messages = await self.broker.pop(CONTEXT, request)
            if not messages:
                await asyncio.sleep(0)
                continue
            count -= 1
            bodies = {message.body.decode().rstrip() for message in messages}
            self.acking |= bodies
            await self.broker.ack(CONTEXT, "T", "g", [message.receipt for message in messages])
            self.acked |= bodies

    async def transact(self, count: int) -> None:
        for number in range(count):
            body = f"x-{number}"
            message = Message("X", body.encode(), message_id=body, type=MessageType.TRANSACTION)
            [result] = await self.broker.send(CONTEXT, [message])
            assert isinstance(result, Sent)
            how = self.chance.choice(list(Resolution))
            await self.broker.end_transaction(CONTEXT, EndTransaction("X", result.transaction_id, body, how))
            (self.committed if how is Resolution.COMMIT else self.rolled_back).add(body)


@pytest.mark.parametrize("tail", TAILS)
async def test_with_sync_every_answer_survives_a_power_loss(tmp_path: Path, tail: str) -> None:
    broker = await started(tmp_path / "store", Durability.SYNC, write_buffer_bytes=128 * 1024)
    await prepared(broker)
    disk = Disk(broker._engine.store, tmp_path / "links")
    load = Load(broker)
    work = [load.send(0, 40), load.send(1, 40), load.consume(50), load.transact(30)]
    tasks = [asyncio.create_task(step) for step in work]  # type: ignore[arg-type,var-annotated]
    chance = random.Random(tail)
    for outage in range(4):
        wanted = len(load.sent) + chance.randint(20, 90)
        # Of each kind there is something that was answered, however the steps of all fall together.
        while not (len(load.sent) >= wanted and load.acked and load.committed) and not all(
            task.done() for task in tasks
        ):
            await asyncio.sleep(0)
        # In this very moment, with steps of everybody under way:
        answered = (set(load.sent), set(load.acking), set(load.acked))
        ended = (set(load.committed), set(load.rolled_back))
        disk.fail_power(tmp_path / f"copy {outage}", TAILS[tail], chance)

        later = MovableClock(SystemClock().now_ms() + 7_200_000)
        left = await started(tmp_path / f"copy {outage}", Durability.SYNC, later)
        found = await pop(left)
        assert len(found) == len(set(found))
        sent, acking, acked = answered
        assert sent - acking <= set(found)
        assert not acked & set(found)
        transactions = await pop(left, "X")
        assert len(transactions) == len(set(transactions))
        assert ended[0] <= set(transactions)
        assert not ended[1] & set(transactions)
        await left.stop()
        assert acked
        assert ended[0]
    for task in tasks:
        await task
    await broker.stop()


async def test_with_none_a_power_loss_takes_what_was_answered(tmp_path: Path) -> None:
    broker = await started(tmp_path / "store", Durability.SYNC)
    await prepared(broker)
    await send(broker, "before")
    await broker.stop()
    broker = await started(tmp_path / "store", Durability.NONE)
    disk = Disk(broker._engine.store, tmp_path / "links")
    load = Load(broker)
    await load.send(0, 30)
    disk.fail_power(tmp_path / "copy", TAILS["nothing"], random.Random(1))
    assert disk.syncs == 0
    left = await started(tmp_path / "copy", Durability.NONE)
    found = set(await pop(left))
    assert "before" in found
    assert load.sent - found
    await left.stop()
    await broker.stop()


async def test_with_interval_an_answer_is_on_the_disk_an_interval_later_and_not_before(
    tmp_path: Path,
) -> None:
    clock = MovableClock()
    broker = await started(tmp_path / "store", Durability.INTERVAL, clock, sync_interval_s=0.1)
    await prepared(broker)
    disk = Disk(broker._engine.store, tmp_path / "links")
    await send(broker, "a", "b")
    chance = random.Random(1)

    async def left_in(name: str) -> list[str]:
        disk.fail_power(tmp_path / name, TAILS["nothing"], chance)
        left = await started(tmp_path / name, Durability.INTERVAL, clock)
        found = await pop(left)
        await left.stop()
        return found

    async def synced(times: int) -> None:
        deadline = asyncio.get_running_loop().time() + 60
        while disk.syncs < times:
            assert asyncio.get_running_loop().time() < deadline, "nothing was synced"
            await asyncio.sleep(0.001)

    clock.advance(0.1)
    await synced(1)
    assert sorted(await left_in("in time")) == ["a", "b"]
    await send(broker, "c")
    clock.advance(0.099)
    assert sorted(await left_in("too early")) == ["a", "b"]
    clock.advance(0.002)
    await synced(2)
    assert sorted(await left_in("in time again")) == ["a", "b", "c"]
    await broker.stop()
