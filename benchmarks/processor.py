"""What the processor adds above the broker: one line per figure, to be compared with another run's.

    python benchmarks/processor.py            # a few seconds
    python benchmarks/processor.py --quick    # a moment; proves only that it runs

The broker here does nothing, so that what is measured is the processor alone. Each figure is the
best of several runs, in microseconds of one message (or of one request) on one core.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from brokers.port import Broker
from brokers.traits import OrderScope, Traits
from popgate.clock import SystemClock
from popgate.context import Context
from popgate.ids.receipt import Receipt
from popgate.model import GroupConfig, Message, Permission, Queue, Route, Sent, StoredMessage
from processors.messaging import MessagingProcessor
from processors.requests import Receive

BATCH = 32
CONTEXT = Context(client_id="client-1", language="JAVA", door="grpc", peer="10.0.0.1:5000")
FAR = 1 << 60


def handle(offset: int) -> str:
    return Receipt(offset, 1_700_000_000_000, 900_000, 0, 0, "none", 0, offset, offset).encode()


class NoBroker:
    """Answers at once, with what was made before."""

    name = "none"
    capability = Broker.capability
    traits = Traits(OrderScope.MESSAGE_GROUP, 0, 0, True, True, True, True, True, 1 << 50)

    def __init__(self) -> None:
        queues = tuple(Queue(self.name, index, Permission.READ_WRITE) for index in range(8))
        self._route = Route("orders", (), queues)
        self._group = GroupConfig("readers")
        self.answer = [
            StoredMessage(
                "orders", "none", 0, n, n, 0, 0, 0, "10.0.0.1:1", 0, "10.0.0.2:2", bytes(1024), b"", 1,
                handle(n), FAR,
            )
            for n in range(BATCH)
        ]  # fmt: skip
        self.finished: list[None] = [None] * BATCH

    async def route(self, topic: str) -> Route:
        return self._route

    async def group(self, name: str) -> GroupConfig:
        return self._group

    async def send(self, context: Context, messages: list[Message]) -> list[Sent]:
        return [_SENT] * len(messages)

    async def pop(self, context: Context, request: object) -> list[StoredMessage]:
        return self.answer

    async def ack(self, context: Context, topic: str, group: str, receipts: list[str]) -> list[None]:
        return self.finished[: len(receipts)]


_SENT = Sent("01ABC", "none", 0, 0)


def plain() -> Message:
    return Message("orders", bytes(1024), "01" + "A" * 32, born_ms=1_700_000_000_000, born_host="10.0.0.1:1")


def rich() -> Message:
    message = plain()
    message.tag, message.keys = "TagA", ("order-1", "order-2")
    message.message_group = "customer-17"
    message.user_properties = {"region": "north", "amount": "42", "currency": "EUR"}
    return message


class Bench:
    def __init__(self) -> None:
        self.broker = NoBroker()
        broker: Any = self.broker
        self.processor = MessagingProcessor(broker, clock=SystemClock())
        self.receipts = [message.receipt for message in self.broker.answer]
        self.receive = Receive("orders", "readers", invisible_ms=30_000, wait_s=1.0)
        self.renewed = replace(self.receive, auto_renew=True)

    async def send(self, make: Callable[[], Message], count: int, rounds: int) -> float:
        """Seconds of `rounds` sends; making the messages is the door's work and not counted."""
        total = 0.0
        for _ in range(rounds):
            messages = [make() for _ in range(count)]
            began = time.perf_counter()
            await self.processor.send(CONTEXT, messages)
            total += time.perf_counter() - began
        return total

    async def timed(self, rounds: int, call: Callable[[], Awaitable[object]]) -> float:
        began = time.perf_counter()
        for _ in range(rounds):
            await call()
        return time.perf_counter() - began

    async def receive_once(self) -> None:
        await self.processor.receive(CONTEXT, self.receive)

    async def ack_once(self, count: int) -> None:
        await self.processor.ack(CONTEXT, "orders", "readers", self.receipts[:count])

    async def receive_and_ack_followed(self) -> None:
        await self.processor.receive(CONTEXT, self.renewed)
        await self.processor.ack(CONTEXT, "orders", "readers", self.receipts)


async def measure(quick: bool) -> None:
    bench = Bench()
    figures: list[tuple[str, Callable[[int], Awaitable[float]], int]] = [
        ("processor.send_1", lambda rounds: bench.send(plain, 1, rounds), 1),
        ("processor.send_32", lambda rounds: bench.send(plain, BATCH, rounds), BATCH),
        ("processor.send_32_rich", lambda rounds: bench.send(rich, BATCH, rounds), BATCH),
        ("processor.receive_32", lambda rounds: bench.timed(rounds, bench.receive_once), BATCH),
        ("processor.receive_request", lambda rounds: bench.timed(rounds, bench.receive_once), 1),
        ("processor.ack_1", lambda rounds: bench.timed(rounds, lambda: bench.ack_once(1)), 1),
        ("processor.ack_32", lambda rounds: bench.timed(rounds, lambda: bench.ack_once(BATCH)), BATCH),
        (
            "processor.receive_and_ack_followed_32",
            lambda rounds: bench.timed(rounds, bench.receive_and_ack_followed),
            BATCH,
        ),
    ]
    for name, run, messages in figures:
        rounds = 3 if quick else max(1, int(0.1 / (await run(50) / 50)))
        best = min([await run(rounds) for _ in range(1 if quick else 5)]) / rounds / messages
        print(f"{name} {best * 1e6:.2f} us/op")
    await bench.processor.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what popgate's processor adds.")
    parser.add_argument("--quick", action="store_true", help="one short run of each, for tests")
    asyncio.run(measure(parser.parse_args().quick))


if __name__ == "__main__":
    main()
