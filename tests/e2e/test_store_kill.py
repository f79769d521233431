"""kill -9 in the middle of everything: what was answered is there once, what was finished stays away."""

import asyncio
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Durability
from popgate.context import Context
from popgate.errors import IllegalTransactionId, NotFound
from popgate.filters.compiled import compile_filter
from popgate.lite import LiteAction, LiteSync
from popgate.model import EndTransaction, FilterKind, Pop, Resolution, StoredMessage
from popgate.testing import MovableClock

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("store_worker.py")
LITE_WORKER = WORKER.with_name("lite_worker.py")
COMPACTION_WORKER = WORKER.with_name("compaction_worker.py")
ROUNDS = 8
LITE_ROUNDS = 4
CONTEXT = Context(client_id="judge")
EVERYTHING = compile_filter(FilterKind.TAG, "*")


ENOUGH = {
    WORKER: {"sent": 5, "acked": 5, "delayed": 5, "recalled": 1, "committed": 1, "rolled-back": 1},
    LITE_WORKER: {"sent": 5, "acked": 5, "again": 5},
    COMPACTION_WORKER: {"sent": 300},
}
"""What every worker says at least before it is killed, however fast the machine and its disk are."""


def run_and_kill(folder: Path, durability: Durability, seed: int, program: Path = WORKER) -> list[list[str]]:
    """What a worker said until it was killed, at a moment that the seed chooses.

    Most live for a number of answers, and until there is something of each kind; every fourth is killed at
    its start, while it recovers.
    """
    chance = random.Random(seed)
    worker = subprocess.Popen(
        [sys.executable, program, str(folder), durability.value, str(seed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )
    assert worker.stdout is not None
    assert worker.stderr is not None
    said, kinds = list[bytes](), Counter[str]()
    with worker.stdout, worker.stderr:
        lives = seed % 4 != 3
        lines_to_live = chance.randint(300, 3000) if lives else 0
        if not lives:
            time.sleep(chance.uniform(0.05, 0.3))
            worker.kill()
        for line in worker.stdout:
            said.append(line)
            kinds[kind_of(line)] += 1
            if lives and len(said) >= lines_to_live and kinds >= Counter(ENOUGH[program]):
                lives = False
                worker.kill()
        worker.wait()
        assert len(said) >= lines_to_live, worker.stderr.read().decode()
    # A line is written in one piece, so the last one is whole.
    return [line.decode().split() for line in said]


def kind_of(line: bytes) -> str:
    """Its first word; `again` for what was not got for the first time."""
    kind, *words = line.decode().split()
    return "again" if kind == "got" and words[1:] != ["1"] else kind


class Ledger:
    """What the workers were answered."""

    def __init__(self, said: list[list[str]]) -> None:
        self.sent: dict[int, list[str]] = {}
        self.acking: set[str] = set()
        self.acked: set[str] = set()
        self.handles: dict[str, str] = {}
        self.recalling: set[str] = set()
        self.recalled: set[str] = set()
        self.halves: dict[str, str] = {}
        self.ending: set[str] = set()
        self.committed: set[str] = set()
        self.rolled_back: set[str] = set()
        for what, *words in said:
            match what:
                case "sent":
                    self.sent.setdefault(int(words[0]), []).append(words[1])
                case "acking":
                    self.acking.add(words[0])
                case "acked":
                    self.acked.add(words[0])
                case "delayed":
                    self.handles[words[0]] = words[1] if words[1:] else ""
                case "recalling":
                    self.recalling.add(words[0])
                case "recalled":
                    self.recalled.add(words[0])
                case "half":
                    self.halves[words[0]] = words[1]
                case "ending":
                    self.ending.add(words[0])
                case "committed":
                    self.committed.add(words[0])
                case "rolled-back":
                    self.rolled_back.add(words[0])
                case "ready":
                    pass
                case _:
                    raise AssertionError(f"the worker said {what}")

    def assert_full(self) -> None:
        """Everything happened often enough for the rest to mean something."""
        for name, seen in vars(self).items():
            assert len(seen) >= 3, f"too little of {name}"


class Judge:
    """Reads the broker that the workers left behind, an hour later."""

    def __init__(self, folder: Path, durability: Durability, *, tombstone_ms: int = 0) -> None:
        self.clock = MovableClock(time.time_ns() // 1_000_000 + 3_600_000)
        settings = EmbeddedSettings(
            durability=durability, transaction_check_after_ms=10**9, tombstone_retention_ms=tombstone_ms
        )
        self.broker = EmbeddedBroker(folder, clock=self.clock, settings=settings)

    async def rest(self) -> None:
        """Let everything happen that is due."""
        for _ in range(200):
            self.clock.advance(0.001)
            await asyncio.sleep(0)

    async def read(self, topic: str) -> dict[int, list[str]]:
        """The bodies of a topic, queue by queue, in order."""
        found: dict[int, list[str]] = {}
        for queue in (await self.broker.route(topic)).queues:
            where = (topic, queue.broker, queue.queue_id)
            bounds = await self.broker.bounds(CONTEXT, *where)
            offset, messages = bounds.minimum, list[StoredMessage]()
            while offset < bounds.maximum:
                pulled = await self.broker.pull(
                    CONTEXT,
                    *where,
                    offset,
                    max_messages=1000,
                    max_bytes=1 << 26,
                    passing=EVERYTHING,
                    wait_until=None,
                )
                messages += pulled.messages
                offset = pulled.next_offset
            assert [message.offset for message in messages] == list(range(bounds.minimum, bounds.maximum))
            found[queue.queue_id] = [message.body.decode().strip() for message in messages]
        return found

    async def consume(self, topic: str) -> list[str]:
        """Everything that the group has not finished."""
        found: list[str] = []
        empty = 0
        while empty < 5:
            request = Pop(topic, "group", EVERYTHING, 10**9, max_messages=1000)
            messages = await self.broker.pop(CONTEXT, request)
            found += [message.body.decode().strip() for message in messages]
            empty = 0 if messages else empty + 1
            await self.rest()
        return found


def once(bodies: list[str]) -> set[str]:
    twice = [body for body, count in Counter(bodies).items() if count > 1]
    assert not twice, f"more than once: {twice[:5]}"
    return set(bodies)


def serial(body: str) -> tuple[int, int]:
    seed, _, number = body.partition("-")
    return int(seed), int(number)


@pytest.mark.parametrize("durability", Durability)
async def test_what_was_answered_survives_kills(tmp_path: Path, durability: Durability) -> None:
    folder = tmp_path / "store"
    said: list[list[str]] = []
    for seed in range(ROUNDS):
        said += await asyncio.to_thread(run_and_kill, folder, durability, seed)
    ledger = Ledger(said)
    ledger.assert_full()
    judge = Judge(folder, durability)
    broker = judge.broker
    await broker.start()
    try:
        await judge.rest()

        # Sends: every answered one is there, once, where it was said to be, in the order it was sent.
        plain = await judge.read("plain")
        there = once([body for bodies in plain.values() for body in bodies])
        for queue_id, bodies in ledger.sent.items():
            answered = set(bodies)
            assert [body for body in plain[queue_id] if body in answered] == bodies
            assert plain[queue_id] == sorted(plain[queue_id], key=serial)

        # Acknowledgements: what was finished stays away, everything else comes.
        came = once(await judge.consume("plain"))
        assert not came & ledger.acked
        assert there - ledger.acking <= came <= there

        # Delays: held until due, delivered once, never after a recall.
        delayed = once([body for bodies in (await judge.read("delayed")).values() for body in bodies])
        assert ledger.handles.keys() - ledger.recalling <= delayed
        assert not ledger.recalled & delayed
        for handle in filter(None, ledger.handles.values()):
            with pytest.raises(NotFound):
                await broker.recall(CONTEXT, "delayed", handle)

        # Transactions: ended once and one way; those that nobody ended can still be.
        seen = once([body for bodies in (await judge.read("transactions")).values() for body in bodies])
        assert ledger.committed <= seen
        assert not ledger.rolled_back & seen
        for body, transaction in ledger.halves.items():
            commit = EndTransaction("transactions", transaction, body, Resolution.COMMIT)
            if body in ledger.rolled_back:
                with pytest.raises(IllegalTransactionId, match="rolled back already"):
                    await broker.end_transaction(CONTEXT, commit)
            elif body in ledger.committed or body not in ledger.ending:
                await broker.end_transaction(CONTEXT, commit)
                seen.add(body)
        at_last = once([body for bodies in (await judge.read("transactions")).values() for body in bodies])
        assert at_last == seen
    finally:
        await broker.stop()


class Rooms:
    """What the workers were told of lite topics, and what that may never be, in the order it was told."""

    def __init__(self, said: list[list[str]]) -> None:
        self.sent: dict[str, list[str]] = {}
        self.acking: set[str] = set()
        self.acked: set[str] = set()
        self.again = 0
        first: dict[str, list[str]] = {}
        for what, *words in said:
            match what:
                case "sent":
                    self.sent.setdefault(room_of(words[0]), []).append(words[0])
                case "got":
                    assert words[0] not in self.acked, "delivered after its acknowledgement was answered"
                    if words[1] == "1":
                        first.setdefault(room_of(words[0]), []).append(words[0])
                    else:
                        self.again += 1
                case "acking":
                    self.acking.add(words[0])
                case "acked":
                    self.acked.add(words[0])
                case "ready":
                    pass
                case _:
                    raise AssertionError(f"the worker said {what}")
        for bodies in first.values():
            assert bodies == sorted(bodies, key=place)
            once(bodies)

    def assert_full(self) -> None:
        assert len(self.sent) == len(LITE_ROOMS)
        assert all(len({place(body)[0] for body in bodies}) > 1 for bodies in self.sent.values())
        assert len(self.acked) > 10
        assert self.again > 10


LITE_ROOMS = ("a", "b", "c", "d")


def room_of(body: str) -> str:
    return body.partition("/")[0]


def place(body: str) -> tuple[int, int]:
    return serial(body.partition("/")[2])


async def rest_of_rooms(judge: Judge) -> list[str]:
    """Everything of the lite topics that the group has not finished, as it comes."""
    sync = LiteSync("rooms", "readers", LiteAction.ADD, LITE_ROOMS)
    await judge.broker.subscribe_lite(CONTEXT, sync)
    found: list[str] = []
    request = Pop("rooms", "readers", EVERYTHING, 10**9, max_messages=32)
    while messages := await judge.broker.pop_lite(CONTEXT, request):
        found += [message.body.decode().strip() for message in messages]
        receipts = [message.receipt for message in messages]
        assert await judge.broker.ack(CONTEXT, "rooms", "readers", receipts) == [None] * len(messages)
    return found


@pytest.mark.parametrize("durability", Durability)
async def test_lite_topics_survive_kills_in_their_order(tmp_path: Path, durability: Durability) -> None:
    folder = tmp_path / "store"
    said: list[list[str]] = []
    for seed in range(LITE_ROUNDS):
        said += await asyncio.to_thread(run_and_kill, folder, durability, seed, LITE_WORKER)
    rooms = Rooms(said)
    rooms.assert_full()
    judge = Judge(folder, durability)
    await judge.broker.start()
    try:
        await judge.rest()
        there = once([body for bodies in (await judge.read("rooms")).values() for body in bodies])
        came = await rest_of_rooms(judge)
        assert once(came) <= there
        assert not set(came) & rooms.acked
        for room in LITE_ROOMS:
            # Every answered send is there; what nobody finished comes, once and in the order it was sent.
            assert set(rooms.sent[room]) <= there
            mine = [body for body in came if room_of(body) == room]
            assert mine == sorted(mine, key=place)
            assert {body for body in there - rooms.acking if room_of(body) == room} <= set(mine)
    finally:
        await judge.broker.stop()
