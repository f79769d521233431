"""kill -9 in the middle of compaction: what was answered and is the newest of its key is there."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from brokers.embedded.storage.store import Durability
from popgate.model import Message, Sent, StoredMessage
from tests.e2e.test_store_kill import COMPACTION_WORKER, CONTEXT, EVERYTHING, Judge, run_and_kill

ROUNDS = 4
TOPIC = "compacted"


class Keys:
    """What the workers were told of one queue, in the order of its offsets."""

    def __init__(self, said: list[list[str]], queue_id: int) -> None:
        self.sent: dict[int, tuple[str, str]] = {}
        """Key and body by offset, of what was answered."""
        self.unanswered: set[tuple[str, str]] = set()
        """A kill came before the answer: it may be there or not."""
        pending: tuple[str, str] | None = None
        for what, *words in said:
            if what == "ready":
                if pending is not None:
                    self.unanswered.add(pending)
                pending = None
            elif int(words[0]) == queue_id:
                pending = None if what == "sent" else (words[1], words[2])
                if what == "sent":
                    assert int(words[3]) not in self.sent, "an offset was given twice"
                    self.sent[int(words[3])] = words[1], words[2]
        if pending is not None:
            self.unanswered.add(pending)
        assert list(self.sent) == sorted(self.sent)

    def newest(self) -> dict[str, int]:
        """The offset of what was answered last, by key."""
        return {key: offset for offset, (key, _) in self.sent.items()}


async def read(judge: Judge, queue_id: int) -> dict[int, tuple[str, str]]:
    """Key and body of what is there, by offset."""
    queue = (await judge.broker.route(TOPIC)).queues[queue_id]
    messages = list[StoredMessage]()
    offset, maximum = 0, 1
    while offset < maximum:
        pulled = await judge.broker.pull(
            CONTEXT,
            *(TOPIC, queue.broker, queue_id, offset),
            max_messages=1000,
            max_bytes=1 << 26,
            passing=EVERYTHING,
            wait_until=None,
        )
        messages += pulled.messages
        assert pulled.bounds.minimum == 0
        offset, maximum = pulled.next_offset, pulled.bounds.maximum
    return {m.offset: (key_of(m), m.body.decode().strip() or "-") for m in messages}


def key_of(message: StoredMessage) -> str:
    pairs = dict(pair.split(b"\x01") for pair in message.properties.split(b"\x02") if pair)
    return pairs[b"KEYS"].decode()


def check(told: Keys, there: dict[int, tuple[str, str]]) -> None:
    for offset, what in there.items():
        assert told.sent.get(offset, what) == what
        assert offset in told.sent or what in told.unanswered
    last = {key: offset for offset, (key, _) in there.items()}
    for key, newest in told.newest().items():
        # Newer than the newest answered one is at most what a kill left without an answer.
        if last.get(key, -1) < newest:
            deleted = told.sent[newest][1] == "-" or (key, "-") in told.unanswered
            assert deleted, f"the newest of {key} is lost"
            assert key not in last, f"an older one of {key} is back"


@pytest.mark.parametrize("durability", Durability)
async def test_the_newest_of_each_key_survives_kills(tmp_path: Path, durability: Durability) -> None:
    folder = tmp_path / "store"
    said: list[list[str]] = []
    for seed in range(ROUNDS):
        said += await asyncio.to_thread(run_and_kill, folder, durability, seed, COMPACTION_WORKER)
    judge = Judge(folder, durability, tombstone_ms=1_000)
    await judge.broker.start()
    try:
        for queue_id in range(2):
            told = Keys(said, queue_id)
            there = await read(judge, queue_id)
            assert len(there) < len(told.sent), "nothing was compacted"
            check(told, there)

            # Later only the newest of each key, and the last of all, are left.
            async def left(queue_id: int = queue_id, told: Keys = told) -> dict[int, tuple[str, str]]:
                for _ in range(2):
                    judge.clock.advance(90_000)
                    await judge.rest()
                found = await read(judge, queue_id)
                check(told, found)
                return found

            deadline = time.monotonic() + 100
            while True:
                found = await left()
                keys = [key for key, _ in found.values()]
                bodies = [body for offset, (_, body) in found.items() if offset != max(found)]
                if len(set(keys)) == len(keys) and "-" not in bodies:
                    break
                assert time.monotonic() < deadline, f"compaction does not come to its end: {found}"
                await asyncio.sleep(0.01)  # a sync takes its time
            message = Message(TOPIC, b"next", message_id=f"next-{queue_id}", keys=("k",), queue_id=queue_id)
            [sent] = await judge.broker.send(CONTEXT, [message])
            assert isinstance(sent, Sent)
            assert sent.offset > max(told.sent)
    finally:
        await judge.broker.stop()
