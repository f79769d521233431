"""A world for the scenarios: gateways on stores that outlive them, faults by seed, clients that know nothing.

Time is moved by hand, so that hours cost nothing. `crashed` is what `kill -9` leaves: a gateway on
what the operating system had of the store. Real processes are in `test_processes.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Durability
from popgate.errors import Fault
from popgate.faults import Faults
from popgate.testing import MovableClock
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from processors.observer import NullObserver
from protocols.adapter import AdapterContext, parse_listen
from protocols.schemes import make_adapter
from tests.support.waiting import until, wait_until


def _module(name: str, path: str) -> Any:
    """A module of a folder of tests, which is no package to import from."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_HERE = Path(__file__).parent
_DOOR = _module("door_tests", "unit/protocols/grpc/conftest.py")
"""The plain gRPC client of the door's own tests."""
_LIVE = _module("live_scenarios", "scenarios/live.py")
_SIDE_BY_SIDE = _module("live_scenarios_stage", "contract/live.py")
_SIDE_BY_SIDE.LONGEST_S = 1_000.0
"""One of them waits for what brokers do after two minutes, up to three times."""


def copied(store: Path, target: Path) -> None:
    """The files of a store as the system has them now; again, until none came or went meanwhile."""

    def copied_at_rest() -> bool:
        before = sorted(file.name for file in store.iterdir())
        with contextlib.suppress(FileNotFoundError, shutil.Error):
            shutil.copytree(store, target)
            if sorted(file.name for file in store.iterdir()) == before == sorted(os.listdir(target)):
                return True
        shutil.rmtree(target, ignore_errors=True)
        return False

    wait_until(copied_at_rest, what="the store is at rest")


class Counting(NullObserver):
    """What failed, and what became of deliveries."""

    def __init__(self) -> None:
        self.failures: Counter[tuple[str, Fault]] = Counter()
        self.freed = 0

    def failed(self, operation: str, fault: Fault) -> None:
        self.failures[operation, fault] += 1

    def returned(self, topic: str, group: str, count: int) -> None:
        self.freed += count


class Replica:
    """A gateway: broker, processor and gRPC door, with the faults it was ordered."""

    def __init__(
        self,
        path: Path,
        clock: MovableClock,
        faults: str,
        limits: Limits,
        settings: EmbeddedSettings,
        ping_s: float,
    ) -> None:
        self.path = path
        self.clock = clock
        self.killed = 0
        self.faults = Faults.parse(faults, kill=self._kill) if faults else None
        self.broker = EmbeddedBroker(path, clock=clock, settings=settings, faults=self.faults)
        self.observer = Counting()
        self.processor = MessagingProcessor(self.broker, clock=clock, limits=limits, observer=self.observer)
        adapter_context = AdapterContext(self.processor, clock, faults=self.faults, connection_ping_s=ping_s)
        self.adapter = make_adapter(parse_listen("grpc://127.0.0.1:0"), adapter_context)
        if self.faults is not None:
            self.faults.refuse_unclaimed()
        self.stopped = False

    def _kill(self) -> None:
        self.killed += 1

    def arm(self, step: str, *, spare: int = 0) -> None:
        """The rules of a step begin `spare` calls from now; they are written `after=1000000` until then."""
        assert self.faults is not None
        for rule in self.faults.rules:
            if rule.step == step:
                rule.after = self.faults.calls.get(step, 0) + spare

    async def start(self) -> None:
        await self.broker.start()
        await self.processor.start()
        await self.adapter.start()
        self.address = self.adapter.addresses[0].removeprefix("grpc://")
        self.port = int(self.address.rpartition(":")[2])

    async def drain(self, seconds: float = 5.0) -> None:
        self.processor.drain()
        await self.adapter.drain(self.clock.monotonic() + seconds)

    async def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            await self.adapter.stop()
            await self.processor.stop()
            await self.broker.stop()

    async def pass_s(self, seconds: float) -> None:
        """Let time pass, and let what became due be done."""

        async def turn() -> None:
            for _ in range(6):
                await asyncio.sleep(0)

        await self.clock.run(seconds, turn)
        for _ in range(20):
            await asyncio.sleep(0)
            self.clock.advance(0)


class World:
    """Makes gateways and clients, and takes them down again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = MovableClock(now_ms=time.time_ns() // 1_000_000)
        self.replicas: list[Replica] = []
        self._channels: list[grpc.aio.Channel] = []
        self.until = until

    async def gateway(
        self,
        faults: str = "",
        *,
        store: Path | None = None,
        limits: Limits | None = None,
        ping_s: float = 20.0,
        **settings: Any,
    ) -> Replica:
        settings.setdefault("durability", Durability.NONE)
        path = store if store is not None else self.path / f"store-{len(self.replicas)}"
        made = Replica(path, self.clock, faults, limits or Limits(), EmbeddedSettings(**settings), ping_s)
        self.replicas.append(made)
        await made.start()
        return made

    async def crashed(self, replica: Replica, faults: str = "", **more: Any) -> Replica:
        """A successor on what a kill now leaves of the store; the killed one says nothing any more."""
        left = self.path / f"left-{len(self.replicas)}"
        copied(replica.path, left)
        await replica.stop()
        return await self.gateway(faults, store=left, **more)

    async def restarted(self, replica: Replica, faults: str = "", **more: Any) -> Replica:
        """A successor after a stop in order."""
        await replica.stop()
        return await self.gateway(faults, store=replica.path, **more)

    def client(self, replica: Replica, **headers: str) -> Any:
        """A client with a connection of its own."""
        return self.dial(replica.address, replica.port, **headers)

    def dial(self, address: str, port: int, **headers: str) -> Any:
        """The same at any address; `port` is the gateway's, as the client names it."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        channel = grpc.aio.insecure_channel(address, options=options)
        self._channels.append(channel)
        return _DOOR.Client(channel, port, **headers)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)
        for replica in self.replicas:
            await replica.stop()


def handle(message: Any) -> str:
    return str(message.system_properties.receipt_handle)


async def arrived(stream: Any) -> list[Any]:
    """The messages of a stream that may break: those that came before that."""
    found = []
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for frame in stream:
            if frame.WhichOneof("content") == "message":
                found.append(frame.message)  # noqa: PERF401 - what came stays, also when it breaks
    return found


@pytest.fixture(name="arrived")
def _arrived() -> Any:
    return arrived


@pytest.fixture(name="handle")
def _handle() -> Any:
    return handle


_STAGE = pytest.StashKey[Any]()
_CLOSING = contextlib.ExitStack()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Tests that take `live` run side by side."""

    def fixtures(cluster: Any) -> Any:
        return _LIVE.fixtures_of(cluster, _DOOR.Client, Counting, _CLOSING)

    stage = session.stash[_STAGE] = _SIDE_BY_SIDE.Stage(fixtures)
    for number, item in enumerate(items):
        if isinstance(item, pytest.Function) and "live" in item.fixturenames and item.path.parent == _HERE:
            items[number] = _SIDE_BY_SIDE.in_place_of(item, stage)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _STAGE in session.stash:
        session.stash[_STAGE].close()
    _CLOSING.close()


@pytest.fixture
def live() -> None:
    """A `Live` of `live.py`, which gives it to tests that run side by side; nobody else can have one."""
    pytest.fail("only tests of this folder, started side by side, work before the live cluster")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    await world.close()
