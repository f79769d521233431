"""Many clients over real gRPC channels, with crashes, against a small model.

A crash drops everything that is in memory, without closing anything, also in the middle of a
request: the next gateway begins with a copy of the files as they lie there. What was answered must
hold; what was not is asked again as clients do, and must then have been done once.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.storage.store import Durability
from popgate.filters.compiled import EVERYTHING
from popgate.model import GroupConfig, TopicConfig
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.pb.timestamp_pb2 import Timestamp
from popgate.testing import MovableClock
from popgate.testing.crash_copy import copy_as_after_a_crash
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from protocols.adapter import AdapterContext, parse_listen
from protocols.schemes import make_adapter
from tests.support.waiting import PATIENCE_S

T = TypeVar("T")
SERVICE = "/apache.rocketmq.v2.MessagingService/"
CLIENTS = 3
MOST_ATTEMPTS = 3
WINDOW_MS = 600_000
_MEMORY = Path("/dev/shm")
_EFFORTS: dict[str, dict[str, Any]] = {
    "": {"max_examples": 25, "stateful_step_count": 30},
    "ci": {"max_examples": 50, "stateful_step_count": 30, "derandomize": True, "database": None},
    "long": {"max_examples": 300, "stateful_step_count": 60},
}
Code = pb.Code


# -- the model ------------------------------------------------------------------------------------


@dataclass
class Sent:
    """A message whose send was answered. `state`: later, half, there, or gone (recalled, rolled back)."""

    request: pb.Message
    answer: rpc.SendResultEntry
    at_ms: int
    state: str = "there"
    due_ms: int = 0
    lane: str = ""
    committed: bool = False
    ended: bool | None = None
    attempt: int = 0
    handle: str = ""
    until_ms: int = 0
    finished: bool = False
    dead: bool = False
    most: int = MOST_ATTEMPTS
    old_handles: list[str] = field(default_factory=list)

    @property
    def body(self) -> str:
        return self.request.body.decode()

    def is_held(self, now_ms: int) -> bool:
        return bool(self.handle) and now_ms < self.until_ms

    def pass_time(self, now_ms: int) -> None:
        if self.state == "later" and self.due_ms <= now_ms:
            self.state = "there"
        if self.handle and now_ms >= self.until_ms:
            self.free()

    def free(self) -> None:
        self.old_handles.append(self.handle)
        self.handle = ""
        self.dead = self.attempt >= self.most

    def is_ready(self, now_ms: int) -> bool:
        self.pass_time(now_ms)
        return self.state == "there" and not (self.finished or self.dead or self.handle)


# -- the gateway ----------------------------------------------------------------------------------


class Site:
    """A gateway on a loop of its own, and clients with a channel each; its clock stands still."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop = asyncio.new_event_loop()
        self.trouble: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, what: self.trouble.append(what))
        self.broker: EmbeddedBroker | None = None

    def run(self, work: Awaitable[T]) -> T:
        result: T = self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE_S))
        assert not self.trouble, self.trouble
        return result

    async def begin(self) -> None:
        """An empty broker and a new time."""
        await self.end()
        self.trouble.clear()
        self.clock = MovableClock()
        self.path = self.folder / uuid.uuid4().hex
        await self._open()
        assert self.broker is not None
        for name in ("t", "lanes"):
            await self.broker.create_topic(TopicConfig(name, read_queues=2, write_queues=2))
            await self.broker.create_group(
                GroupConfig(f"{name}-group", ordered=name == "lanes", max_attempts=MOST_ATTEMPTS)
            )

    async def end(self) -> None:
        if self.broker is not None:
            await self._close()
            shutil.rmtree(self.path)

    async def crash(self) -> None:
        """Go on with the files as they are now; the old gateway knows nothing of that."""
        former, self.path = self.path, self.folder / uuid.uuid4().hex
        copy_as_after_a_crash(former, self.path)
        await self._close()
        shutil.rmtree(former)
        await self._open()

    async def _open(self) -> None:
        self.broker = EmbeddedBroker(self.path, clock=self.clock, durability=Durability.NONE)
        await self.broker.start()
        self.processor = MessagingProcessor(
            self.broker, clock=self.clock, limits=Limits(min_invisible_ms=1_000)
        )
        self.adapter = make_adapter(
            parse_listen("grpc://127.0.0.1:0"), AdapterContext(self.processor, self.clock, reflection=False)
        )
        await self.processor.start()
        await self.adapter.start()
        address = self.adapter.addresses[0].removeprefix("grpc://")
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(CLIENTS)]

    async def _close(self) -> None:
        broker, self.broker = self.broker, None
        assert broker is not None
        for channel in self.channels:
            await channel.close(None)
        await self.adapter.stop()
        await self.processor.stop()
        await broker.stop()

    async def pass_ms(self, ms: int) -> None:
        async def turn() -> None:
            for _ in range(6):
                await asyncio.sleep(0)

        await self.clock.run(ms / 1000, turn)
        await turn()

    # -- what clients ask ---------------------------------------------------------------------

    async def call(self, client: int, name: str, request: Any) -> Any:
        method = self.channels[client % CLIENTS].unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(rpc, f"{name}Response").FromString,
        )
        return await method(request, metadata=self._metadata(client), timeout=PATIENCE_S)

    async def send(self, client: int, *messages: pb.Message) -> list[rpc.SendResultEntry]:
        answer = await self.call(client, "SendMessage", rpc.SendMessageRequest(messages=messages))
        assert answer.status.code == Code.OK, answer
        return list(answer.entries)

    async def receive(
        self,
        client: int,
        topic: str,
        batch: int,
        seconds: int,
        *,
        attempt_id: str = "",
        auto_renew: bool = False,
    ) -> list[pb.Message]:
        request = rpc.ReceiveMessageRequest(
            group=pb.Resource(name=f"{topic}-group"),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), id=-1),
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            batch_size=batch,
            invisible_duration=None if auto_renew else Duration(seconds=seconds),
            long_polling_timeout=Duration(),
            attempt_id=attempt_id,
            auto_renew=auto_renew,
        )
        method = self.channels[client % CLIENTS].unary_stream(
            SERVICE + "ReceiveMessage",
            request_serializer=rpc.ReceiveMessageRequest.SerializeToString,
            response_deserializer=rpc.ReceiveMessageResponse.FromString,
        )
        frames = [f async for f in method(request, metadata=self._metadata(client), timeout=PATIENCE_S)]
        assert frames[0].status.code in (Code.OK, Code.MESSAGE_NOT_FOUND), frames
        return [frame.message for frame in frames if frame.HasField("message")]

    async def ack(self, client: int, topic: str, *handles: str) -> list[int]:
        entries = [rpc.AckMessageEntry(receipt_handle=handle) for handle in handles]
        request = rpc.AckMessageRequest(
            group=pb.Resource(name=f"{topic}-group"), topic=pb.Resource(name=topic), entries=entries
        )
        answer = await self.call(client, "AckMessage", request)
        return [entry.status.code for entry in answer.entries] or [answer.status.code]

    def _metadata(self, client: int) -> tuple[tuple[str, str], ...]:
        return (("x-mq-client-id", f"client-{client}"), ("x-mq-language", "JAVA"))

    async def stored(self, topic: str) -> list[str]:
        """The bodies that lie in a topic, by reading the broker itself."""
        assert self.broker is not None
        if topic not in {one.name for one in await self.broker.topics()}:
            return []
        found = []
        context: Any = _context()
        for queue in (await self.broker.route(topic)).queues:
            where = (topic, queue.broker, queue.queue_id)
            bounds = await self.broker.bounds(context, *where)
            offset = bounds.minimum
            while offset < bounds.maximum:
                pulled = await self.broker.pull(
                    context,
                    *where,
                    offset,
                    max_messages=1_000,
                    max_bytes=1 << 26,
                    passing=EVERYTHING,
                    wait_until=None,
                )
                found += [message.body.decode() for message in pulled.messages]
                offset = pulled.next_offset
        return found


def _context() -> Any:
    from popgate.context import Context

    return Context(client_id="auditor")


# -- the machine ----------------------------------------------------------------------------------


clients = st.integers(0, CLIENTS - 1)
picks = st.integers(0, 1 << 16)


def make_machine(site: Site) -> type[RuleBasedStateMachine]:
    class Gateways(RuleBasedStateMachine):
        topics: tuple[str, ...] = ("t", "lanes")
        """Those with a group of their own that has to finish all of them."""

        def __init__(self) -> None:
            super().__init__()
            self.sent: list[Sent] = []
            self.serials = itertools.count()
            site.run(site.begin())

        # -- sending ------------------------------------------------------------------------

        def message(self, kind: str, number: int) -> pb.Message:
            serial = next(self.serials)
            system = pb.SystemProperties(message_id=f"id-{serial}")
            topic = "t"
            if kind == "lane":
                topic, system.message_group = "lanes", f"lane-{number % 3}"
                system.message_type = pb.FIFO
            elif kind == "delayed":
                due_ms = site.clock.now_ms() + 500 + number % 30_000
                system.message_type = pb.DELAY
                system.delivery_timestamp.CopyFrom(
                    Timestamp(seconds=due_ms // 1000, nanos=due_ms % 1000 * 10**6)
                )
            elif kind == "half":
                system.message_type = pb.TRANSACTION
                system.orphaned_transaction_recovery_duration.CopyFrom(Duration(seconds=3_600))
            return pb.Message(
                topic=pb.Resource(name=topic), body=f"{kind}-{serial}".encode(), system_properties=system
            )

        def note(self, message: pb.Message, answer: rpc.SendResultEntry) -> None:
            system = message.system_properties
            assert answer.message_id == system.message_id
            sent = Sent(message, answer, site.clock.now_ms(), lane=system.message_group)
            if answer.transaction_id:
                sent.state = "half"
            elif answer.recall_handle:
                sent.state = "later"
                sent.due_ms = system.delivery_timestamp.ToMilliseconds()
            self.sent.append(sent)

        @rule(
            client=clients,
            kinds=st.lists(st.sampled_from(("plain", "delayed", "half")), min_size=1, max_size=4),
            number=picks,
        )
        def send(self, client: int, kinds: Sequence[str], number: int) -> None:
            messages = [self.message(kind, number) for kind in kinds]
            for message, answer in zip(messages, site.run(site.send(client, *messages)), strict=True):
                self.note(message, answer)

        @rule(client=clients, count=st.integers(1, 4), number=picks)
        def send_to_a_lane(self, client: int, count: int, number: int) -> None:
            for _ in range(count):
                message = self.message("lane", number)
                self.note(message, site.run(site.send(client, message))[0])

        @rule(kind=st.sampled_from(("plain", "lane", "delayed", "half")), number=picks)
        def send_the_same_at_the_same_time(self, kind: str, number: int) -> None:
            message = self.message(kind, number)

            async def together() -> list[list[rpc.SendResultEntry]]:
                return await asyncio.gather(*(site.send(client, message) for client in range(CLIENTS)))

            answers = site.run(together())
            assert all(answer == answers[0] for answer in answers)
            self.note(message, answers[0][0])

        @precondition(lambda self: self.sent)
        @rule(client=clients, which=picks)
        def send_again(self, client: int, which: int) -> None:
            sent = self.sent[which % len(self.sent)]
            if site.clock.now_ms() - sent.at_ms <= WINDOW_MS:
                assert site.run(site.send(client, sent.request)) == [sent.answer]

        # -- receiving ----------------------------------------------------------------------

        def take(self, topic: str, messages: Sequence[pb.Message], seconds: int) -> None:
            """What came must have been there to be taken, in this order."""
            now_ms = site.clock.now_ms()
            by_body = {sent.body: sent for sent in self.sent}
            together: set[str] = set()
            for message in messages:
                sent = by_body[message.body.decode()]
                assert sent.request.topic.name == topic
                assert sent.is_ready(now_ms), f"{sent} came"
                assert message.system_properties.message_id == sent.request.system_properties.message_id
                assert message.system_properties.delivery_attempt == sent.attempt + 1, sent
                if sent.lane:
                    for other in self.sent[: self.sent.index(sent)]:
                        if other.lane == sent.lane and not (other.finished or other.dead):
                            assert other.body in together, f"{sent} came before {other}"
                together.add(sent.body)
                sent.attempt += 1
                sent.handle = message.system_properties.receipt_handle
                sent.until_ms = now_ms + seconds * 1000

        def ready(self, topic: str) -> list[Sent]:
            now_ms = site.clock.now_ms()
            found = [sent for sent in self.sent if sent.request.topic.name == topic and sent.is_ready(now_ms)]
            if topic == "lanes":
                blocked = {sent.lane for sent in self.sent if sent.handle}
                found = [sent for sent in found if sent.lane not in blocked]
            return found

        @rule(
            client=clients,
            topic=st.sampled_from(("t", "lanes")),
            batch=st.integers(1, 8),
            seconds=st.integers(1, 40),
        )
        def receive(self, client: int, topic: str, batch: int, seconds: int) -> None:
            wanted = min(batch, len(self.ready(topic)))
            messages = site.run(site.receive(client, topic, batch, seconds))
            assert len(messages) >= wanted if topic == "lanes" else len(messages) == wanted
            self.take(topic, messages, seconds)

        @rule(topic=st.sampled_from(("t", "lanes")), batch=st.integers(1, 4), seconds=st.integers(1, 40))
        def receive_at_the_same_time(self, topic: str, batch: int, seconds: int) -> None:
            async def together() -> list[list[pb.Message]]:
                return await asyncio.gather(
                    *(site.receive(client, topic, batch, seconds) for client in range(CLIENTS))
                )

            for messages in site.run(together()):
                self.take(topic, messages, seconds)

        def held(self) -> list[Sent]:
            now_ms = site.clock.now_ms()
            for sent in self.sent:
                sent.pass_time(now_ms)
            return [sent for sent in self.sent if sent.handle]

        @rule(client=clients, which=picks)
        def ack(self, client: int, which: int) -> None:
            held = self.held()
            if held:
                sent = held[which % len(held)]
                assert site.run(site.ack(client, sent.request.topic.name, sent.handle)) == [Code.OK]
                self.finish(sent)

        def finish(self, sent: Sent) -> None:
            sent.finished = True
            sent.old_handles.append(sent.handle)
            sent.handle = ""

        @rule(client=clients)
        def ack_all(self, client: int) -> None:
            for topic in self.topics:
                held = [sent for sent in self.held() if sent.request.topic.name == topic]
                if held:
                    codes = site.run(site.ack(client, topic, *(sent.handle for sent in held)))
                    assert set(codes) == {Code.OK}
                    for sent in held:
                        self.finish(sent)

        @rule(client=clients, which=picks)
        def ack_with_an_old_handle(self, client: int, which: int) -> None:
            old = [sent for sent in self.sent if sent.old_handles]
            self.held()
            if old:
                sent = old[which % len(old)]
                handle = sent.old_handles[which % len(sent.old_handles)]
                (code,) = site.run(site.ack(client, sent.request.topic.name, handle))
                if sent.finished and handle == sent.old_handles[-1]:
                    assert code == Code.OK, sent
                elif not sent.finished and not sent.dead:
                    assert code == Code.INVALID_RECEIPT_HANDLE, sent

        @rule(client=clients, which=picks, seconds=st.sampled_from((0, 0, 1, 20, 60)))
        def change(self, client: int, which: int, seconds: int) -> None:
            held = self.held()
            if not held:
                return
            sent = held[which % len(held)]
            topic = sent.request.topic.name
            request = rpc.ChangeInvisibleDurationRequest(
                topic=pb.Resource(name=topic),
                group=pb.Resource(name=f"{topic}-group"),
                receipt_handle=sent.handle,
                invisible_duration=Duration(seconds=seconds),
            )
            answer = site.run(site.call(client, "ChangeInvisibleDuration", request))
            assert answer.status.code == Code.OK, answer
            sent.until_ms = site.clock.now_ms() + seconds * 1000
            site.run(site.pass_ms(0))
            self.held()

        # -- transactions and delays ---------------------------------------------------------

        @rule(client=clients, which=picks, commit=st.booleans())
        def end(self, client: int, which: int, commit: bool) -> None:
            halves = [sent for sent in self.sent if sent.answer.transaction_id]
            if not halves:
                return
            sent = halves[which % len(halves)]
            code = site.run(self.ask_end(client, sent, commit))
            if sent.ended is None or sent.ended == commit:
                assert code == Code.OK
                self.ended(sent, commit)
            else:
                assert code == Code.INVALID_TRANSACTION_ID

        async def ask_end(self, client: int, sent: Sent, commit: bool) -> int:
            request = rpc.EndTransactionRequest(
                topic=sent.request.topic,
                message_id=sent.answer.message_id,
                transaction_id=sent.answer.transaction_id,
                resolution=pb.COMMIT if commit else pb.ROLLBACK,
                source=pb.SOURCE_CLIENT,
            )
            return int((await site.call(client, "EndTransaction", request)).status.code)

        def ended(self, sent: Sent, commit: bool) -> None:
            if sent.ended is None:
                sent.ended, sent.state = commit, "there" if commit else "gone"

        @rule(client=clients, which=picks)
        def recall(self, client: int, which: int) -> None:
            delayed = [sent for sent in self.sent if sent.answer.recall_handle]
            if not delayed:
                return
            sent = delayed[which % len(delayed)]
            sent.pass_time(site.clock.now_ms())
            request = rpc.RecallMessageRequest(
                topic=sent.request.topic, recall_handle=sent.answer.recall_handle
            )
            code = site.run(site.call(client, "RecallMessage", request)).status.code
            assert code == (Code.OK if sent.state == "later" else Code.NOT_FOUND)
            if sent.state == "later":
                sent.state = "gone"

        # -- time and crashes ----------------------------------------------------------------

        @rule(ms=st.sampled_from((1, 999, 1_000, 5_000, 31_000, 100_000)))
        def time_passes(self, ms: int) -> None:
            site.run(site.pass_ms(ms))
            self.held()

        @rule()
        def crash(self) -> None:
            site.run(site.crash())

        @rule(
            kind=st.sampled_from(("plain", "lane", "delayed", "half")), number=picks, turns=st.integers(0, 60)
        )
        def crash_while_a_message_is_sent(self, kind: str, number: int, turns: int) -> None:
            message = self.message(kind, number)
            self.in_the_middle(site.send(0, message), turns)
            self.note(message, site.run(site.send(1, message))[0])

        @rule(which=picks, turns=st.integers(0, 60))
        def crash_while_a_message_is_acknowledged(self, which: int, turns: int) -> None:
            held = self.held()
            if held:
                sent = held[which % len(held)]
                topic = sent.request.topic.name
                self.in_the_middle(site.ack(0, topic, sent.handle), turns)
                assert site.run(site.ack(1, topic, sent.handle)) == [Code.OK]
                self.finish(sent)

        @rule(which=picks, commit=st.booleans(), turns=st.integers(0, 60))
        def crash_while_a_transaction_ends(self, which: int, commit: bool, turns: int) -> None:
            open_ones = [sent for sent in self.sent if sent.state == "half"]
            if open_ones:
                sent = open_ones[which % len(open_ones)]
                self.in_the_middle(self.ask_end(0, sent, commit), turns)
                assert site.run(self.ask_end(1, sent, commit)) == Code.OK
                self.ended(sent, commit)

        def in_the_middle(self, work: Any, turns: int) -> None:
            """Begin something, and crash some turns of the loop later, whatever became of it."""

            async def cut() -> None:
                task = asyncio.ensure_future(work)
                for _ in range(turns):
                    await asyncio.sleep(0)
                await site.crash()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

            site.run(cut())

        # -- the end -------------------------------------------------------------------------

        def teardown(self) -> None:
            site.run(site.crash())
            site.run(site.pass_ms(200_000))
            self.held()
            for topic in self.topics:
                while wanted := self.ready(topic):
                    messages = site.run(site.receive(0, topic, 8, 30))
                    assert messages, f"{wanted} did not come"
                    self.take(topic, messages, 30)
                    self.ack_all(0)
                assert site.run(site.receive(0, topic, 8, 30)) == []
                there = [s.body for s in self.sent if s.request.topic.name == topic and s.state == "there"]
                assert Counter(site.run(site.stored(topic))) == Counter(there)
                dead = [s.body for s in self.sent if s.request.topic.name == topic and s.dead]
                assert Counter(site.run(site.stored(f"%DLQ%{topic}-group"))) == Counter(dead)

    return Gateways


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else tmp_path) as folder:
        site = Site(Path(folder))
        yield site
        site.run(site.end())
        site.loop.close()


def check(machine: type[RuleBasedStateMachine]) -> None:
    """Run a machine as hard as the run asks for."""
    effort = _EFFORTS[os.environ.get("TEST_HYPOTHESIS", "")]
    how = settings(
        **effort, deadline=None, suppress_health_check=list(HealthCheck), report_multiple_bugs=False
    )
    run_state_machine_as_test(machine, settings=how)


@pytest.mark.timeout(900)  # for when it fails: looking for the shortest way there takes minutes
def test_gateways_that_crash_agree_with_the_model(site: Site) -> None:
    check(make_machine(site))
