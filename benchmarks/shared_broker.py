"""What it costs to reach the broker through another gateway, beside having it in the same process.

    python benchmarks/shared_broker.py            # about half a minute
    python benchmarks/shared_broker.py --quick    # a moment; proves only that it runs

CPU time in microseconds per message, body of 256 bytes, and the ratio of the two ways. Both sides of
the socket are in this process, so that the shared way's figure is the sum of host and guest. The
number in a name is the size of its batches; 32 calls are under way at a time. Direct and shared take
turns, and each figure is the best of its rounds. A call costs more there whatever is in it, so that
batches tell little of it; aim: a call of one message adds less than half of what one by gRPC costs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Durability
from brokers.port import Broker
from brokers.shared.broker import SharedBroker
from brokers.shared.host.host import BrokerHost
from popgate.clock import SystemClock
from popgate.context import Context
from popgate.filters.compiled import EVERYTHING
from popgate.ids.message_id import make_message_id
from popgate.model import GroupConfig, Message, Pop, TopicConfig
from popgate.wire.messages.properties import encode_properties

BODY = b"x" * 256
CONTEXT = Context(client_id="benchmark@10.0.0.9@1", language="JAVA", peer="10.0.0.9:40000")
AT_ONCE = 32
"""Calls under way."""


def make_messages(topic: str, count: int) -> list[Message]:
    made = []
    for _ in range(count):
        message_id = make_message_id()
        block = encode_properties({"UNIQ_KEY": message_id, "TAGS": "TagA"})
        born = {"born_ms": 1_700_000_000_000, "born_host": "10.0.0.9:40000"}
        made.append(Message(topic, BODY, message_id=message_id, tag="TagA", properties=block, **born))  # type: ignore[arg-type]
    return made


async def spread(calls: int, call: Callable[[int], Awaitable[None]]) -> None:
    """Make `calls` calls, `AT_ONCE` of them at a time."""
    numbers = iter(range(calls))

    async def work() -> None:
        for number in numbers:
            await call(number)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


class Way:
    """A broker, and what the same work costs with it."""

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        self.broker = broker
        self.best: dict[str, float] = {}
        self._round = 0

    async def measure(self, batch: int, messages: int) -> None:
        """Send `messages` in batches, then take and acknowledge them in batches."""
        self._round += 1
        broker = self.broker
        topic, group = f"{self.name}-{batch}-{self._round}", f"g-{self.name}-{batch}-{self._round}"
        await broker.create_topic(TopicConfig(topic))
        await broker.create_group(GroupConfig(group))
        made = make_messages(topic, messages)
        request = Pop(topic, group, EVERYTHING, 600_000, max_messages=batch)
        taken: list[list[str]] = []

        async def send(number: int) -> None:
            for result in await broker.send(CONTEXT, made[number * batch : (number + 1) * batch]):
                if isinstance(result, Exception):
                    raise result

        async def pop(number: int) -> None:
            taken.append([message.receipt for message in await broker.pop(CONTEXT, request)])

        async def ack(number: int) -> None:
            if any(await broker.ack(CONTEXT, topic, group, taken[number])):
                raise AssertionError("an acknowledgement was refused")

        calls = messages // batch
        await self._cost(f"send_{batch}", messages, spread(calls, send))
        await self._cost(f"pop_{batch}", messages, spread(calls, pop))
        if sum(map(len, taken)) < messages * 0.9:
            raise AssertionError("pops were not full")
        await self._cost(f"ack_{batch}", messages, spread(len(taken), ack))
        await broker.delete_topic(topic)

    async def _cost(self, figure: str, messages: int, work: Awaitable[None]) -> None:
        before = time.process_time()
        await work
        cost = (time.process_time() - before) / messages * 1e6
        self.best[figure] = min(cost, self.best.get(figure, cost))


async def run(*, rounds: int, messages: int) -> None:
    clock = SystemClock()
    with tempfile.TemporaryDirectory() as folder:
        settings = EmbeddedSettings(durability=Durability.INTERVAL)
        embedded = EmbeddedBroker(Path(folder) / "store", clock=clock, settings=settings)
        await embedded.start()
        host = BrokerHost(embedded, f"unix:{folder}/s", clock=clock)
        await host.start()
        guest = SharedBroker(f"popgate+unix:{folder}/s", clock=clock)
        await guest.start()
        ways = Way("direct", embedded), Way("shared", guest)
        try:
            for _ in range(rounds):
                for batch, count in ((32, messages), (1, messages // 8)):
                    for way in ways:
                        await way.measure(batch, count)
        finally:
            await guest.stop()
            await host.stop()
            await embedded.stop()
    direct, shared = (way.best for way in ways)
    for figure in direct:
        print(f"direct.{figure} {direct[figure]:.2f} us/message")
        print(f"shared.{figure} {shared[figure]:.2f} us/message")
        print(f"ratio.{figure} {shared[figure] / direct[figure]:.2f} x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a moment; proves only that it runs")
    quick = parser.parse_args().quick
    work = run(rounds=1 if quick else 5, messages=1_024 if quick else 16_384)
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)


if __name__ == "__main__":
    main()
