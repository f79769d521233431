"""Messages through the whole gateway over gRPC: a server process, and this one as its client.

    python benchmarks/grpc_end_to_end.py [--quick]

Each line is comparable with the same line of a later run on the same machine: messages per
second seen by the client, and the CPU time that the server process spent on each message. The
embedded broker answers with durability "interval"; every client call is one RPC in flight per
worker, as many workers as the line says.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import grpc
import grpc.aio
import uvloop

from brokers.embedded.broker import EmbeddedBroker
from popgate.clock import SystemClock
from popgate.ids.message_id import make_message_id
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from processors.messaging import MessagingProcessor
from protocols.adapter import AdapterContext, parse_listen
from protocols.schemes import make_adapter

SERVICE = "/apache.rocketmq.v2.MessagingService/"
METADATA = (("x-mq-client-id", "bench@1"), ("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.1.2"))
TOPIC = pb.Resource(name="bench")
GROUP = pb.Resource(name="bench-group")
BODY = bytes(range(256)) * 4
WORKERS = 16
BATCH = 32


async def serve(path: Path) -> None:
    """Serve until the standard input ends; a line on it is answered with the CPU seconds used."""
    clock = SystemClock()
    broker = EmbeddedBroker(path, clock=clock)
    await broker.start()
    processor = MessagingProcessor(broker, clock=clock)
    await processor.start()
    adapter = make_adapter(parse_listen("grpc://127.0.0.1:0"), AdapterContext(processor, clock))
    await adapter.start()
    print(adapter.addresses[0].removeprefix("grpc://"), flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(time.process_time(), flush=True)
    await adapter.stop()
    await processor.stop()
    await broker.stop()


class Server:
    """The server process, as the client sees it."""

    def __init__(self, path: str) -> None:
        command = [sys.executable, __file__, "--serve", path]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise SystemExit("the server process ended")
        return line

    def cpu_s(self) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._line())

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


class Client:
    """Plain calls of the service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._send = channel.unary_unary(
            SERVICE + "SendMessage",
            request_serializer=rpc.SendMessageRequest.SerializeToString,
            response_deserializer=rpc.SendMessageResponse.FromString,
        )
        self._receive = channel.unary_stream(
            SERVICE + "ReceiveMessage",
            request_serializer=rpc.ReceiveMessageRequest.SerializeToString,
            response_deserializer=rpc.ReceiveMessageResponse.FromString,
        )
        self._ack = channel.unary_unary(
            SERVICE + "AckMessage",
            request_serializer=rpc.AckMessageRequest.SerializeToString,
            response_deserializer=rpc.AckMessageResponse.FromString,
        )

    async def send(self, count: int) -> int:
        messages = [
            pb.Message(
                topic=TOPIC,
                body=BODY,
                user_properties={"kind": "bench"},
                system_properties=pb.SystemProperties(
                    tag="A",
                    keys=["key"],
                    message_id=make_message_id(),
                    body_encoding=pb.Encoding.IDENTITY,
                    message_type=pb.MessageType.NORMAL,
                    born_host="bench",
                ),
            )
            for _ in range(count)
        ]
        answer = await self._send(rpc.SendMessageRequest(messages=messages), metadata=METADATA, timeout=30)
        assert answer.status.code == pb.Code.OK, answer.status
        return len(answer.entries)

    async def receive_and_ack(self, count: int) -> int:
        request = rpc.ReceiveMessageRequest(
            group=GROUP,
            message_queue=pb.MessageQueue(topic=TOPIC, id=-1),
            filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
            batch_size=count,
            invisible_duration=Duration(seconds=60),
            long_polling_timeout=Duration(nanos=200_000_000),
        )
        entries = []
        async for element in self._receive(request, metadata=METADATA, timeout=30):
            if element.WhichOneof("content") == "message":
                system = element.message.system_properties
                entries.append(
                    rpc.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
                )
        if entries:
            ack = rpc.AckMessageRequest(group=GROUP, topic=TOPIC, entries=entries)
            answer = await self._ack(ack, metadata=METADATA, timeout=30)
            assert answer.status.code == pb.Code.OK, answer.status
        return len(entries)


async def measure(
    server: Server, name: str, total: int, batch: int, call: Callable[[int], Awaitable[int]]
) -> None:
    """Work off `total` messages and print one line."""
    left = total

    async def worker() -> None:
        nonlocal left
        while left > 0:
            share = min(batch, left)
            left -= share
            done = await call(share)
            left += share - done

    cpu, began = server.cpu_s(), time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(WORKERS)))
    seconds, cpu = time.perf_counter() - began, server.cpu_s() - cpu
    print(f"grpc.{name}_{batch} {total / seconds:.0f} msgs/s {cpu / total * 1e6:.1f} us/msg of server CPU")


async def bench(scale: int) -> None:
    with tempfile.TemporaryDirectory() as path, Server(path) as server:
        async with grpc.aio.insecure_channel(server.address) as channel:
            client = Client(channel)
            await client.send(1)
            await client.receive_and_ack(1)
            await measure(server, "send", 200 * scale, 1, client.send)
            await measure(server, "receive_and_ack", 200 * scale, 1, client.receive_and_ack)
            await measure(server, "send", 1_600 * scale, BATCH, client.send)
            await measure(server, "receive_and_ack", 1_600 * scale, BATCH, client.receive_and_ack)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few messages: proves only that it runs")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        uvloop.run(serve(arguments.serve))
    else:
        uvloop.run(bench(1 if arguments.quick else 20))


if __name__ == "__main__":
    main()
