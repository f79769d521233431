"""How long sends take while retention deletes, beside how long they take while it does not.

    python benchmarks/retention.py            # six rounds of each, one after the other
    python benchmarks/retention.py --quick    # two short ones; proves only that it runs

Another topic is filled, and time for its messages ends while sends go on: hundreds of thousands of them are
deleted, and the disk is given back. Windows with and without that take turns in one process, so that the
ratio can be compared between machines. Times are those of single sends, sixteen under way at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvloop

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from popgate.clock import SystemClock
from popgate.context import Context
from popgate.ids.message_id import make_message_id
from popgate.model import Message, TopicConfig
from popgate.wire.messages.properties import encode_properties

BODY = bytes(range(256)) * 4
WORKERS = 16
QUEUES = 8
FEWEST = 100
"""Sends in a window, however slow the machine is: of fewer there is no 99th percentile."""
REMOVED_WITHIN_S = 60.0
CONTEXT = Context(client_id="bench")


def message(topic: str, queue_id: int, body: bytes = BODY) -> Message:
    name = make_message_id()
    made = Message(topic, body, message_id=name, queue_id=queue_id)
    made.properties = encode_properties({"UNIQ_KEY": name, "TAGS": "A"})
    return made


async def fill(broker: EmbeddedBroker, topic: str, count: int) -> None:
    for first in range(0, count, 256):
        batch = [message(topic, first // 256 % QUEUES) for _ in range(min(256, count - first))]
        await broker.send(CONTEXT, batch)


async def send_for(broker: EmbeddedBroker, seconds: float, times: list[float]) -> None:
    """Send to the live topic, one message at a time and worker, and note how long each took."""
    end, fewest = time.perf_counter() + seconds, len(times) + FEWEST

    async def worker(number: int) -> None:
        while (began := time.perf_counter()) < end or len(times) < fewest:
            await broker.send(CONTEXT, [message("live", number % QUEUES)])
            times.append(time.perf_counter() - began)
            await asyncio.sleep(0.001)

    await asyncio.gather(*(worker(number) for number in range(WORKERS)))


async def removed_of(broker: EmbeddedBroker, topic: str) -> int:
    """How many of its messages are gone; the first ones are waited for, on a machine that has no time."""
    end = time.perf_counter() + REMOVED_WITHIN_S
    while True:
        bounds = [await broker.bounds(CONTEXT, topic, "popgate", queue_id) for queue_id in range(QUEUES)]
        removed = sum(one.minimum for one in bounds)
        if removed or time.perf_counter() > end:
            return removed
        await asyncio.sleep(0.01)


async def bench(rounds: int, stored: int, window_s: float) -> None:
    quiet: list[float] = []
    deleting: list[float] = []
    removed = 0
    with tempfile.TemporaryDirectory() as folder:
        settings = EmbeddedSettings(retention_interval_ms=50)
        broker = EmbeddedBroker(Path(folder) / "store", clock=SystemClock(), settings=settings)
        await broker.start()
        await broker.create_topic(TopicConfig("live", read_queues=QUEUES, write_queues=QUEUES))
        await send_for(broker, window_s / 4, [])
        for number in range(rounds):
            old = TopicConfig(f"old-{number}", read_queues=QUEUES, write_queues=QUEUES)
            await broker.create_topic(old)
            await fill(broker, old.name, stored)
            await asyncio.sleep(0.2)
            await send_for(broker, window_s, quiet)
            # Too old in one round, too much in the next.
            bound = {"retention_ms": 1} if number % 2 else {"retention_bytes": 1 << 20}
            await broker.update_topic(replace(old, **bound))
            await send_for(broker, window_s, deleting)
            removed += await removed_of(broker, old.name)
            await broker.delete_topic(old.name)
        await broker.stop()
    told = [statistics.quantiles(times, n=100)[98] * 1e3 for times in (quiet, deleting)]
    print(f"retention.removed {removed} of {stored * rounds} messages")
    print(f"retention.send_p99_quiet {told[0]:.2f} ms of {len(quiet)} sends")
    print(f"retention.send_p99_deleting {told[1]:.2f} ms of {len(deleting)} sends")
    print(f"retention.ratio {told[1] / told[0]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two short rounds: proves only that it runs")
    if parser.parse_args().quick:
        uvloop.run(bench(2, 3_000, 0.2))
    else:
        uvloop.run(bench(6, 60_000, 2.0))


if __name__ == "__main__":
    main()
