"""What the gRPC door and the embedded broker cost, from the bytes of a request to those of its answer.

    python benchmarks/door.py            # about ten seconds
    python benchmarks/door.py --quick    # a moment; proves only that it runs

CPU time of the whole process (RocksDB's threads included) in microseconds per message, the best of several
rounds; no sockets and no HTTP/2, so that few others disturb it. The messages are those of `make bench`: 100
bytes, a tag, a key and a property. 32 calls are in flight one by one, 8 in batches of 32. A receive is
counted with its acknowledgement, and with what it takes to make that of the answer.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvloop

from brokers.embedded.broker import EmbeddedBroker
from popgate.clock import SystemClock
from popgate.ids.message_id import make_message_id
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.pb.timestamp_pb2 import Timestamp
from processors.messaging import MessagingProcessor
from protocols.grpc.codec.request_reader import reader_of
from protocols.grpc.rpcs.dispatcher import SERVICE, STREAMED, UNARY, RpcDispatcher
from protocols.grpc.rpcs.health import Health
from protocols.grpc.service.service import MessagingService

BODY = b"x" * 100
GROUP = pb.Resource(name="readers")
SINGLE, BATCHED = 32, 8
"""Calls in flight."""
BATCH = 32
RPCS = {what.name: (what, reader_of(what.request)) for what in (*UNARY, *STREAMED)}


class Called:
    """A `transport.Call` and its `ResponseStream`."""

    peer = "10.0.0.9:40000"
    local = "10.0.0.1:8081"
    names = ()
    headers: ClassVar = {"x-mq-client-id": "bench@1", "x-mq-language": "GO", "x-mq-client-version": "5.1.2"}

    def __init__(self) -> None:
        self.answers: list[bytes] = []

    def header(self, name: str) -> str:
        return self.headers.get(name, "")

    def time_remaining(self) -> float:
        return 40.0

    async def write(self, answer: rpc.ReceiveMessageResponse) -> None:
        self.answers.append(answer.SerializeToString())

    async def write_bytes(self, answer: bytes) -> None:
        self.answers.append(answer)

    def write_at_once(self, answers: Sequence[bytes]) -> int:
        self.answers += answers
        return len(answers)


def send_request(topic: str, count: int) -> bytes:
    """As a client encodes it."""
    now = time.time()
    return rpc.SendMessageRequest(
        messages=[
            pb.Message(
                topic=pb.Resource(name=topic),
                user_properties={"shard": "7"},
                body=BODY,
                system_properties=pb.SystemProperties(
                    message_id=make_message_id(),
                    tag="TagA",
                    keys=["key-1"],
                    body_encoding=pb.IDENTITY,
                    message_type=pb.NORMAL,
                    born_timestamp=Timestamp(seconds=int(now), nanos=int(now % 1 * 1000) * 1_000_000),
                ),
            )
            for _ in range(count)
        ]
    ).SerializeToString()


def receive_request(topic: str, count: int) -> bytes:
    return rpc.ReceiveMessageRequest(
        group=GROUP,
        message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), broker=pb.Broker(name="")),
        filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
        batch_size=count,
        invisible_duration=Duration(seconds=60),
        long_polling_timeout=Duration(seconds=5),
    ).SerializeToString()


class Rounds:
    """A door before one broker; each round has a topic of its own."""

    def __init__(self, door: RpcDispatcher, count: int) -> None:
        self._door = door
        self._count = count
        self._number = 0
        self.best: dict[str, float] = {}

    async def run(self, rounds: int) -> None:
        for _ in range(rounds):
            topic = await self._topic()
            await self._timed("send_32", self._sends(topic, BATCH), self._count, BATCHED)
            await self._timed("receive_32", self._receives(topic, BATCH), self._count, BATCHED)
            topic = await self._topic()
            await self._timed("send_1", self._sends(topic, 1), self._count // 4, SINGLE)
            await self._timed("receive_1", self._receives(topic, 1), self._count // 4, SINGLE)

    async def _topic(self) -> str:
        """A new one that is warm: made, and read once by the group."""
        self._number += 1
        topic = f"topic-{self._number}"
        await self._sends(topic, 1)()
        await self._receives(topic, 1)()
        return topic

    async def _timed(
        self, figure: str, one: Callable[[], Awaitable[int]], messages: int, callers: int
    ) -> None:
        left = messages

        async def call() -> None:
            nonlocal left
            while left > 0:
                done = await one()  # not in one step with what follows: others count meanwhile
                left -= done

        begin = time.process_time()
        await asyncio.gather(*(call() for _ in range(callers)))
        each = (time.process_time() - begin) / (messages - left) * 1e6
        self.best[figure] = min(each, self.best.get(figure, each))

    def _sends(self, topic: str, count: int) -> Callable[[], Awaitable[int]]:
        what, read = RPCS["SendMessage"]
        ready = [send_request(topic, count) for _ in range(self._count // count + BATCH)]

        async def send() -> int:
            data = ready.pop()
            answer = await self._door.unary(what, read(data), Called(), len(data))
            encoded = answer.SerializeToString()
            assert answer.status.code == pb.OK, encoded
            return count

        return send

    def _receives(self, topic: str, count: int) -> Callable[[], Awaitable[int]]:
        what, read = RPCS["ReceiveMessage"]
        ack, read_ack = RPCS["AckMessage"]
        data = receive_request(topic, count)

        async def receive() -> int:
            call = Called()
            await self._door.streamed(what, read(data), call, call)
            acked = ack_request(topic, call.answers)
            if acked is None:
                return 0
            request, messages = acked
            answer = await self._door.unary(ack, read_ack(request), Called(), len(request))
            answer.SerializeToString()
            assert answer.status.code == pb.OK, answer
            return messages

        return receive


def ack_request(topic: str, answers: Sequence[bytes]) -> tuple[bytes, int] | None:
    """What acknowledges the messages of an answer; None: it has none. Costs the figures a little."""
    entries = []
    for data in answers:
        answer = rpc.ReceiveMessageResponse.FromString(data)
        if answer.HasField("message"):
            system = answer.message.system_properties
            entries.append(
                rpc.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
            )
    if not entries:
        return None
    request = rpc.AckMessageRequest(group=GROUP, topic=pb.Resource(name=topic), entries=entries)
    return request.SerializeToString(), len(entries)


async def measure(count: int, rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        clock = SystemClock()
        broker = EmbeddedBroker(Path(folder), clock=clock)
        await broker.start()
        processor = MessagingProcessor(broker, clock=clock)
        await processor.start()
        door = RpcDispatcher(MessagingService(processor, clock), Health([SERVICE]), clock, None)
        measured = Rounds(door, count)
        await measured.run(rounds)
        await processor.stop()
        await broker.stop()
        return measured.best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="prove only that it runs")
    chosen = parser.parse_args()
    count, rounds = (640, 1) if chosen.quick else (16_000, 3)
    for figure, microseconds in uvloop.run(measure(count, rounds)).items():
        print(f"door.{figure} {microseconds:.2f} us/message")


if __name__ == "__main__":
    main()
