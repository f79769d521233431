"""What it costs a RocketMQ broker that messages are popped for 15 minutes, and not for 60 s and renewed.

    python benchmarks/long_pops.py            # 10,000 messages on a broker as shipped: 25 minutes
    python benchmarks/long_pops.py --kv       # a broker with popConsumerKVServiceEnable
    python benchmarks/long_pops.py --merge    # a broker with enablePopBufferMerge
    python benchmarks/long_pops.py --quick    # a few messages for seconds; proves only that it runs

All messages are popped in batches of 32, held for a while, acknowledged, and then the broker is watched until
nothing of them can be due any more. CPU is user and system time of the broker's process, without what it
takes when it is idle, which is measured anew each time; disk is what its store grew by. Figures are per
message; the heap is fixed at 1 GB.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from brokers.remote.broker import RemoteBroker
from brokers.remote.settings import RemoteSettings
from popgate.clock import SystemClock
from popgate.context import Context
from popgate.filters.compiled import compile_filter
from popgate.ids.message_id import make_message_id
from popgate.model import FilterKind, GroupConfig, Message, Pop, StoredMessage, TopicConfig
from popgate.testing.rocketmq import RocketMQ
from popgate.wire.messages.properties import encode_properties

BODY = bytes(256)
BATCH = 32
AT_ONCE = 8
JVM = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")
TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Way:
    """Pop for `invisible_s`, hold for `held_s`, and renew `renewals` times meanwhile."""

    name: str
    invisible_s: float
    held_s: float
    renewals: int


@dataclass
class Reading:
    """The broker's process and its store at one moment."""

    at: float
    cpu_s: float
    rss_mb: float
    disk: int


class Bench:
    """Does the work, and reads what the broker needs for it."""

    def __init__(self, cluster: RocketMQ, broker: RemoteBroker, count: int, due_s: float) -> None:
        """`due_s`: so long before something is due and twice so long after is looked what that costs."""
        self.due_s = due_s
        self.server = cluster.master()
        self.broker = broker
        self.count = count
        self.idle = 0.0
        """Seconds of CPU per second, when nothing happens."""
        self.context = Context(client_id="bench")

    def read(self) -> Reading:
        fields = Path(f"/proc/{self.server.pid}/stat").read_text().rpartition(")")[2].split()
        pages = int(Path(f"/proc/{self.server.pid}/statm").read_text().split()[1])
        files = [path for path in (self.server.folder / "store").rglob("*") if path.is_file()]
        return Reading(
            time.monotonic(),
            (int(fields[11]) + int(fields[12])) / TICK,
            pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
            sum(path.stat().st_blocks * 512 for path in files),
        )

    def tell(self, what: str, before: Reading, after: Reading) -> None:
        cpu = after.cpu_s - before.cpu_s - self.idle * (after.at - before.at)
        grown = (after.disk - before.disk) / self.count
        print(
            f"  {what:<34} {cpu / self.count * 1e6:8.1f} us  {grown:8.0f} bytes"
            f"  {after.rss_mb:6.0f} MB resident  {after.at - before.at:6.1f} s",
            flush=True,
        )

    async def rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def measure_idle(self, seconds: float) -> None:
        before = self.read()
        await asyncio.sleep(seconds)
        after = self.read()
        self.idle = (after.cpu_s - before.cpu_s) / (after.at - before.at)
        print(f"idle: {self.idle:.1%} of a core, {after.rss_mb:.0f} MB resident", flush=True)

    async def send(self, topic: str, count: int) -> None:
        route = await self.broker.route(topic)
        for start in range(0, count, BATCH):
            queue = route.queues[start // BATCH % len(route.queues)]
            await self.broker.send(
                self.context,
                [message(topic, queue.broker, queue.queue_id) for _ in range(min(BATCH, count - start))],
            )

    async def pop(self, topic: str, group: str, count: int, invisible_s: float) -> list[StoredMessage]:
        taken: list[StoredMessage] = []

        async def take() -> None:
            while len(taken) < count:
                wanted = Pop(
                    topic,
                    group,
                    compile_filter(FilterKind.TAG, "*"),
                    int(invisible_s * 1_000),
                    max_messages=BATCH,
                    ordered=False,
                    wait_until=None,
                    broker="",
                    queue_id=-1,
                )
                taken.extend(await self.broker.pop(self.context, wanted))

        await asyncio.gather(*(take() for _ in range(AT_ONCE)))
        return taken

    async def renew(self, topic: str, group: str, receipts: Sequence[str], invisible_s: float) -> list[str]:
        renewed: list[str] = []
        for start in range(0, len(receipts), 4 * BATCH):
            part = receipts[start : start + 4 * BATCH]
            calls = (
                self.broker.change_invisible(self.context, topic, group, one, int(invisible_s * 1_000))
                for one in part
            )
            answers = await asyncio.gather(*calls, return_exceptions=True)
            renewed += [answer for answer in answers if isinstance(answer, str)]
        if len(renewed) < len(receipts):
            print(f"  too late to renew: {len(receipts) - len(renewed)}", flush=True)
        return renewed

    async def ack(self, topic: str, group: str, receipts: Sequence[str]) -> None:
        for start in range(0, len(receipts), AT_ONCE * BATCH):
            part = receipts[start : start + AT_ONCE * BATCH]
            parts = (part[n : n + BATCH] for n in range(0, len(part), BATCH))
            await asyncio.gather(*(self.broker.ack(self.context, topic, group, p) for p in parts))

    async def run(self, way: Way, number: int) -> None:
        print(
            f"{way.name}: for {way.invisible_s:.0f} s, held {way.held_s:.0f} s, renewed {way.renewals} times"
        )
        topic, group = f"long-pops-{number}", f"long-pops-{number}"
        await self.broker.create_topic(TopicConfig(topic, read_queues=4, write_queues=4))
        await self.broker.create_group(GroupConfig(group))
        await self.send(topic, self.count)
        await self.rest(2)
        first = before = self.read()
        taken = await self.pop(topic, group, self.count, way.invisible_s)
        popped_at = time.monotonic()
        after = self.read()
        self.tell("popped", before, after)
        receipts = [one.receipt for one in taken]
        for turn in range(way.renewals):
            due = popped_at + way.held_s * (turn + 1) / (way.renewals + 1)
            before = self.read()
            await self.rest(max(due - time.monotonic(), 0))
            receipts = await self.renew(topic, group, receipts, way.invisible_s)
            self.tell(f"renewal {turn + 1}, with the time before", before, self.read())
        before = self.read()
        await self.rest(max(popped_at + way.held_s - time.monotonic(), 0))
        held = self.read()
        self.tell("held", before, held)
        await self.ack(topic, group, receipts)
        after = self.read()
        self.tell("acknowledged", held, after)
        await self.rest(max(popped_at + way.held_s + way.invisible_s - self.due_s - time.monotonic(), 0))
        quiet = self.read()
        self.tell("until something was due", after, quiet)
        self.idle = (quiet.cpu_s - after.cpu_s) / (quiet.at - after.at)
        print(f"  meanwhile                          {self.idle:8.1%} of a core", flush=True)
        await self.rest(3 * self.due_s)
        last = self.read()
        self.tell("until nothing was due", quiet, last)
        grown = (last.disk - first.disk) / self.count
        print(f"  all of it                          {grown:24.0f} bytes", flush=True)
        back = await self.pop_once(topic, group)
        print(f"  came back: {back}", flush=True)

    async def pop_once(self, topic: str, group: str) -> int:
        wanted = Pop(topic, group, compile_filter(FilterKind.TAG, "*"), 60_000, max_messages=BATCH)
        return sum([len(await self.broker.pop(self.context, wanted)) for _ in range(16)])


def message(topic: str, broker: str, queue_id: int) -> Message:
    message_id = make_message_id()
    return Message(
        topic,
        BODY,
        message_id=message_id,
        born_ms=time.time_ns() // 1_000_000,
        born_host="127.0.0.1:5000",
        properties=encode_properties({"UNIQ_KEY": message_id}),
        broker=broker,
        queue_id=queue_id,
    )


async def measure(cluster: RocketMQ, ways: Sequence[Way], count: int, quick: bool) -> None:
    settings = RemoteSettings(name_servers=tuple(cluster.addresses), request_timeout_s=30.0)
    broker = RemoteBroker(settings, clock=SystemClock())
    await broker.start()
    bench = Bench(cluster, broker, count, 1.0 if quick else 10.0)
    warm = Way("to warm up", 3 if quick else 60, 1, 1)
    await bench.run(warm, 0)
    for number, way in enumerate(ways, 1):
        await bench.run(way, number)
    await broker.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--kv", action="store_true")
    parser.add_argument("--merge", action="store_true")
    parser.add_argument("--messages", type=int, default=10_000)
    given = parser.parse_args()
    settings = {
        "transactionCheckInterval": "60000",
        "timerFlushIntervalMs": "1000",
        "popConsumerKVServiceEnable": str(given.kv).lower(),
        "enablePopBufferMerge": str(given.merge).lower(),
    }
    unit = 0.05 if given.quick else 1.0
    ways = [
        Way("soon done, 60 s", 60 * unit, 5 * unit, 0),
        Way("soon done, 15 minutes", 900 * unit / (10 if given.quick else 1), 5 * unit, 0),
        Way("slow, 60 s and renewed", 60 * unit, 120 * unit, 3),
    ]
    count = 320 if given.quick else given.messages
    options = None if given.quick else JVM
    with RocketMQ(settings=settings, options=options) as cluster:
        asyncio.run(measure(cluster, ways, count, given.quick))


if __name__ == "__main__":
    main()
