"""What the embedded broker costs at its port: one line per figure, to be compared with another run's.

    python benchmarks/embedded.py            # about ten seconds
    python benchmarks/embedded.py --quick    # a moment; proves only that it runs

CPU time of the whole process (RocksDB's threads included) in microseconds per message, with a
body of 256 bytes; the number in a name is the size of its batches. Each figure is the best of
several rounds, each on a fresh topic. Aim: send at most 4, pop and
acknowledge together at most 10, in batches of 32. What ends in `repeats_unknown` is a broker that
does not know repeated sends, in turn with the other one: knowing them may cost 1 at most.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Durability
from popgate.clock import SystemClock
from popgate.context import Context
from popgate.filters.compiled import EVERYTHING, compile_filter
from popgate.ids.message_id import make_message_id
from popgate.model import Filter, FilterKind, GroupConfig, Message, MessageType, Pop, Sent, TopicConfig
from popgate.wire.messages.properties import encode_properties

BODY = b"x" * 256
CONTEXT = Context(client_id="benchmark@10.0.0.9@1", peer="10.0.0.9:40000")
GROUPS = 64
"""Message groups of the ordered figures."""


def make_messages(topic: str, count: int, *, ordered: bool = False, tag: str = "TagA") -> list[Message]:
    made = []
    for number in range(count):
        message_id = make_message_id()
        block = {"UNIQ_KEY": message_id, "TAGS": tag}
        if ordered:
            block["__SHARDINGKEY"] = group = f"customer-{number % GROUPS}"
        made.append(
            Message(
                topic,
                BODY,
                message_id=message_id,
                type=MessageType.FIFO if ordered else MessageType.NORMAL,
                tag=tag,
                message_group=group if ordered else "",
                born_ms=1_700_000_000_000,
                born_host="10.0.0.9:40000",
                properties=encode_properties(block),
            )
        )
    return made


class Rounds:
    """One broker; each round has a topic and groups of its own."""

    def __init__(self, broker: EmbeddedBroker, count: int, rounds: int) -> None:
        self.broker = broker
        self.count = count
        self.rounds = rounds
        self.best: dict[str, float] = {}
        self._number = 0

    async def topic(self, *, queues: int = 8) -> str:
        self._number += 1
        name = f"topic-{self._number}"
        await self.broker.create_topic(TopicConfig(name, read_queues=queues, write_queues=queues))
        return name

    async def group(self, *, ordered: bool = False) -> str:
        self._number += 1
        name = f"group-{self._number}"
        await self.broker.create_group(GroupConfig(name, ordered=ordered))
        return name

    async def timed(self, figure: str, work: Awaitable[int]) -> None:
        begin = time.process_time()
        messages = await work
        each = (time.process_time() - begin) / messages * 1e6
        self.best[figure] = min(each, self.best.get(figure, each))

    async def send(self, messages: list[Message], batch: int) -> int:
        for at in range(0, len(messages), batch):
            results = await self.broker.send(CONTEXT, messages[at : at + batch])
            assert all(type(result) is Sent for result in results)
        return len(messages)

    async def send_concurrently(self, messages: list[Message], senders: int) -> int:
        async def one(part: list[Message]) -> None:
            for message in part:
                await self.broker.send(CONTEXT, (message,))

        await asyncio.gather(*(one(messages[at::senders]) for at in range(senders)))
        return len(messages)

    async def consume(
        self,
        topic: str,
        group: str,
        count: int,
        batch: int,
        *,
        passing: Filter = EVERYTHING,
        ack: bool = True,
        ordered: bool = False,
    ) -> int:
        left = count
        while left:
            request = Pop(topic, group, passing, 60_000, max_messages=batch, ordered=ordered)
            taken = await self.broker.pop(CONTEXT, request)
            assert taken, f"{left} messages did not come"
            left -= len(taken)
            if ack:
                answers = await self.broker.ack(CONTEXT, topic, group, [m.receipt for m in taken])
                assert not any(answers)
        return count

    async def pull(self, topic: str, count: int, batch: int) -> int:
        offset = 0
        while offset < count:
            pulled = await self.broker.pull(
                CONTEXT,
                topic,
                "",
                0,
                offset,
                max_messages=batch,
                max_bytes=1 << 30,
                passing=EVERYTHING,
                wait_until=None,
            )
            offset = pulled.next_offset
        return count

    async def run(self, other: Rounds) -> None:
        for _ in range(self.rounds):
            await self.sends()
            await other.sends("_repeats_unknown")
            await self._batches()
            await self._singles()
            await self._ordered()
            await self._others()

    async def sends(self, suffix: str = "") -> None:
        topic = await self.topic()
        await self.timed(f"send_32{suffix}", self.send(make_messages(topic, self.count), 32))
        topic = await self.topic()
        await self.timed(f"send_1{suffix}", self.send(make_messages(topic, self.count // 4), 1))
        topic, later = await self.topic(), time.time_ns() // 1_000_000 + 80_000_000
        delayed = make_messages(topic, self.count // 8)
        for message in delayed:
            message.type, message.deliver_at_ms = MessageType.DELAY, later
        await self.timed(f"send_delayed_1{suffix}", self.send(delayed, 1))

    async def _batches(self) -> None:
        topic = await self.topic()
        messages = make_messages(topic, self.count)
        await self.timed("send_32", self.send(messages, 32))
        await self.timed("pop_ack_32", self.consume(topic, await self.group(), self.count, 32))
        await self.timed("pop_32", self.consume(topic, await self.group(), self.count, 32, ack=False))
        tags = compile_filter(FilterKind.TAG, "TagB || TagA")
        await self.timed(
            "pop_ack_by_tag_32",
            self.consume(topic, await self.group(), self.count, 32, passing=tags),
        )

    async def _singles(self) -> None:
        topic, count = await self.topic(), self.count // 4
        await self.timed("send_1", self.send(make_messages(topic, count), 1))
        await self.timed("pop_ack_1", self.consume(topic, await self.group(), count, 1))
        topic = await self.topic()
        await self.timed("send_1_by_32_senders", self.send_concurrently(make_messages(topic, self.count), 32))

    async def _ordered(self) -> None:
        topic = await self.topic()
        messages = make_messages(topic, self.count, ordered=True)
        await self.timed("ordered_send_32", self.send(messages, 32))
        group = await self.group(ordered=True)
        await self.timed(
            "ordered_pop_ack_32",
            self.consume(topic, group, self.count, 32, ordered=True),
        )

    async def _others(self) -> None:
        topic = await self.topic(queues=1)
        await self.send(make_messages(topic, self.count), 32)
        await self.timed("pull_32", self.pull(topic, self.count, 32))


async def measure(count: int, rounds: int, durability: Durability) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        broker = EmbeddedBroker(Path(folder) / "store", clock=SystemClock(), durability=durability)
        await broker.start()
        forgetful = EmbeddedBroker(
            Path(folder) / "other",
            clock=SystemClock(),
            settings=EmbeddedSettings(durability=durability, dedup_window_ms=0),
        )
        await forgetful.start()
        measured, other = Rounds(broker, count, rounds), Rounds(forgetful, count, rounds)
        await measured.run(other)
        await broker.stop()
        await forgetful.stop()
        return measured.best | other.best


def main() -> None:
    parser = argparse.ArgumentParser(description="What the embedded broker costs at its port.")
    parser.add_argument("--quick", action="store_true", help="prove only that it runs")
    parser.add_argument("--durability", choices=[kind.value for kind in Durability], default="interval")
    chosen = parser.parse_args()
    count, rounds = (640, 1) if chosen.quick else (16_000, 3)
    found = asyncio.run(measure(count, rounds, Durability(chosen.durability)))
    for figure, microseconds in found.items():
        print(f"embedded.{chosen.durability}.{figure} {microseconds:.2f} us/message")


if __name__ == "__main__":
    main()
