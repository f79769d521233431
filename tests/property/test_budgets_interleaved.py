"""Random interleavings of sends, receives, slow readers, errors, cancels and lost clients through the door.

At every step the counters are at most the limits and one message; when all is over they are empty.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.store import Durability
from popgate.ids.message_id import make_message_id
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.testing.clock import MovableClock
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from protocols.grpc.rpcs.dispatcher import SERVICE, STREAMED, UNARY, RpcDispatcher
from protocols.grpc.rpcs.health import Health
from protocols.grpc.service.service import MessagingService
from protocols.grpc.transport import BrokenStream

SEND = next(what for what in UNARY if what.name == "SendMessage")
ACK = next(what for what in UNARY if what.name == "AckMessage")
RECEIVE, PULL = STREAMED
LIMITS = Limits(process_bytes=20_000, group_bytes=8_000, connection_bytes=6_000)
LARGEST = 10_000
"""A message of the test with all that belongs to it; above the share of a group and of a connection."""
QUEUES = 2

step = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 3), st.sampled_from([1, 500, 3_000, 9_000])),
    st.tuples(st.just("bad send"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("receive"), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("poll"), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("pull"), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("ack"), st.integers(0, 3), st.just(0)),
    st.tuples(st.sampled_from(["read", "break", "cancel"]), st.integers(0, 30), st.just(0)),
    st.tuples(st.sampled_from(["turn", "time"]), st.just(0), st.just(0)),
)


class Call:
    """One RPC of a client; the connection is the peer."""

    local = "127.0.0.1:8081"
    names = ()

    def __init__(self, connection: int) -> None:
        self.peer = f"10.0.0.{connection}:5"

    def header(self, name: str) -> str:
        return {"x-mq-client-id": "c", "x-mq-language": "JAVA"}.get(name, "")

    def time_remaining(self) -> float | None:
        return None


class SlowReader:
    """The answering side of a stream whose client reads when it is told to."""

    def __init__(self) -> None:
        self.broken = False
        self._reads: asyncio.Queue[None] = asyncio.Queue()

    async def write(self, _answer: Any) -> None:
        await self._reads.get()
        if self.broken:
            raise BrokenStream

    async def write_bytes(self, answer: bytes) -> None:
        await self.write(answer)

    def write_at_once(self, _answers: Sequence[bytes]) -> int:
        return 0

    def read(self, count: int) -> None:
        for _ in range(count):
            self._reads.put_nowait(None)


class Town:
    def __init__(self, path: Path) -> None:
        self.clock = MovableClock()
        self.broker = EmbeddedBroker(
            path, clock=self.clock, settings=EmbeddedSettings(durability=Durability.NONE)
        )
        self.processor = MessagingProcessor(self.broker, clock=self.clock, limits=LIMITS)
        service = MessagingService(self.processor, self.clock)
        self.door = RpcDispatcher(service, Health([SERVICE]), self.clock, None)
        self.streams: list[tuple[asyncio.Task[None], SlowReader]] = []
        self.sends: list[asyncio.Task[Any]] = []

    def send(self, connection: int, size: int) -> None:
        message = pb.Message(
            topic=pb.Resource(name="t"),
            body=b"x" * size,
            system_properties=pb.SystemProperties(message_id=make_message_id(), queue_id=0),
        )
        request = rpc.SendMessageRequest(messages=[message])
        self._unary(SEND, request, connection)

    def bad_send(self, connection: int) -> None:
        """One that is refused after it was counted."""
        message = pb.Message(topic=pb.Resource(name="no such%"), body=b"x" * 700)
        self._unary(SEND, rpc.SendMessageRequest(messages=[message]), connection)

    def ack(self, connection: int) -> None:
        entry = rpc.AckMessageEntry(message_id="m", receipt_handle="none")
        request = rpc.AckMessageRequest(
            topic=pb.Resource(name="t"), group=pb.Resource(name="g0"), entries=[entry]
        )
        self._unary(ACK, request, connection)

    def receive(self, connection: int, group: int, wait_s: int) -> None:
        request = rpc.ReceiveMessageRequest(
            group=pb.Resource(name=f"g{group}"),
            message_queue=pb.MessageQueue(topic=pb.Resource(name="t"), id=-1),
            filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
            invisible_duration=Duration(seconds=30),
            long_polling_timeout=Duration(seconds=wait_s),
            batch_size=8,
        )
        self._stream(RECEIVE, request, connection)

    def pull(self, connection: int, group: int) -> None:
        queue = pb.MessageQueue(topic=pb.Resource(name="t"), broker=pb.Broker(name="popgate"), id=0)
        request = rpc.PullMessageRequest(
            group=pb.Resource(name=f"g{group}"), message_queue=queue, offset=0, batch_size=8
        )
        self._stream(PULL, request, connection)

    def _unary(self, what: Any, request: Any, connection: int) -> None:
        self.sends.append(asyncio.ensure_future(self.door.unary(what, request, Call(connection))))

    def _stream(self, what: Any, request: Any, connection: int) -> None:
        reader = SlowReader()
        task = asyncio.ensure_future(self.door.streamed(what, request, Call(connection), reader))
        self.streams.append((task, reader))

    def some_stream(self, number: int) -> tuple[asyncio.Task[None], SlowReader] | None:
        going = [stream for stream in self.streams if not stream[0].done()]
        return going[number % len(going)] if going else None

    async def do(self, what: str, who: int, more: int) -> None:
        stream = self.some_stream(who)
        if what == "send":
            self.send(who, more)
        elif what == "bad send":
            self.bad_send(who)
        elif what == "ack":
            self.ack(who)
        elif what in ("receive", "poll"):
            self.receive(who, more, 15 if what == "poll" else 0)
        elif what == "pull":
            self.pull(who, more)
        elif what == "turn":
            await asyncio.sleep(0)
        elif what == "time":
            self.clock.advance(3.0)
            await asyncio.sleep(0)
        elif stream is not None and what == "cancel":
            stream[0].cancel()
        elif stream is not None:
            stream[1].broken = what == "break"
            stream[1].read(1 + who % 5)

    def check(self) -> None:
        budgets = self.processor.budgets
        assert 0 <= budgets.used <= LIMITS.process_bytes + LARGEST
        groups = [budgets.of_group(f"g{number}") for number in range(3)]
        connections = [budgets.of_connection(Call(number).peer) for number in range(4)]
        assert all(0 <= used <= LIMITS.group_bytes + LARGEST for used in groups)
        assert all(0 <= used <= LIMITS.connection_bytes + LARGEST for used in connections)
        assert sum(connections) == budgets.used
        assert sum(groups) <= budgets.used
        assert self.processor.figures()["bytes_under_way"] == budgets.used

    async def end(self) -> None:
        """Everybody reads to the end, and what waits is answered."""
        while going := [stream for stream in self.streams if not stream[0].done()]:
            for _, reader in going:
                reader.read(1)
            self.clock.advance(1.0)
            await asyncio.sleep(0)
            self.check()
        await asyncio.gather(*(task for task, _ in self.streams), *self.sends, return_exceptions=True)


async def live(steps: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        town = Town(Path(folder) / "store")
        await town.broker.start()
        await town.processor.start()
        try:
            for what, who, more in steps:
                await town.do(what, who, more)
                town.check()
            await town.end()
            assert (town.processor.budgets.used, len(town.processor.budgets)) == (0, 0)
            for task in (*(task for task, _ in town.streams), *town.sends):
                assert task.cancelled() or task.exception() is None
        finally:
            await town.processor.stop()
            await town.broker.stop()


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(step, min_size=10, max_size=120))
def test_what_is_under_way_is_counted_exactly_and_released_on_every_path(
    steps: list[tuple[str, int, int]],
) -> None:
    asyncio.run(live(steps))
