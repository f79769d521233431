"""Clients of a mapped group, whatever they do, against a small broker of which everything is known.

They lose answers, repeat pulls, begin anew, go on at other connections and gateways, commit with holes and
what they made up, hang and leave, while the broker fails now and then and the group is switched, or reset.
No message may be acknowledged of which no client committed that very delivery, and none may be held by
nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from brokers.capabilities import BrokerPlace
from popgate.context import Context
from popgate.errors import BrokerTimeout, BrokerUnavailable, GatewayError, ReceiptExpired
from popgate.ids.queue_numbers import QueueNumbers
from popgate.model import SendBack, StoredMessage
from popgate.testing import MovableClock
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.records import decode_records
from processors.limits import Limits
from processors.observer import DoorSums
from processors.requests import Pull, Receive
from protocols.remoting.mapped.handler import Mapped
from protocols.remoting.mapped.holdings import all_held
from protocols.remoting.mapped.offsets import VIRTUAL, beginning
from protocols.remoting.requests import DoorContext, Request

GROUP, TOPIC, BROKER = "readers", "orders", "b"
QUEUES, CONNECTIONS = 2, 3
HELD_S = 60
MOST = beginning(1_700_000_000_000) + (1 << 52)
"""The highest number that a client may go on from."""
_EFFORTS: dict[str, dict[str, Any]] = {
    "": {"max_examples": 200, "stateful_step_count": 40},
    "ci": {"max_examples": 300, "stateful_step_count": 40, "derandomize": True, "database": None},
    "long": {"max_examples": 3000, "stateful_step_count": 80},
}


class Groups:
    """Who is mapped, as the test says."""

    def __init__(self) -> None:
        self.mapped = True
        self.told: list[Callable[[str, bool], None]] = []

    def is_mapped(self, group: str) -> bool:
        return self.mapped

    def may_map(self, group: str) -> bool:
        return False

    def on_switch(self, told: Callable[[str, bool], None]) -> Callable[[], None]:
        self.told.append(told)
        return lambda: None

    def switch(self, mapped: bool) -> None:
        if mapped is not self.mapped:
            self.mapped = mapped
            for one in self.told:
                one(GROUP, mapped)


class Kept:
    """A message at the broker. `delivery` names the last one, `version` how often that was renewed."""

    def __init__(self, physical: int, queue_id: int) -> None:
        self.physical = physical
        self.queue_id = queue_id
        self.state = "free"
        self.until = 0.0
        self.delivery = 0
        self.version = 0
        self.attempt = 0

    @property
    def receipt(self) -> str:
        return f"{self.physical} {self.delivery} {self.version}"


class Twin:
    """A processor before a broker, in memory; every renewal makes another handle, and the old one is void."""

    def __init__(self, clock: MovableClock) -> None:
        self.clock = clock
        self.limits = Limits()
        # It is all of its parts itself.
        self.classic = self.metadata = self.offsets = self.settlement = self
        self.mapped_groups = Groups()
        self.keepers: list[Any] = []
        self.retry_reclaimer = SimpleNamespace(after=lambda _: lambda: None)
        self.door_figures = DoorSums()
        self.queue_numbering = SimpleNamespace(is_kept=False, latest=QueueNumbers())
        self.pops_group_retries = True
        self.kept: dict[int, Kept] = {}
        self.deliveries = itertools.count(1)
        self.trouble = ""
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.acked: dict[int, int] = {}
        """The delivery by which each message was finished."""
        self.tasks: set[asyncio.Task[None]] = set()

    def add(self, queue_id: int, count: int) -> None:
        for _ in range(count):
            physical = 100 + len(self.kept)
            self.kept[physical] = Kept(physical, queue_id)
        self.wake()

    def wake(self) -> None:
        while self.waiting:
            waiting = self.waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)

    def look(self) -> None:
        """What was hidden for long enough is free."""
        for one in self.kept.values():
            if one.state == "held" and one.until <= self.clock.monotonic():
                one.state = "free"

    def reset(self, back: bool) -> None:
        """What was held is forgotten; everything comes again, or nothing of what there is."""
        for one in self.kept.values():
            one.state, one.attempt = "free" if back else "skipped", 0
            self.acked.pop(one.physical, None)
        self.wake()

    def finishes(self, task: asyncio.Task[None]) -> None:
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def brokers(self, context: Context) -> Sequence[BrokerPlace]:
        return [BrokerPlace("c", BROKER)]

    async def committed(self, *_: object) -> int:
        await asyncio.sleep(0)
        return 0

    async def settings(self, context: Context, group: str, *, make: bool) -> Any:
        await asyncio.sleep(0)
        return SimpleNamespace(max_attempts=5)

    async def receive(self, context: Context, asked: Receive) -> list[StoredMessage]:
        await asyncio.sleep(0)
        end = self.clock.monotonic() + (asked.wait_s or 0)
        while True:
            self.look()
            found = [
                one for one in self.kept.values() if one.state == "free" and one.queue_id == asked.queue_id
            ]
            if found or self.clock.monotonic() >= end:
                return [self._give(one) for one in found[: asked.max_messages]]
            waiting = asyncio.get_running_loop().create_future()
            self.waiting.append(waiting)
            timer = self.clock.call_later(1.0, self.wake)
            try:
                await waiting
            finally:
                timer.cancel()

    def _give(self, one: Kept) -> StoredMessage:
        one.state, one.until = "held", self.clock.monotonic() + HELD_S
        one.delivery, one.version = next(self.deliveries), 0
        one.attempt += 1
        return StoredMessage(
            TOPIC,
            BROKER,
            one.queue_id,
            one.physical,
            one.physical,
            0,
            0,
            1,
            "1.2.3.4:5",
            1,
            "1.2.3.4:5",
            b"x",
            b"",
            one.attempt,
            one.receipt,
        )

    def _held(self, receipt: str) -> Kept:
        self.look()
        one = self.kept[int(receipt.split(" ")[0])]
        if one.state != "held" or one.receipt != receipt:
            raise ReceiptExpired(receipt)
        return one

    def fail(self) -> None:
        if self.trouble == "away":
            raise BrokerUnavailable("away")

    async def ack(
        self, context: Context, topic: str, group: str, receipts: Sequence[str]
    ) -> list[GatewayError | None]:
        await asyncio.sleep(0)
        self.fail()
        results: list[GatewayError | None] = []
        for receipt in receipts:
            try:
                one = self._held(receipt)
            except GatewayError as error:
                results.append(error)
            else:
                one.state = "done"
                self.acked[one.physical] = one.delivery
                results.append(None)
        if self.trouble == "mute":
            raise BrokerTimeout("nobody knows")
        return results

    async def change_invisible(
        self, context: Context, topic: str, group: str, receipt: str, invisible_ms: int
    ) -> str:
        await asyncio.sleep(0)
        self.fail()
        one = self._held(receipt)
        one.until = self.clock.monotonic() + invisible_ms / 1000
        one.version += 1
        if self.trouble == "mute":
            raise BrokerTimeout("nobody knows")
        return one.receipt

    renew = change_invisible

    async def dead_letter(self, context: Context, topic: str, group: str, receipt: str) -> None:
        await asyncio.sleep(0)
        self.fail()
        self._held(receipt).state = "dead"

    async def free_held(self, context: Context, topic: str, group: str, receipts: Sequence[str]) -> None:
        await asyncio.sleep(0)
        if self.trouble:
            return
        for receipt in receipts:
            try:
                one = self._held(receipt)
            except GatewayError:
                continue
            one.state = "free"
            one.attempt -= 1
        self.wake()


class Peer:
    """A client's end of a connection."""

    def __init__(self, number: int) -> None:
        self.client_id = f"c@{number}"
        self.address = f"10.0.0.1:{number}"
        self.version, self.language = 400, "JAVA"
        self.alive = True
        self.member = True
        self.told: list[Callable[[], None]] = []

    def on_gone(self, told: Callable[[], None]) -> None:
        self.told.append(told)

    def tell(self, *_: object) -> bool:
        return True

    def ask(self, *_: object) -> None:
        return None

    def close(self) -> None:
        self.alive = False
        for told in self.told:
            told()


class Connection:
    """What a client knows by it: of each queue where it goes on, what it asked last, what it got."""

    def __init__(self, mapped: Mapped, number: int) -> None:
        self.mapped = mapped
        self.peer = Peer(number)
        self.next = [0] * QUEUES
        self.last = [0] * QUEUES
        self.got: list[dict[int, int]] = [{} for _ in range(QUEUES)]
        """The delivery that each number is of."""
        self.physicals: list[int] = []


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = MovableClock()
        self.twin = Twin(self.clock)
        self.peers = itertools.count(1)
        self.opaque = itertools.count(1)
        self.gateways = [Mapped(self._door_context(), lambda peer, _: peer.member) for _ in range(2)]  # type: ignore[attr-defined]
        self.connections = [self._connect(n % 2) for n in range(CONNECTIONS)]
        self.troubled = False
        self.committed: set[int] = set()
        """Deliveries that a client said it finished."""
        self.under_way: list[tuple[asyncio.Task[Command], Connection, int, bool]] = []

    def _door_context(self) -> DoorContext:
        return DoorContext(self.twin, self.clock, lambda _: "10.0.0.9:8080")  # type: ignore[arg-type]

    def _connect(self, gateway: int) -> Connection:
        return Connection(self.gateways[gateway], next(self.peers))

    def _run(self, work: Coroutine[Any, Any, Any] | None = None) -> Any:
        """Do something, and let what follows from it be done."""

        async def whole() -> Any:
            task = asyncio.ensure_future(work) if work is not None else None
            for _ in range(30):
                await asyncio.sleep(0)
            while task is not None and not task.done():
                self.clock.advance(1)
                for _ in range(20):
                    await asyncio.sleep(0)
            return task.result() if task is not None else None

        try:
            return self.loop.run_until_complete(whole())
        finally:
            self._take_answers()

    def _do(self, what: Callable[[], object]) -> None:
        """Do something that takes no time, where the loop runs."""

        async def done() -> None:
            what()

        self._run(done())

    def _request(self, at: Connection, code: int, fields: dict[str, int]) -> Request:
        told = {name: str(value) for name, value in fields.items()}
        context = Context(at.peer.client_id, door="remoting", peer=at.peer.address, local="127.0.0.1:1")
        return Request(Command(code, next(self.opaque), fields=told), context, at.peer)

    def _take_answers(self) -> None:
        left = []
        for one in self.under_way:
            task, at, queue_id, lost = one
            if not task.done():
                left.append(one)
                continue
            if task.cancelled() or task.exception() is not None:
                continue
            answer = task.result()
            for record in decode_records(answer.body):
                # Also of answers that were lost: a client may know their numbers all the same.
                delivery = self.twin.kept[record.commit_offset].delivery
                at.got[queue_id].setdefault(record.offset, delivery)
                if not lost:
                    at.physicals.append(record.commit_offset)
            if not lost:
                at.next[queue_id] = int(answer.fields["nextBeginOffset"])
        self.under_way = left

    def _commits(self, at: Connection, queue_id: int, below: int) -> None:
        for number, delivery in at.got[queue_id].items():
            if number < below:
                self.committed.add(delivery)

    # -- what happens -------------------------------------------------------------------------------

    connections_at = st.sampled_from([0, 0, 0, *range(CONNECTIONS)])
    queues = st.sampled_from([0, 0, *range(QUEUES)])
    numbers = st.one_of(
        st.integers(-3, 40),
        st.just(VIRTUAL + 7),
        st.just(beginning(1_700_000_000_000) + (1 << 50)),
        st.just(1 << 62),
    )

    @rule(queue_id=queues, count=st.integers(1, 40))
    def send(self, queue_id: int, count: int) -> None:
        self._do(lambda: self.twin.add(queue_id, count))

    @rule(
        which=connections_at,
        queue_id=queues,
        steps=st.lists(
            st.tuples(
                st.sampled_from(["on", "on", "on", "again", "anew", "odd"]),
                st.sampled_from(["", "lowest", "all", "all", "hole", "odd"]),
                st.sampled_from(["", "", "", "", "unwritten", "lost"]),
            ),
            min_size=1,
            max_size=5,
        ),
        odd=numbers,
        wait=st.booleans(),
    )
    def pulls(
        self, which: int, queue_id: int, steps: list[tuple[str, str, str]], odd: int, wait: bool
    ) -> None:
        for how, commit, lost in steps:
            self._pull(which, queue_id, how, commit, odd, wait, lost)

    def _pull(
        self, which: int, queue_id: int, how: str, commit: str, odd: int, wait: bool, lost: str
    ) -> None:
        at = self.connections[which]
        offset = {
            "on": at.next[queue_id],
            "again": at.last[queue_id],
            "anew": 0,
            "odd": at.next[queue_id] + odd if odd < 1000 else min(odd, MOST),
        }[how]
        offset = min(offset, MOST)
        at.last[queue_id] = offset
        done = self._number(at, queue_id, commit, odd)
        if done is not None:
            self._commits(at, queue_id, min(done, offset) if offset >= VIRTUAL else done)
        asked = Pull(TOPIC, BROKER, queue_id, offset, GROUP, wait_s=15.0 if wait else None)
        request = self._request(at, RequestCode.PULL_MESSAGE, {"commitOffset": done or 0})

        async def whole() -> Command:
            answer = await at.mapped.pull(request, asked, 1 if done is not None else 0)
            if lost == "unwritten" and request.unwritten is not None:
                request.unwritten()
            return answer

        task = self.loop.create_task(whole())
        self.under_way.append((task, at, queue_id, bool(lost)))
        self._run()

    @rule(
        which=connections_at,
        queue_id=queues,
        commit=st.sampled_from(["lowest", "all", "hole", "odd"]),
        odd=numbers,
    )
    def update(self, which: int, queue_id: int, commit: str, odd: int) -> None:
        at = self.connections[which]
        done = self._number(at, queue_id, commit, odd)
        if done is None:
            return
        self._commits(at, queue_id, done)
        request = self._request(at, RequestCode.UPDATE_CONSUMER_OFFSET, {})
        try:
            acknowledges = done >= VIRTUAL or (self.twin.mapped_groups.mapped and at.peer.member)
            position = self._run(at.mapped.commit(request, GROUP, (TOPIC, BROKER, queue_id), done))
            assert position == (None if acknowledges else done)
        except BrokerUnavailable:
            assert self.troubled  # it may have been so a moment ago

    def _number(self, at: Connection, queue_id: int, how: str, odd: int) -> int | None:
        got = sorted(at.got[queue_id])
        if how == "" or (how != "odd" and not got):
            return None
        if how == "odd":
            return odd
        return {"lowest": got[0] + 1, "all": got[-1] + 1, "hole": got[len(got) // 2] + 1}[how]

    @rule(which=connections_at, number=st.integers(0, 50), level=st.sampled_from([-1, 0, 1, 3, 18]))
    def send_back(self, which: int, number: int, level: int) -> None:
        at = self.connections[which]
        if not at.physicals:
            return
        physical = at.physicals[number % len(at.physicals)]
        request = self._request(at, RequestCode.CONSUMER_SEND_MSG_BACK, {})
        try:
            self._run(at.mapped.send_back(request, SendBack(GROUP, "", physical, level)))
        except (BrokerUnavailable, BrokerTimeout):
            assert self.twin.trouble

    @rule(which=connections_at, gateway=st.integers(0, 1), goes_on=st.booleans())
    def reconnect(self, which: int, gateway: int, goes_on: bool) -> None:
        old = self.connections[which]
        self._do(old.peer.close)
        new = self.connections[which] = self._connect(gateway)
        if goes_on:
            # It knows what it knew; what it says of that here is about nothing.
            new.next, new.last, new.physicals = old.next, old.last, old.physicals

    @rule(which=connections_at)
    def leave(self, which: int) -> None:
        at = self.connections[which]
        at.peer.member = False
        self._do(lambda: at.mapped.left(at.peer, GROUP))
        at.peer.member = True

    @rule(seconds=st.sampled_from([1, 5, 20, 45, 70]), heard=st.booleans())
    def wait(self, seconds: int, heard: bool) -> None:
        for _ in range(seconds):
            if heard:
                for at in self.connections:
                    held = at.mapped._connections.get(at.peer)
                    for queue in held.queues.values() if held is not None else ():
                        queue.heard = self.clock.monotonic()
            self._do(lambda: self.clock.advance(1))

    @rule(trouble=st.sampled_from(["", "", "away", "mute"]))
    def fail(self, trouble: str) -> None:
        self.twin.trouble = trouble
        self.troubled = self.troubled or bool(trouble)

    @rule(mapped=st.booleans())
    def switch(self, mapped: bool) -> None:
        self._do(lambda: self.twin.mapped_groups.switch(mapped))

    @rule(gateway=st.integers(0, 1), back=st.booleans(), fails=st.booleans())
    def reset(self, gateway: int, back: bool, fails: bool) -> None:
        """An operator sets the group to one end of the topic, through one of the gateways."""

        async def whole() -> None:
            async with self.gateways[gateway].resetting(GROUP, TOPIC):
                await self.twin.committed()  # others may come in between
                if fails:
                    raise BrokerUnavailable("away")
                self.twin.reset(back)

        with contextlib.suppress(BrokerUnavailable):
            self._run(whole())

    # -- what always holds --------------------------------------------------------------------------

    @invariant()
    def nothing_is_finished_that_was_not_committed(self) -> None:
        for physical, delivery in self.twin.acked.items():
            assert delivery in self.committed, f"message {physical} was acknowledged by nobody's word"

    @invariant()
    def what_is_held_can_be_found(self) -> None:
        for mapped in self.gateways:
            indexed = sum(len(pairs) for pairs in mapped._index._at.values())
            held = list(all_held(mapped._connections.values()))
            assert indexed == len(held) == mapped.figures()["mapped_held"]
            for connection in mapped._connections.values():
                for queue in connection.queues.values():
                    assert list(queue.held) == sorted(queue.held)
                    assert all(one < queue.next for one in queue.held)

    @precondition(lambda self: not self.twin.trouble)
    @invariant()
    def nothing_is_hidden_for_longer_than_it_is_held(self) -> None:
        self.twin.look()
        kept = {
            int(one.receipt.split(" ")[0])
            for mapped in self.gateways
            for one in all_held(mapped._connections.values())
        }
        now = self.clock.monotonic()
        for one in self.twin.kept.values():
            if one.state == "held" and one.physical not in kept:
                # Sent back with a delay of up to 2 h, or it comes by itself.
                assert one.until <= now + max(HELD_S, 7200)

    def teardown(self) -> None:
        try:
            self._end()
        finally:
            pending = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
            for task in pending:
                task.cancel()
            if pending:
                self.loop.run_until_complete(asyncio.wait(pending))
            self.loop.close()

    def _end(self) -> None:
        """All connections end: what they held is there at once, the rest when its time is over."""
        self.twin.trouble = ""
        for _ in range(3):
            self._do(lambda: self.clock.advance(1))
        self.twin.look()
        receipts = {one.receipt for one in self.twin.kept.values() if one.state == "held"}
        held = {
            int(one.receipt.split(" ")[0])
            for mapped in self.gateways
            for one in all_held(mapped._connections.values())
            if one.receipt in receipts
        }
        for at in self.connections:
            self._do(at.peer.close)
        for physical in held:
            assert self.twin.kept[physical].state == "free", f"message {physical} was not given back"
        for mapped in self.gateways:
            assert not mapped._connections
            assert len(mapped._index) == 0
            assert not list(all_held(mapped._connections.values()))
        for _ in range(10):
            self._do(lambda: self.clock.advance(7200 / 8))
        self.twin.look()
        for one in self.twin.kept.values():
            assert one.state in ("free", "done", "dead", "skipped")
        self.nothing_is_finished_that_was_not_committed()
        for mapped in self.gateways:
            assert not mapped._renewing._heap
            assert not mapped._ending._tasks


def test_no_message_is_lost_whatever_clients_do() -> None:
    logging.getLogger("protocols.remoting.mapped").setLevel(logging.ERROR)
    effort = _EFFORTS.get(os.environ.get("TEST_HYPOTHESIS", ""), _EFFORTS[""])
    run_state_machine_as_test(Machine, settings=settings(**effort))
