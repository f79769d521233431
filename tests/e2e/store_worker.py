"""A broker under load in a process that is going to be killed: every answer is told on standard output.

    python store_worker.py FOLDER DURABILITY SEED

A line is written in one piece once the broker has answered; what takes something away is also
told before it is asked for. Lines: `sent QUEUE BODY`, `acking BODY`, `acked BODY`, `delayed BODY
HANDLE`, `recalling BODY`, `recalled BODY`, `half BODY ID`, `ending BODY`, `committed BODY`,
`rolled-back BODY`.
"""

import asyncio
import os
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Durability
from popgate.clock import SystemClock
from popgate.context import Context
from popgate.errors import AlreadyExists, GatewayError, NotFound
from popgate.filters.compiled import compile_filter
from popgate.model import (
    EndTransaction,
    FilterKind,
    GroupConfig,
    Message,
    MessageType,
    Pop,
    Resolution,
    Sent,
    TopicConfig,
)

CONTEXT = Context(client_id="worker")
QUEUES = 3


def tell(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Worker:
    def __init__(self, broker: EmbeddedBroker, seed: int) -> None:
        self.broker = broker
        self.seed = seed
        self.random = random.Random(seed)
        self.count = 0

    def body(self) -> str:
        self.count += 1
        return f"{self.seed}-{self.count}"

    def message(self, topic: str, **how: object) -> Message:
        body = self.body()
        return Message(
            topic,
            body.encode() + b" " * self.random.choice([0, 10, 1000, 20_000]),
            message_id=body,
            **how,  # type: ignore[arg-type]
        )

    async def send(self, queue_id: int) -> None:
        batch = [self.message("plain", queue_id=queue_id) for _ in range(self.random.randint(1, 5))]
        for message, result in zip(batch, await self.broker.send(CONTEXT, batch), strict=True):
            assert isinstance(result, Sent), result
            tell("sent", queue_id, message.message_id)

    async def consume(self) -> None:
        everything = compile_filter(FilterKind.TAG, "*")
        found = await self.broker.pop(CONTEXT, Pop("plain", "group", everything, 500, max_messages=16))
        done = [message for message in found if self.random.random() < 0.7]
        for message in done:
            tell("acking", message.body.decode().strip())
        receipts = [message.receipt for message in done]
        for message, error in zip(
            done, await self.broker.ack(CONTEXT, "plain", "group", receipts), strict=True
        ):
            if error is None:
                tell("acked", message.body.decode().strip())
        if not found:
            await asyncio.sleep(0.001)

    async def delay(self) -> None:
        due = SystemClock().now_ms() + self.random.choice([1, 5, 50, 100_000])
        message = self.message("delayed", type=MessageType.DELAY, deliver_at_ms=due)
        [result] = await self.broker.send(CONTEXT, [message])
        assert isinstance(result, Sent), result
        tell("delayed", message.message_id, result.recall_handle)
        if result.recall_handle and self.random.random() < 0.4:  # without one it was due already
            tell("recalling", message.message_id)
            try:
                await self.broker.recall(CONTEXT, "delayed", result.recall_handle)
            except NotFound:
                return
            tell("recalled", message.message_id)

    async def transact(self) -> None:
        message = self.message("transactions", type=MessageType.TRANSACTION)
        [result] = await self.broker.send(CONTEXT, [message])
        assert isinstance(result, Sent), result
        tell("half", message.message_id, result.transaction_id)
        resolution = self.random.choice([Resolution.COMMIT, Resolution.ROLLBACK, None])
        if resolution is not None:
            end = EndTransaction("transactions", result.transaction_id, message.message_id, resolution)
            tell("ending", message.message_id)
            await self.broker.end_transaction(CONTEXT, end)
            tell("committed" if resolution is Resolution.COMMIT else "rolled-back", message.message_id)


async def forever(step: Callable[[], Awaitable[None]]) -> None:
    while True:
        await step()
        await asyncio.sleep(0)


async def main(folder: str, durability: str, seed: str) -> None:
    settings = EmbeddedSettings(
        durability=Durability(durability),
        sync_interval_s=0.02,
        write_buffer_bytes=256 * 1024,  # small, so that tables are written while it is killed
    )
    broker = EmbeddedBroker(Path(folder), clock=SystemClock(), settings=settings)
    await broker.start()
    for topic in ("plain", "delayed", "transactions"):
        try:
            await broker.create_topic(TopicConfig(topic, read_queues=QUEUES, write_queues=QUEUES))
        except AlreadyExists:
            continue
    try:
        await broker.group("group")
    except GatewayError:
        await broker.create_group(GroupConfig("group", max_attempts=1_000_000))
    worker = Worker(broker, int(seed))
    tell("ready")
    await asyncio.gather(
        *(forever(lambda queue_id=queue_id: worker.send(queue_id)) for queue_id in range(QUEUES)),  # type: ignore[misc]
        forever(worker.consume),
        forever(worker.delay),
        forever(worker.transact),
    )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
