"""A broker with lite topics under load in a process that is going to be killed, as `store_worker.py`.

    python lite_worker.py FOLDER DURABILITY SEED

Bodies are `ROOM/SEED-NUMBER`. Lines: `sent BODY`, `got BODY ATTEMPT`, `acking BODY`, `acked BODY`.
"""

import asyncio
import random
import sys
from contextlib import suppress
from pathlib import Path

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Durability
from popgate.clock import SystemClock
from popgate.context import Context
from popgate.errors import AlreadyExists
from popgate.filters.compiled import EVERYTHING
from popgate.lite import LITE_BIND_TOPIC, LiteAction, LiteSync
from popgate.model import GroupConfig, Message, MessageType, Pop, Sent, TopicConfig
from tests.e2e.store_worker import forever, tell

CONTEXT = Context(client_id="worker")
ROOMS = ("a", "b", "c", "d")
HIDDEN_MS = 100
"""Longer than a slow disk takes for what was received to be acknowledged, now and then at least."""


class Worker:
    def __init__(self, broker: EmbeddedBroker, seed: int) -> None:
        self.broker = broker
        self.seed = seed
        self.random = random.Random(seed)
        self.count = 0

    async def send(self, room: str) -> None:
        batch = []
        for _ in range(self.random.randint(1, 3)):
            self.count += 1
            body = f"{room}/{self.seed}-{self.count}"
            more = b" " * self.random.choice([0, 10, 1000, 20_000])
            batch.append(
                Message(
                    "rooms", body.encode() + more, message_id=body, type=MessageType.LITE, lite_topic=room
                )
            )
        for message, result in zip(batch, await self.broker.send(CONTEXT, batch), strict=True):
            assert isinstance(result, Sent), result
            tell("sent", message.message_id)

    async def consume(self) -> None:
        found = await self.broker.pop_lite(
            CONTEXT, Pop("rooms", "readers", EVERYTHING, HIDDEN_MS, max_messages=16)
        )
        for message in found:
            tell("got", message.body.decode().strip(), message.attempt)
        done = [message for message in found if self.random.random() < 0.8]
        for message in done:
            tell("acking", message.body.decode().strip())
        receipts = [message.receipt for message in done]
        results = await self.broker.ack(CONTEXT, "rooms", "readers", receipts)
        for message, error in zip(done, results, strict=True):
            if error is None:
                tell("acked", message.body.decode().strip())
        if not found:
            await asyncio.sleep(0.001)


async def main(folder: str, durability: str, seed: str) -> None:
    settings = EmbeddedSettings(
        durability=Durability(durability), sync_interval_s=0.02, write_buffer_bytes=256 * 1024
    )
    broker = EmbeddedBroker(Path(folder), clock=SystemClock(), settings=settings)
    await broker.start()
    rooms = TopicConfig("rooms", read_queues=2, write_queues=2, message_types=(MessageType.LITE,))
    readers = GroupConfig("readers", max_attempts=1_000_000, attributes={LITE_BIND_TOPIC: "rooms"})
    with suppress(AlreadyExists):  # it was killed between the two, maybe
        await broker.create_topic(rooms)
    with suppress(AlreadyExists):
        await broker.create_group(readers)
    worker = Worker(broker, int(seed))
    await broker.subscribe_lite(CONTEXT, LiteSync("rooms", "readers", LiteAction.ADD, ROOMS))
    tell("ready")
    await asyncio.gather(
        *(forever(lambda room=room: worker.send(room)) for room in ROOMS),  # type: ignore[misc]
        forever(worker.consume),
    )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
