"""How long the store takes to open again after a crash, full of messages and of deliveries in flight.

    python benchmarks/opening.py            # 100,000 of each, about a minute
    python benchmarks/opening.py --quick    # some hundred; proves only that it runs

A process fills a store and is killed by SIGKILL; another one opens it. Seconds are wall time of the
broker's start, without that of the interpreter; the best and the median of three starts, each on
a copy of the killed store. Aim: two seconds at most, and one with all in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from popgate.clock import SystemClock
from popgate.context import Context
from popgate.filters.compiled import EVERYTHING
from popgate.ids.message_id import make_message_id
from popgate.model import GroupConfig, Message, Pop, TopicConfig
from popgate.wire.messages.properties import encode_properties

BODY = b"x" * 1024
CONTEXT = Context(client_id="benchmark@10.0.0.9@1", peer="10.0.0.9:40000")
QUEUES = 8


async def fill(folder: Path, count: int, in_flight: bool) -> None:
    """Fill a store, and end without a word."""
    settings = EmbeddedSettings(max_in_flight=count)
    broker = EmbeddedBroker(folder, clock=SystemClock(), settings=settings)
    await broker.start()
    await broker.create_topic(TopicConfig("T", read_queues=QUEUES, write_queues=QUEUES))
    await broker.create_group(GroupConfig("G"))
    for at in range(0, count, 100):
        batch = []
        for _ in range(min(100, count - at)):
            message_id = make_message_id()
            block = encode_properties({"UNIQ_KEY": message_id, "KEYS": f"key-{at}"})
            batch.append(Message("T", BODY, message_id=message_id, properties=block))
        await broker.send(CONTEXT, batch)
    taken = 0
    while in_flight and taken < count:
        request = Pop("T", "G", EVERYTHING, 3_600_000, max_messages=100)
        taken += len(await broker.pop(CONTEXT, request))
    os.kill(os.getpid(), signal.SIGKILL)


async def open_once(folder: Path) -> float:
    broker = EmbeddedBroker(folder, clock=SystemClock())
    begin = time.perf_counter()
    await broker.start()
    seconds = time.perf_counter() - begin
    await broker.stop()
    return seconds


def measure(count: int, starts: int, *, in_flight: bool) -> list[float]:
    """Seconds of each start."""
    with tempfile.TemporaryDirectory() as folder:
        killed = Path(folder) / "killed"
        command = [sys.executable, __file__, "--fill", str(killed), str(count), str(int(in_flight))]
        assert subprocess.run(command).returncode == -signal.SIGKILL
        found = []
        for number in range(starts):
            copy = Path(folder) / str(number)
            shutil.copytree(killed, copy)
            opened = subprocess.run(
                [sys.executable, __file__, "--open", str(copy)], capture_output=True, text=True, check=True
            )
            found.append(float(opened.stdout))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description="How long the store takes to open after a crash.")
    parser.add_argument("--quick", action="store_true", help="prove only that it runs")
    parser.add_argument("--fill", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.fill:
        asyncio.run(fill(Path(chosen.fill[0]), int(chosen.fill[1]), chosen.fill[2] == "1"))
    elif chosen.open:
        print(asyncio.run(open_once(chosen.open)))
    else:
        count, starts = (500, 1) if chosen.quick else (100_000, 3)
        for name, in_flight in (("stored", False), ("in_flight", True)):
            found = measure(count, starts, in_flight=in_flight)
            print(f"opening.{name}_{count} {statistics.median(found):.2f} s")
            print(f"opening.{name}_{count}_best {min(found):.2f} s")


if __name__ == "__main__":
    main()
