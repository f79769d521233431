"""A broker that remembers what it was asked, and a processor on it, on a clock that stands still."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from brokers.port import Broker, CheckHandler
from brokers.traits import OrderScope, Traits
from popgate.context import Context
from popgate.errors import (
    AlreadyExists,
    GatewayError,
    GroupNotFound,
    IllegalReceipt,
    NotFound,
    ReceiptExpired,
    TopicNotFound,
)
from popgate.ids.receipt import Receipt
from popgate.model import (
    Bounds,
    EndTransaction,
    Filter,
    FilterKind,
    GroupConfig,
    GroupStatus,
    Held,
    Message,
    Permission,
    Pop,
    Progress,
    Pulled,
    Queue,
    QueueOffsets,
    Reading,
    Route,
    SendBack,
    Sent,
    StartFrom,
    StoredMessage,
    TopicConfig,
    TransactionCheck,
)
from popgate.testing.clock import MovableClock
from processors.clients.client_registry import ClientKind
from processors.clients.query import ClientQuery
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from processors.observer import NullObserver
from processors.policies.registry import Policies


class FakeBroker(Broker):
    """One queue of messages per topic; a handle is good until its time or until it is finished."""

    name = "fake"

    def __init__(self, clock: MovableClock) -> None:
        self.clock = clock
        self.traits = Traits(
            order_scope=OrderScope.MESSAGE_GROUP,
            timer_precision_ms=0,
            redelivery_lag_ms=0,
            renewal_keeps_receipt=False,
            returns_are_free=True,
            ends_are_idempotent=True,
            acks_are_checked=True,
            exact_message_groups=True,
            max_delay_ms=1 << 50,
        )
        self.kept_topics: dict[str, TopicConfig] = {}
        self.kept_groups: dict[str, GroupConfig] = {}
        self.messages: dict[str, list[StoredMessage]] = defaultdict(list)
        self.in_hand: dict[str, StoredMessage] = {}
        self.finished: set[str] = set()
        self.told_held: list[Held] = []
        self.told_standing = GroupStatus("readers", "orders", 0, 0, 0, 0, 0, 0, 0, False, 0, 0)
        self.calls: list[tuple[str, object]] = []
        self.failure: GatewayError | None = None
        self.arrival = asyncio.Event()
        self.blocked: asyncio.Event | None = None
        self.handler: CheckHandler | None = None
        self.offsets = itertools.count()

    def asked(self, operation: str) -> list[object]:
        return [what for name, what in self.calls if name == operation]

    async def _called(self, operation: str, what: object) -> None:
        self.calls.append((operation, what))
        if self.blocked is not None:
            await self.blocked.wait()
        if self.failure is not None:
            raise self.failure

    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    def figures(self) -> dict[str, float]:
        return {}

    async def send(self, context: Context, messages: Sequence[Message]) -> list[Sent | GatewayError]:
        await self._called("send", list(messages))
        results: list[Sent | GatewayError] = []
        for message in messages:
            offset = next(self.offsets)
            stored = StoredMessage(
                topic=message.topic,
                broker=message.broker,
                queue_id=message.queue_id,
                offset=offset,
                commit_offset=offset,
                sys_flag=message.sys_flag,
                flag=message.flag,
                born_ms=message.born_ms,
                born_host=message.born_host,
                store_ms=self.clock.now_ms(),
                store_host="127.0.0.1:1",
                body=message.body,
                properties=message.properties,
            )
            self.messages[message.topic].append(stored)
            results.append(Sent(message.message_id, message.broker, message.queue_id, offset))
        self.arrival.set()
        return results

    async def pop(self, context: Context, request: Pop) -> list[StoredMessage]:
        self.calls.append(("pop", request))
        while True:
            if self.failure is not None:
                raise self.failure
            taken = self.messages[request.topic][: request.max_messages]
            del self.messages[request.topic][: len(taken)]
            if taken or request.wait_until is None or request.wait_until <= self.clock.monotonic():
                return [self._hand_out(message, request.invisible_ms) for message in taken]
            timer = self.clock.call_later(request.wait_until - self.clock.monotonic(), self.arrival.set)
            self.arrival.clear()
            try:
                await self.arrival.wait()
            finally:
                timer.cancel()

    def _hand_out(self, message: StoredMessage, invisible_ms: int) -> StoredMessage:
        now_ms = self.clock.now_ms()
        receipt = Receipt(
            message.offset, now_ms, invisible_ms, 0, 0, self.name, message.queue_id, message.offset
        ).encode()
        given = replace(
            message, attempt=message.attempt + 1, receipt=receipt, invisible_until_ms=now_ms + invisible_ms
        )
        self.in_hand[receipt] = given
        return given

    async def ack(
        self, context: Context, topic: str, group: str, receipts: Sequence[str]
    ) -> list[GatewayError | None]:
        await self._called("ack", list(receipts))
        return [self._finish(receipt) for receipt in receipts]

    def _finish(self, receipt: str) -> GatewayError | None:
        if receipt in self.finished:
            return None
        if receipt.startswith("bad"):
            return IllegalReceipt(receipt, "it is bad")
        if self.in_hand.pop(receipt, None) is None:
            return ReceiptExpired(receipt)
        self.finished.add(receipt)
        return None

    async def change_invisible(
        self,
        context: Context,
        topic: str,
        group: str,
        receipt: str,
        invisible_ms: int,
        *,
        suspend: bool = False,
    ) -> str:
        await self._called("change_invisible", (receipt, invisible_ms))
        message = self.in_hand.pop(receipt, None)
        if message is None:
            raise ReceiptExpired(receipt)
        if invisible_ms == 0:
            self.messages[topic].append(message)
            self.arrival.set()
            return receipt
        newer = receipt.rpartition(" ")[0] + f" {next(self.offsets)}"
        self.in_hand[newer] = replace(
            message, receipt=newer, invisible_until_ms=self.clock.now_ms() + invisible_ms
        )
        return newer

    async def give_back(self, context: Context, topic: str, group: str, receipts: Sequence[str]) -> int:
        await self._called("give_back", list(receipts))
        back = [message for receipt in receipts if (message := self.in_hand.pop(receipt, None)) is not None]
        self.messages[topic].extend(replace(message, attempt=message.attempt - 1) for message in back)
        self.arrival.set()
        return len(back)

    async def dead_letter(self, context: Context, topic: str, group: str, receipt: str) -> None:
        await self._called("dead_letter", receipt)
        if (error := self._finish(receipt)) is not None:
            raise error

    async def send_back(self, context: Context, request: SendBack) -> None:
        await self._called("send_back", request)

    async def recall(self, context: Context, topic: str, recall_handle: str) -> str:
        await self._called("recall", recall_handle)
        if recall_handle == "gone":
            raise NotFound("it was delivered")
        return "recalled"

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
        await self._called("pull", (topic, queue_id, offset, max_messages, max_bytes, wait_until))
        found = self.messages[topic][:max_messages]
        return Pulled(found, offset + len(found), Bounds(0, len(found)))

    async def bounds(
        self, context: Context, topic: str, broker: str, queue_id: int, *, of_master: bool = False
    ) -> Bounds:
        await self._called("bounds", (topic, broker, queue_id))
        return Bounds(0, 7)

    async def offset_at(self, context: Context, topic: str, broker: str, queue_id: int, time_ms: int) -> int:
        await self._called("offset_at", (topic, broker, queue_id, time_ms))
        return 3

    async def committed(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int
    ) -> int | None:
        await self._called("committed", (group, topic, broker, queue_id))
        if group not in self.kept_groups:
            raise GroupNotFound(group)
        return 4

    async def commit(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> None:
        await self._called("commit", (group, topic, broker, queue_id, offset))

    async def lock(
        self, context: Context, group: str, client_id: str, queues: Sequence[tuple[str, str, int]]
    ) -> list[tuple[str, str, int]]:
        return list(queues)

    async def unlock(
        self, context: Context, group: str, client_id: str, queues: Sequence[tuple[str, str, int]]
    ) -> None: ...

    async def find_by_id(self, context: Context, topic: str, message_id: str) -> list[StoredMessage]:
        await self._called("find_by_id", (topic, message_id))
        return self.messages[topic]

    async def find_by_key(
        self, context: Context, topic: str, key: str, *, begin_ms: int, end_ms: int, limit: int
    ) -> list[StoredMessage]:
        await self._called("find_by_key", (topic, key, begin_ms, end_ms, limit))
        return self.messages[topic][:limit]

    async def end_transaction(self, context: Context, end: EndTransaction) -> None:
        await self._called("end_transaction", end)

    def on_check(self, handler: CheckHandler) -> None:
        self.handler = handler

    async def route(self, topic: str) -> Route:
        self.calls.append(("route", topic))
        config = await self.topic(topic)
        queues = tuple(Queue(self.name, index, config.permission) for index in range(config.queues))
        return Route(topic, config.message_types, queues)

    async def topic(self, name: str) -> TopicConfig:
        if name not in self.kept_topics:
            raise TopicNotFound(name)
        return self.kept_topics[name]

    async def topics(self) -> list[TopicConfig]:
        return list(self.kept_topics.values())

    async def create_topic(self, config: TopicConfig) -> None:
        if config.name in self.kept_topics:
            raise AlreadyExists("topic", config.name)
        self.kept_topics[config.name] = config

    async def update_topic(self, config: TopicConfig) -> None:
        await self.topic(config.name)
        self.kept_topics[config.name] = config

    async def delete_topic(self, name: str) -> None:
        await self.topic(name)
        del self.kept_topics[name]

    async def group(self, name: str) -> GroupConfig:
        self.calls.append(("group", name))
        if name not in self.kept_groups:
            raise GroupNotFound(name)
        return self.kept_groups[name]

    async def groups(self) -> list[GroupConfig]:
        return list(self.kept_groups.values())

    async def create_group(self, config: GroupConfig) -> None:
        if config.name in self.kept_groups:
            raise AlreadyExists("group", config.name)
        self.kept_groups[config.name] = config

    async def update_group(self, config: GroupConfig) -> None:
        await self.group(config.name)
        self.kept_groups[config.name] = config

    async def delete_group(self, name: str) -> None:
        await self.group(name)
        del self.kept_groups[name]

    async def progress(self, group: str, topic: str) -> list[Progress]:
        return [Progress(self.name, 0, 1, 2, 1, 0, Bounds(0, 7))]

    async def topics_of(self, group: str) -> list[str]:
        return ["orders"]

    async def held(self, group: str, topic: str, limit: int) -> list[Held]:
        await self._called("held", (group, topic, limit))
        return self.told_held[:limit]

    async def standing(self, group: str, topic: str) -> GroupStatus:
        return replace(self.told_standing, group=group, topic=topic)

    async def standings(self, start: int, queues: int) -> tuple[list[GroupStatus], int | None]:
        return [self.told_standing], None

    async def reset(self, group: str, topic: str, to: StartFrom | int) -> QueueOffsets:
        await self._called("reset", (group, topic, to))
        return {(self.name, 0): 4}


class Tally(NullObserver):
    """An observer that writes down what it is told."""

    __slots__ = ("told",)

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def __getattribute__(self, name: str) -> object:
        if name in ("told", "of") or name.startswith("__"):
            return super().__getattribute__(name)
        told = super().__getattribute__("told")
        return lambda *facts: told.append((name, *facts))

    def of(self, name: str) -> list[tuple[object, ...]]:
        return [facts[1:] for facts in self.told if facts[0] == name]


@dataclass(eq=False)
class FakeClient:
    """A client as a door would know it; `full`: its stream takes no more questions."""

    client_id: str
    kind: ClientKind = ClientKind.PUSH_CONSUMER
    group: str = ""
    topics: frozenset[str] = frozenset()
    subscriptions: dict[str, tuple[FilterKind, str]] = field(default_factory=dict)
    language: str = "JAVA"
    version: str = "5.0.7"
    connection: object = "10.0.0.1:5000"
    alive: bool = True
    full: bool = False
    checks: list[TransactionCheck] = field(default_factory=list)
    questions: list[ClientQuery] = field(default_factory=list)
    left_lite: list[str] = field(default_factory=list)
    reconnects: int = 0
    refreshes: int = 0
    producer_group: str = ""
    broadcast: bool = False
    key: str = ""
    reading: Reading = Reading.NEUTRAL

    def __post_init__(self) -> None:
        self.key = self.key or self.client_id

    def check_transaction(self, check: TransactionCheck) -> bool:
        if self.full:
            return False
        self.checks.append(check)
        return True

    def ask(self, question: ClientQuery) -> bool:
        if not self.full:
            self.questions.append(question)
        return not self.full

    def reconnect(self) -> bool:
        self.reconnects += not self.full
        return not self.full

    def leave_lite(self, lite_topic: str) -> bool:
        self.left_lite.append(lite_topic)
        return self.alive

    def refresh(self) -> None:
        self.refreshes += 1


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def broker(clock: MovableClock) -> FakeBroker:
    broker = FakeBroker(clock)
    broker.kept_topics["orders"] = TopicConfig("orders", permission=Permission.READ_WRITE)
    broker.kept_groups["readers"] = GroupConfig("readers")
    return broker


@pytest.fixture
def observer() -> Tally:
    return Tally()


@pytest.fixture
def limits() -> Limits:
    return Limits()


@pytest.fixture
async def make_processor(
    broker: FakeBroker, clock: MovableClock, observer: Tally
) -> Callable[..., MessagingProcessor]:
    def make(limits: Limits | None = None, policies: Policies | None = None) -> MessagingProcessor:
        return MessagingProcessor(broker, clock=clock, limits=limits, policies=policies, observer=observer)

    return make


@pytest.fixture
async def processor(make_processor: Callable[..., MessagingProcessor]) -> Iterator[MessagingProcessor]:
    processor = make_processor()
    await processor.start()
    yield processor
    await processor.stop()


@pytest.fixture
def context() -> Context:
    return Context(client_id="client-1", language="JAVA", door="grpc", peer="10.0.0.1:5000")


@pytest.fixture
def make_client() -> type[FakeClient]:
    return FakeClient


@pytest.fixture
def message() -> Message:
    return Message(topic="orders", body=b"coffee", message_id="01ABC", born_ms=1_700_000_000_000)


@pytest.fixture
def settle() -> Callable[[], object]:
    """Let everything that can go on go on."""

    async def turn_the_loop() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    return turn_the_loop
