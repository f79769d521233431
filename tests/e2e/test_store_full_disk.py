"""The disk is full for a while: requests fail and say so, nothing answered suffers, and then it goes on."""

import asyncio
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Durability
from popgate.clock import SystemClock
from popgate.context import Context
from popgate.errors import BrokerTimeout, BrokerUnavailable
from popgate.filters.compiled import compile_filter
from popgate.model import FilterKind, GroupConfig, Message, Pop, Sent, TopicConfig

CONTEXT = Context(client_id="test")
EVERYTHING = compile_filter(FilterKind.TAG, "*")


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process may become larger than a few KiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Clients:
    """Producers and a consumer that go on whatever happens, and note what they were answered."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.chance = random.Random(3)
        self.sent: dict[str, tuple[int, int]] = {}
        self.refused = 0
        self.seen: set[str] = set()
        self.acked: set[str] = set()
        self.stopping = False

    async def produce(self, who: int) -> None:
        number = 0
        while not self.stopping:
            body = f"{who}-{number}"
            number += 1
            try:
                message = Message("T", body.encode().ljust(600), message_id=body)
                [result] = await self.broker.send(CONTEXT, [message])
            except (BrokerUnavailable, BrokerTimeout):
                self.refused += 1
                await asyncio.sleep(0.005)
                continue
            assert isinstance(result, Sent)
            assert (result.queue_id, result.offset) not in self.sent.values(), "a place was given twice"
            self.sent[body] = result.queue_id, result.offset
            await asyncio.sleep(0)

    async def consume(self) -> None:
        while not self.stopping:
            try:
                request = Pop("T", "g", EVERYTHING, 3_600_000, max_messages=4)
                messages = await self.broker.pop(CONTEXT, request)
                done = [message for message in messages if self.chance.random() < 0.5]
                self.seen |= {message.body.decode().rstrip() for message in done}
                receipts = [message.receipt for message in done]
                answers = await self.broker.ack(CONTEXT, "T", "g", receipts)
                for message, error in zip(done, answers, strict=True):
                    if error is None:
                        self.acked.add(message.body.decode().rstrip())
            except (BrokerUnavailable, BrokerTimeout):
                await asyncio.sleep(0.005)
            await asyncio.sleep(0)


@pytest.mark.parametrize("durability", Durability)
async def test_a_full_disk_costs_time_and_nothing_else(tmp_path: Path, durability: Durability) -> None:
    settings = EmbeddedSettings(durability=durability)
    broker = EmbeddedBroker(tmp_path / "store", clock=SystemClock(), settings=settings)
    await broker.start()
    await broker.create_topic(TopicConfig("T", read_queues=2, write_queues=2))
    await broker.create_group(GroupConfig("g"))
    clients = Clients(broker)
    tasks = [
        asyncio.create_task(step) for step in (clients.produce(0), clients.produce(1), clients.consume())
    ]
    loop = asyncio.get_running_loop()
    for _ in range(2):
        enough = len(clients.sent) + 40
        deadline = loop.time() + 150
        while len(clients.sent) < enough:
            assert loop.time() < deadline, "sending never went on"
            await asyncio.sleep(0.002)
        refused = clients.refused + 5
        with full_disk():
            while clients.refused < refused:
                assert loop.time() < deadline + 150, "nothing was refused"
                await asyncio.sleep(0.002)
    enough = len(clients.sent) + 40
    while len(clients.sent) < enough or not clients.acked:
        assert loop.time() < deadline + 150, "sending or receiving never went on"
        await asyncio.sleep(0.002)
    clients.stopping = True
    await asyncio.gather(*tasks)
    await broker.stop()

    broker = EmbeddedBroker(tmp_path / "store", clock=SystemClock(), settings=settings)
    await broker.start()
    found: dict[str, tuple[int, int]] = {}
    for queue in (await broker.route("T")).queues:
        where = ("T", queue.broker, queue.queue_id)
        bounds = await broker.bounds(CONTEXT, *where)
        pulled = await broker.pull(
            CONTEXT,
            *where,
            bounds.minimum,
            max_messages=100_000,
            max_bytes=1 << 30,
            passing=EVERYTHING,
            wait_until=None,
        )
        assert [message.offset for message in pulled.messages] == list(range(bounds.maximum))
        for message in pulled.messages:
            body = message.body.decode().rstrip()
            assert body not in found, "stored twice"
            found[body] = message.queue_id, message.offset
    assert clients.sent.items() <= found.items()
    # Whoever was told that it is finished does not get it again; the rest is held or to come.
    came: set[str] = set()
    while messages := await broker.pop(CONTEXT, Pop("T", "g", EVERYTHING, 3_600_000, max_messages=1000)):
        came |= {message.body.decode().rstrip() for message in messages}
    assert not came & clients.acked
    assert clients.acked
    await broker.stop()
