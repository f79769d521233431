"""The parts of the embedded broker on a store of their own, without a broker, by a clock moved by hand."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from brokers.embedded.catalog.catalog import Catalog, Topic
from brokers.embedded.log.message_log import MessageLog
from brokers.embedded.log.retention import Retention
from brokers.embedded.produce.delayed_messages import DelayedMessages
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Store
from brokers.embedded.transactions.half_messages import HalfMessages
from popgate.model import TopicConfig
from popgate.testing import MovableClock
from popgate.wire.messages.properties import encode_properties
from popgate.wire.messages.records import Record, decode_record, encode_record, pack_host

HOST = pack_host("10.0.0.1:8081")


class Parts:
    """Everything that keeps messages, wired as the broker wires it."""

    def __init__(self, path: Path, clock: MovableClock, settings: EmbeddedSettings) -> None:
        self.clock = clock
        self.settings = settings
        self.store = Store(path, clock, durability=settings.durability)
        self.store.open()
        self.catalogue = Catalog(self.store, settings)
        self.log = MessageLog(self.store, clock)
        self.timers = DelayedMessages(self.store, self.log, self.catalogue, settings)
        self.halves = HalfMessages(self.store, self.log, self.catalogue, clock, settings, self.timers)
        self.retention = Retention(self.store, self.log, self.catalogue, clock, settings)
        self.store.on_failure = lambda _: self.load()
        self.load()

    def load(self) -> None:
        for part in (self.catalogue, self.timers, self.halves, self.retention):
            part.load()

    async def topic(self, name: str = "T", **settings: object) -> Topic:
        made = self.catalogue.create_topic(TopicConfig(name, **settings))  # type: ignore[arg-type]
        await self.store.commit()
        return made

    def record(self, topic: Topic, message_id: str, body: bytes = b"body", **properties: str) -> bytes:
        """An encoded message that has no place yet."""
        block = encode_properties({"UNIQ_KEY": message_id, **properties})
        return encode_record(
            topic.packed_name,
            *(0, 0, 0, body, block),
            sys_flag=0,
            flag=0,
            born_ms=self.clock.now_ms(),
            born_host=HOST,
            store_ms=0,
            store_host=HOST,
        )

    def send(self, topic: Topic, queue_id: int, message_id: str, body: bytes = b"body") -> int:
        record = self.record(topic, message_id, body)
        return self.log.append(topic, queue_id, record, message_id=message_id.encode())

    def delivered(self, topic: Topic, queue_id: int = 0) -> list[Record]:
        queue = topic.queues[queue_id]
        return [
            decode_record(data) for _, data in self.log.read(topic, queue_id, queue.minimum, queue.visible)
        ]

    async def run(self, part: DelayedMessages | HalfMessages | Retention) -> int:
        """Tick one part, as the broker does, until it has nothing to do now; the number of ticks."""
        ticks = 0
        while (due := part.deadline()) is not None and due <= self.clock.now_ms():
            part.tick(self.clock.now_ms())
            await self.store.commit()
            ticks += 1
            assert ticks < 10_000, "it never comes to rest"
        return ticks

    def close(self) -> None:
        self.store.close()


@pytest.fixture
def make_parts(tmp_path: Path) -> Iterator[Callable[..., Parts]]:
    """Make parts, or make them again on the same folder and clock, as after a restart."""
    clock = MovableClock()
    made: list[Parts] = []

    def make(**settings: object) -> Parts:
        for former in made:
            former.close()
        parts = Parts(tmp_path / "store", clock, replace(EmbeddedSettings(), **settings))  # type: ignore[arg-type]
        made.append(parts)
        return parts

    yield make
    for former in made:
        former.close()


@pytest.fixture
def parts(make_parts: Callable[..., Parts]) -> Parts:
    return make_parts()
