"""A broker with a compacted topic under load, in a process that is going to be killed.

    python compaction_worker.py FOLDER DURABILITY SEED

Each queue has one sender, which tells `sending QUEUE KEY BODY` before, and `sent QUEUE KEY BODY OFFSET` once
the broker has answered; the body `-` is none: a tombstone. Compaction goes on meanwhile, in many rounds.
"""

import asyncio
import os
import random
import sys
from pathlib import Path

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Durability
from popgate.clock import SystemClock
from popgate.context import Context
from popgate.errors import AlreadyExists
from popgate.model import Message, Sent, TopicConfig

CONTEXT = Context(client_id="worker")
TOPIC = "compacted"
QUEUES = 2
KEYS = 30
TOMBSTONE_MS = 20


def tell(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def send_forever(broker: EmbeddedBroker, queue_id: int, seed: int) -> None:
    chance = random.Random(seed * QUEUES + queue_id)
    number = 0
    while True:
        number += 1
        key = f"key-{chance.randrange(KEYS)}"
        body = "-" if chance.random() < 0.2 else f"{seed}-{number}"
        tell("sending", queue_id, key, body)
        padding = b" " * chance.choice([0, 10, 1000, 20_000])
        message = Message(
            TOPIC,
            b"" if body == "-" else body.encode() + padding,
            message_id=f"{seed}-{queue_id}-{number}",
            keys=(key,),
            queue_id=queue_id,
        )
        [result] = await broker.send(CONTEXT, [message])
        assert isinstance(result, Sent), result
        tell("sent", queue_id, key, body, result.offset)


async def main(folder: str, durability: str, seed: str) -> None:
    settings = EmbeddedSettings(
        durability=Durability(durability),
        sync_interval_s=0.02,
        write_buffer_bytes=256 * 1024,  # small, so that tables are written while it is killed
        retention_interval_ms=1,
        tombstone_retention_ms=TOMBSTONE_MS,
    )
    broker = EmbeddedBroker(Path(folder), clock=SystemClock(), settings=settings)
    await broker.start()
    try:
        attributes = {"cleanup.policy": "COMPACTION"}
        await broker.create_topic(TopicConfig(TOPIC, (), QUEUES, QUEUES, attributes=attributes))
    except AlreadyExists:
        pass
    tell("ready")
    await asyncio.gather(*(send_forever(broker, queue_id, int(seed)) for queue_id in range(QUEUES)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
