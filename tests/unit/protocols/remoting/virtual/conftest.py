"""A door before several brokers, as classic clients before 4.9.5 meet it, on a clock that stands still.

The brokers are one embedded broker whose queues go by other names; their logs begin at 0 each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brokers.capabilities import BrokerPlace, TellsBrokers
from brokers.embedded.broker import EmbeddedBroker
from brokers.numbering import NumbersQueues
from popgate.context import Context
from popgate.errors import BadRequest, BrokerUnavailable, GatewayError, NotFound
from popgate.ids.queue_numbers import Numbered, QueueNumbers, may_be_numbered
from popgate.messages.packed_messages import PackedMessages
from popgate.model import (
    Bounds,
    EndTransaction,
    Filter,
    Message,
    Pop,
    Pulled,
    Queue,
    Route,
    SendBack,
    Sent,
    StoredMessage,
)
from popgate.testing.clock import MovableClock
from popgate.wire.frames.remoting import V4_9_4, Command
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from protocols.remoting.door import Door
from protocols.remoting.requests import DoorContext
from tests.unit.protocols.remoting.conftest import ADDRESS, Caller, FakePeer, Stage

TOPIC, GROUP = "orders", "readers"
Named = tuple[str, str, int]


class SeveralBrokers(EmbeddedBroker, TellsBrokers, NumbersQueues):
    """`layout`: what the queues of TOPIC are called; `away`: brokers that are not there now."""

    def __init__(self, path: Path, *, clock: MovableClock) -> None:
        super().__init__(path, clock=clock)
        self.layout: list[Numbered] = []
        self.away: set[str] = set()
        self.cluster = ["a"]
        self.numbers: dict[str, QueueNumbers] = {}
        self.keeps = True
        """Whether numbers can be asked for."""
        self.asked: list[str] = []
        """Topics that they were asked for."""
        self.hangs: asyncio.Event | None = None
        """Until it is set nobody says a number."""
        self.logs: dict[str, list[int]] = {}
        """By broker: what lies at its places 0, 100, 200, …"""

    # what is called how

    def inner(self, topic: str, broker: str, queue_id: int) -> int:
        if broker in self.away:
            raise BrokerUnavailable(f"broker {broker} is away")
        if topic != TOPIC:
            return queue_id
        try:
            return self.layout.index((broker, queue_id))
        except ValueError:
            raise BadRequest(f"there is no queue {queue_id} of {broker}") from None

    def outer(self, topic: str, queue_id: int) -> Numbered:
        return self.layout[queue_id] if topic == TOPIC else ("a", queue_id)

    def place(self, broker: str, inner: int) -> int:
        log = self.logs.setdefault(broker, [])
        if inner not in log:
            log.append(inner)
        return log.index(inner) * 100

    def inner_place(self, broker: str, place: int) -> int:
        number, rest = divmod(place, 100)
        log = self.logs.get(broker, [])
        if rest or not 0 <= number < len(log):
            raise NotFound(f"broker {broker} has no message at {place}")
        return log[number]

    def stored(self, one: StoredMessage) -> StoredMessage:
        broker, queue_id = self.outer(one.topic, one.queue_id)
        place = self.place(broker, one.commit_offset)
        return replace(
            one, broker=broker, queue_id=queue_id, commit_offset=place, store_host="10.2.2.2:10911"
        )

    # what is asked

    async def known_brokers(self) -> Sequence[BrokerPlace]:
        return [BrokerPlace("one", name) for name in self.cluster]

    async def numbered(self, context: Context, topic: str, queues: Sequence[Numbered]) -> QueueNumbers:
        if self.hangs is not None:
            await self.hangs.wait()
        if not self.keeps:
            raise BrokerUnavailable("no name server can be reached")
        self.asked.append(topic)
        named = [one for one in queues if may_be_numbered(one[0])]
        found = self.numbers[topic] = self.numbers.get(topic, QueueNumbers()).grown(named)
        return found

    async def route(self, topic: str) -> Route:
        route = await super().route(topic)
        queues = [
            Queue(*self.outer(topic, one.queue_id), one.permission)
            for one in route.queues
            if topic != TOPIC or one.queue_id < len(self.layout)
        ]
        return replace(route, queues=tuple(one for one in queues if one.broker not in self.away))

    async def send(self, context: Context, messages: Sequence[Message]) -> list[Sent | GatewayError]:
        inner = [
            replace(one, broker=self.name, queue_id=self.inner(one.topic, one.broker, one.queue_id))
            for one in messages
        ]
        results: list[Sent | GatewayError] = []
        for message, one in zip(messages, await super().send(context, inner), strict=True):
            if isinstance(one, Sent):
                place = self.place(message.broker, one.commit_offset)
                one = replace(
                    one, broker=message.broker, queue_id=message.queue_id, commit_offset=place,
                    store_host="10.2.2.2:10911",
                )  # fmt: skip
            results.append(one)
        return results

    async def send_packed(self, context: Context, packed: PackedMessages) -> list[Sent | GatewayError]:
        return await self.send(context, packed.unpack())

    async def pull(
        self,
        context: Context,
        topic: str,
        broker: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int,
        max_bytes: int,
        passing: Filter,
        wait_until: float | None,
    ) -> Pulled:
        inner = self.inner(topic, broker, queue_id)
        pulled = await super().pull(
            context,
            topic,
            self.name,
            inner,
            offset,
            max_messages=max_messages,
            max_bytes=max_bytes,
            passing=passing,
            wait_until=wait_until,
        )
        return replace(pulled, messages=[self.stored(one) for one in pulled.messages])

    async def pop(self, context: Context, request: Pop) -> list[StoredMessage]:
        inner = self.inner(request.topic, request.broker, request.queue_id)
        found = await super().pop(context, replace(request, broker=self.name, queue_id=inner))
        return [self.stored(one) for one in found]

    async def bounds(
        self, context: Context, topic: str, broker: str, queue_id: int, *, of_master: bool = False
    ) -> Bounds:
        inner = self.inner(topic, broker, queue_id)
        return await super().bounds(context, topic, self.name, inner, of_master=of_master)

    async def offset_at(self, context: Context, topic: str, broker: str, queue_id: int, time_ms: int) -> int:
        inner = self.inner(topic, broker, queue_id)
        return await super().offset_at(context, topic, self.name, inner, time_ms)

    async def committed(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int
    ) -> int | None:
        inner = self.inner(topic, broker, queue_id)
        return await super().committed(context, group, topic, self.name, inner)

    async def commit(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> None:
        inner = self.inner(topic, broker, queue_id)
        await super().commit(context, group, topic, self.name, inner, offset)

    async def lock(
        self, context: Context, group: str, client_id: str, queues: Sequence[Named]
    ) -> list[Named]:
        inner = {(one[0], self.name, self.inner(*one)): one for one in queues}
        held = await super().lock(context, group, client_id, list(inner))
        return [inner[one] for one in held]

    async def unlock(self, context: Context, group: str, client_id: str, queues: Sequence[Named]) -> None:
        inner = [(one[0], self.name, self.inner(*one)) for one in queues]
        await super().unlock(context, group, client_id, inner)

    async def send_back(self, context: Context, request: SendBack) -> None:
        inner = self.inner_place(request.broker, request.commit_offset)
        await super().send_back(context, replace(request, broker=self.name, commit_offset=inner))

    async def at_place(self, context: Context, broker: str, commit_offset: int) -> StoredMessage:
        inner = self.inner_place(broker, commit_offset)
        return self.stored(await super().at_place(context, self.name, inner))

    async def find_by_id(self, context: Context, topic: str, message_id: str) -> list[StoredMessage]:
        return [self.stored(one) for one in await super().find_by_id(context, topic, message_id)]

    async def find_by_key(
        self, context: Context, topic: str, key: str, *, begin_ms: int, end_ms: int, limit: int
    ) -> list[StoredMessage]:
        found = await super().find_by_key(context, topic, key, begin_ms=begin_ms, end_ms=end_ms, limit=limit)
        return [self.stored(one) for one in found]

    async def end_transaction(self, context: Context, end: EndTransaction) -> None:
        if end.place is not None:
            inner = self.inner_place(end.place.broker, end.place.commit_offset)
            end = replace(end, place=replace(end.place, broker=self.name, commit_offset=inner))
        await super().end_transaction(context, end)


class DoorCaller(Caller):
    """Asks as its client's requests come in at a whole door."""

    def __init__(self, door: Door, version: int, client_id: str = "client@1") -> None:
        super().__init__(peer=FakePeer(version=version), client_id=client_id)
        self.door = door
        self.peer.client_id = client_id

    async def call(
        self, code: int, fields: Any = None, body: bytes = b"", *, oneway: bool = False
    ) -> Command | None:
        return await self.door.serve(self.request(code, fields, body, oneway=oneway))


class Several(Stage):
    """The stage with its brokers, and doors before them. Each knows numbers of queues by itself; those of
    brokers its processor knows, which they have in common.
    """

    broker: SeveralBrokers

    def caller(self, version: int = V4_9_4, client_id: str = "client@1") -> DoorCaller:
        return DoorCaller(Door(self.door_context), version, client_id)

    def at_another_gateway(self, version: int = V4_9_4) -> DoorCaller:
        """One that has nothing in common with the others but the brokers, and what is kept there."""
        processor = MessagingProcessor(self.broker, clock=self.clock, limits=self.processor.limits)
        return DoorCaller(Door(DoorContext(processor, self.clock, lambda _context: ADDRESS)), version)

    async def layout(self, *queues: Numbered, cluster: str = "ab", away: str = "") -> None:
        """The brokers and queues that are there from now on."""
        self.broker.layout = list(queues)
        self.broker.cluster = list(cluster)
        self.broker.away = set(away)
        await self.pass_s(2)


@pytest.fixture
async def several(tmp_path: Path, clock: MovableClock, limits: Limits) -> AsyncIterator[Several]:
    broker = SeveralBrokers(tmp_path / "data", clock=clock)
    await broker.start()
    stage = Several(broker, clock, limits)
    await stage.processor.start()
    await stage.topic(TOPIC, queues=12)
    await stage.group(GROUP)
    yield stage
    await stage.processor.stop()
    await broker.stop()
    await asyncio.sleep(0)
