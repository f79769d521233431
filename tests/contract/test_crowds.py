"""Many at once, cancelled at random, with restarts in between: an outside ledger of who has what.

A cancelled call is done or not done, and the caller cannot know. The ledger therefore knows three
things of a message: held by somebody until a time, finished for certain, or perhaps either.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

LANES = "ABCD"


class Crowd:
    """Senders and consumers whose calls are cut off at random."""

    def __init__(self, user, topic, group, seed, lanes):
        self.user = user
        self.topic = topic
        self.group = group
        self.chance = random.Random(seed)
        self.lanes = lanes
        self.sent = set()
        self.maybe_sent = set()
        self.held = {}
        self.finished = set()
        self.maybe_finished = set()
        self.deliveries = Counter()
        self.count = 0

    async def cut(self, work):
        """The result of a call; None when it was cancelled on the way."""
        task = self.user.task(work)
        if self.chance.random() < 0.25:
            for _ in range(self.chance.randint(0, 6)):
                await asyncio.sleep(0)
            task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(outcome, asyncio.CancelledError):
            return None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def send(self):
        self.count += 1
        lane = self.chance.choice(LANES)
        body = f"{lane}{self.count:05}"
        queue = (await self.user.queues(self.topic))[ord(lane) % 2]
        how = {"message_group": lane} if self.lanes else {}
        message = self.user.message(self.topic, body, queue=queue, **how)
        self.maybe_sent.add(body)
        if await self.cut(self.user.put(message)) is not None:
            self.maybe_sent.discard(body)
            self.sent.add(body)

    def take(self, messages, now):
        for message in messages:
            body = message.body.decode()
            assert body in self.sent or body in self.maybe_sent
            assert body not in self.finished, f"{body} was finished"
            assert self.held.get(body, 0) <= now, f"{body} is in two hands"
            self.deliveries[body] += 1
            self.held[body] = message.invisible_until_ms
        if self.lanes:
            for lane in LANES:
                mine = [m.body.decode() for m in messages if m.body.decode()[0] == lane]
                assert mine == sorted(mine)
                # Whatever comes before the first of them is finished, or may be, or goes with it.
                if mine:
                    before = {b for b in self.sent if b[0] == lane and b < mine[0]}
                    assert before <= self.finished | self.maybe_finished | set(mine)

    async def consume(self):
        wait = {"wait_ms": 2_000} if self.chance.random() < 0.5 else {}
        how = {"attempt_id": str(self.chance.random())} if self.lanes else {}
        invisible_ms = self.chance.choice([1_000, 5_000, 60_000])
        at_most = self.chance.randint(1, 4)
        got = await self.cut(
            self.user.pop(self.topic, self.group, at_most, invisible_ms=invisible_ms, **wait, **how)
        )
        self.take(got or (), self.user.now_ms())
        for message in got or ():
            await self.use(message)

    async def use(self, message):
        body, handle = message.body.decode(), message.receipt
        where = (self.topic, self.group)
        match self.chance.randint(0, 5):
            case 0:
                return  # forgotten
            case 1:
                self.held[body] = 0
                await self.cut(self.user.hide(*where, handle, 0))
            case 2:
                self.held[body] = 0
                await self.cut(self.user.give_back(*where, message))
            case _:
                self.maybe_finished.add(body)
                until = self.held[body]
                answer = await self.cut(self.user.ack_handles(*where, handle))
                if answer == [None]:
                    self.finished.add(body)
                elif answer is not None:
                    assert until <= self.user.now_ms()  # it came too late
                    self.maybe_finished.discard(body)

    async def worker(self, rounds):
        for _ in range(rounds):
            await (self.send() if self.chance.random() < 0.4 else self.consume())
            await asyncio.sleep(0)

    async def drain(self):
        """Everything that was sent and is not finished comes, and is finished."""
        quiet = 0
        while quiet < 3:
            got = await self.user.pop(self.topic, self.group, invisible_ms=1_000_000)
            self.take(got, self.user.now_ms())
            await self.user.ack(self.topic, self.group, *got)
            self.finished |= {m.body.decode() for m in got}
            quiet = 0 if got else quiet + 1
            await self.user.lag(0 if got else 120_000)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
async def test_a_crowd_that_is_cut_off_at_random_loses_and_doubles_nothing(user, seed, ordered):
    user.moved_by_hand("test_waiters_and_senders_in_a_crowd_lose_nothing")
    topic = await user.topic(queues=2)
    group = await user.group(ordered=ordered, max_attempts=10_000)
    crowd = Crowd(user, topic, group, seed, ordered)
    for round_number in range(6):
        workers = [user.task(crowd.worker(12)) for _ in range(6)]
        for _ in range(1_000):
            if all(w.done() for w in workers):
                break
            await user.pass_ms(crowd.chance.choice([0, 1, 700]))
        for worker in workers:
            worker.result()
        if round_number % 2 == seed % 2:
            await user.restart()
    await crowd.drain()
    assert crowd.sent <= crowd.finished | crowd.maybe_finished
    assert crowd.sent - crowd.maybe_finished <= crowd.finished
    assert len(crowd.finished) > 20
    assert sum(p.lag for p in await user.broker.progress(group, topic)) == 0
