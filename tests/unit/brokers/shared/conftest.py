"""A broker that does what the test says, its host, and guests of it, on a socket of this machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brokers.capabilities import LiteTopics
from brokers.port import Broker
from brokers.shared.broker import SharedBroker
from brokers.shared.host.host import BrokerHost
from brokers.shared.settings import SharedSettings
from brokers.traits import OrderScope, Traits
from popgate.clock import Clock, SystemClock
from popgate.context import Context
from popgate.filters.compiled import EVERYTHING
from popgate.model import Message, Pop, Sent, StoredMessage
from tests.support.waiting import PATIENCE_S, until

QUICK = SharedSettings(
    startup_timeout_s=0.0,
    reconnect_first_s=0.005,
    reconnect_longest_s=0.02,
    state_s=0.02,
    stop_s=2.0,
    # Whoever is busy with other things is not taken for one who hangs.
    connect_timeout_s=PATIENCE_S,
    hello_s=PATIENCE_S,
    request_timeout_s=PATIENCE_S,
    probe_s=PATIENCE_S,
)
TRAITS = Traits(OrderScope.MESSAGE_GROUP, 7, 8, True, True, True, True, True, 9_000)


def stored(body: bytes, receipt: str = "r") -> StoredMessage:
    return StoredMessage("t", "b", 0, 1, 2, 0, 0, 3, "1.2.3.4:5", 4, "1.2.3.4:6", body, b"", 1, receipt, 5)


class Stub(LiteTopics):
    """Pops wait until they are `fed`; everything else is noted in `done`."""

    name = "stub"
    traits = TRAITS
    capability = Broker.capability

    def __init__(self) -> None:
        self.done: list[tuple[str, tuple[Any, ...]]] = []
        self.pops: list[tuple[Context, Pop, asyncio.Future[list[StoredMessage]]]] = []
        self.gate: asyncio.Future[None] | None = None
        self.failure: Exception | None = None
        self.cancelled: list[str] = []
        self.given_back: list[str] = []
        self.subscriptions: dict[str, int] = {}
        self.left: list[tuple[str, bool]] = []
        self.check: Any = None
        self.gone: Any = None
        self.failing = 0.0

    def figures(self) -> dict[str, float]:
        return {"store_failing": self.failing, "topics": 3}

    async def send(self, context: Context, messages: list[Message]) -> list[Sent]:
        self.done.append(("send", (context, messages)))
        await self._go("send")
        return [Sent(message.message_id, "b", 0, at) for at, message in enumerate(messages)]

    async def pop(self, context: Context, request: Pop) -> list[StoredMessage]:
        future: asyncio.Future[list[StoredMessage]] = asyncio.get_running_loop().create_future()
        self.pops.append((context, request, future))
        try:
            messages = await future
        except asyncio.CancelledError:
            self.cancelled.append("pop")
            raise
        if context.allowance is not None:
            context.allowance.room()
            context.allowance.add(sum(len(message.body) for message in messages))
        return messages

    def feed(self, *messages: StoredMessage) -> None:
        next(future for _, _, future in self.pops if not future.done()).set_result(list(messages))

    async def pop_lite(self, context: Context, request: Pop) -> list[StoredMessage]:
        return await self.pop(context, request)

    async def give_back(self, context: Context, topic: str, group: str, receipts: list[str]) -> int:
        self.given_back += receipts
        return len(receipts)

    async def topics_of(self, group: str) -> list[str]:
        await self._go("topics_of")
        return [group]

    async def subscribe_lite(self, context: Context, sync: Any) -> None:
        self.subscriptions[context.client_id] = len(sync.lite_topics)
        await self._go("subscribe_lite")

    def leave_lite(self, client_id: str, *, said_so: bool) -> None:
        self.left.append((client_id, said_so))

    def on_lite_gone(self, handler: Any) -> None:
        self.gone = handler

    async def lite_topics(self, topic: str, after: str, limit: int) -> list[Any]:
        return []

    async def delete_lite_topic(self, topic: str, lite_topic: str) -> None:
        self.done.append(("delete_lite_topic", (topic, lite_topic)))

    def lite_subscriptions(self, client_id: str) -> int:
        return self.subscriptions.get(client_id, 0)

    def on_check(self, handler: Any) -> None:
        self.check = handler

    async def _go(self, what: str) -> None:
        if self.gate is not None:
            try:
                await self.gate
            except asyncio.CancelledError:
                self.cancelled.append(what)
                raise
        if self.failure is not None:
            raise self.failure


class Place:
    """A host in a folder of its own, and whoever visits it."""

    def __init__(self, folder: Path) -> None:
        self.url = f"unix:{folder}/s"
        self.broker = Stub()
        self.host: BrokerHost | None = None
        self.guests: list[SharedBroker] = []
        self.context = Context(client_id="c")

    def make_host(self, url: str = "", **changes: Any) -> BrokerHost:
        broker: Any = self.broker
        return BrokerHost(broker, url or self.url, clock=SystemClock(), settings=replace(QUICK, **changes))

    async def open(self, **changes: Any) -> BrokerHost:
        self.host = self.make_host(**changes)
        await self.host.start()
        return self.host

    def make_guest(self, url: str = "", *, clock: Clock | None = None, **changes: Any) -> SharedBroker:
        guest = SharedBroker(
            url or self.url.replace("unix:", "popgate+unix:"),
            clock=clock if clock is not None else SystemClock(),
            settings=replace(QUICK, **changes),
        )
        self.guests.append(guest)
        return guest

    async def visit(self, **changes: Any) -> SharedBroker:
        guest = self.make_guest(**changes)
        await guest.start()
        return guest

    def request(self, *, wait_s: float | None = 60.0, **rest: Any) -> Pop:
        until = None if wait_s is None else time.monotonic() + wait_s
        return Pop("t", "g", EVERYTHING, 1_000, wait_until=until, **rest)

    async def close(self) -> None:
        for guest in self.guests:
            await guest.stop()
        if self.host is not None:
            await self.host.stop()


@pytest.fixture(name="soon")
def _soon() -> Callable[..., Any]:
    return until


@pytest.fixture(name="stored")
def _stored() -> Callable[..., StoredMessage]:
    return stored


@pytest.fixture
async def place(socket_folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    for patience in ("_CHECK_S", "_REPLY_S"):
        monkeypatch.setattr(f"brokers.shared.host.guest.{patience}", PATIENCE_S)
    made = Place(socket_folder)
    yield made
    await made.close()
