"""What a gateway holds in memory while very many consumers wait and very many messages are stored.

    python benchmarks/waiting.py            # a million messages, 10,000 long polls on 100 connections
    python benchmarks/waiting.py --quick    # a few of each; proves only that it runs

The gateway is a process of its own with default settings, but for the longest wait; so are the clients.
MB are the proportional set size of its processes: when idle, when the messages are stored, when all wait
as well, and when all have gone. Before they go one message is sent to each topic that is waited for; it
must wake one consumer, not more.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import grpc
import grpc.aio
import uvloop

from benchmarks.beside.processes import memory_mb
from popgate.ids.message_id import make_message_id
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.testing import GatewayProcess

SERVICE = "/apache.rocketmq.v2.MessagingService/"
BODY = bytes(range(256))
BATCH = 500
WAIT_S = 240
TOPICS = 20
PROCESSES = 2


def metadata(client: str) -> tuple[tuple[str, str], ...]:
    return ("x-mq-client-id", client), ("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.1.2")


def own_connection(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),))


def message(topic: str, lite_topic: str | None = None) -> pb.Message:
    return pb.Message(
        topic=pb.Resource(name=topic),
        body=BODY,
        system_properties=pb.SystemProperties(
            tag="A", message_id=make_message_id(), born_host="bench", lite_topic=lite_topic
        ),
    )


async def send(channel: grpc.aio.Channel, messages: Sequence[pb.Message]) -> None:
    call = channel.unary_unary(
        SERVICE + "SendMessage",
        request_serializer=rpc.SendMessageRequest.SerializeToString,
        response_deserializer=rpc.SendMessageResponse.FromString,
    )
    answer = await call(rpc.SendMessageRequest(messages=messages), metadata=metadata("sender"), timeout=60)
    assert answer.status.code == pb.OK, answer.status


def receive_call(channel: grpc.aio.Channel, read: Callable[[bytes], Any]) -> Any:
    """The RPC with what reads each part of its answer."""
    return channel.unary_stream(
        SERVICE + "ReceiveMessage",
        request_serializer=rpc.ReceiveMessageRequest.SerializeToString,
        response_deserializer=read,
    )


async def store(address: str, total: int) -> None:
    left = total

    async def worker(channel: grpc.aio.Channel) -> None:
        nonlocal left
        while left > 0:
            share = min(BATCH, left)
            left -= share
            await send(channel, [message("stored") for _ in range(share)])

    async with own_connection(address) as channel:
        await asyncio.gather(*(worker(channel) for _ in range(4)))


async def poll_all(address: str, first: int, connections: int, polls: int) -> None:
    """The client process: wait with every poll until it is answered."""
    channels = [own_connection(address) for _ in range(connections)]

    async def poll(channel: grpc.aio.Channel, number: int) -> None:
        call = receive_call(channel, bytes)
        request = rpc.ReceiveMessageRequest(
            group=pb.Resource(name=f"waiters-{number % TOPICS}"),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=f"waited-{number % TOPICS}"), id=-1),
            filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="A || B"),
            batch_size=32,
            auto_renew=True,
            long_polling_timeout=Duration(seconds=WAIT_S),
        )
        async for _ in call(request, metadata=metadata(f"consumer-{number}"), timeout=WAIT_S + 60):
            pass

    numbers = range(first * polls, (first + connections) * polls)
    await asyncio.gather(*(poll(channels[n % connections], n) for n in numbers))


def figure(gateway: GatewayProcess, name: str) -> float:
    with urllib.request.urlopen(f"{gateway.admin}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = re.search(rf"^\w*{name} ([0-9.e+]+)$", text, re.MULTILINE)
    assert found is not None, f"no figure {name}"
    return float(found[1])


def wait_for(gateway: GatewayProcess, waiting: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while figure(gateway, "waiting_receives") != waiting:
        if time.monotonic() > deadline:
            raise SystemExit(f"{figure(gateway, 'waiting_receives'):.0f} wait, not {waiting}")
        time.sleep(0.5)


async def arrive(address: str) -> None:
    """Send a message to every topic that is waited for."""
    async with own_connection(address) as channel:
        for number in range(TOPICS):
            await send(channel, [message(f"waited-{number}")])


def bench(messages: int, connections: int, polls: int) -> None:
    processes = min(PROCESSES, connections)
    share = connections // processes
    with GatewayProcess(options=("--set", f"limits.max_wait_s={WAIT_S + 10}")) as gateway:
        print(f"waiting.idle {memory_mb(gateway.pid)['pss_mb']:.1f} MB")
        uvloop.run(store(gateway.endpoint, messages))
        print(f"waiting.stored_{messages} {memory_mb(gateway.pid)['pss_mb']:.1f} MB")
        clients = [
            subprocess.Popen(
                [
                    sys.executable,
                    __file__,
                    "--poll",
                    gateway.endpoint,
                    str(n * share),
                    str(share),
                    str(polls),
                ],
            )
            for n in range(processes)
        ]
        try:
            total = share * processes * polls
            wait_for(gateway, total)
            time.sleep(1.0)
            print(f"waiting.polls_{total} {memory_mb(gateway.pid)['pss_mb']:.1f} MB")
            uvloop.run(arrive(gateway.endpoint))
            wait_for(gateway, total - TOPICS)
            print(f"waiting.woken {TOPICS} of {total} polls")
        finally:
            for client in clients:
                client.kill()
                client.wait()
        wait_for(gateway, 0)
        time.sleep(1.0)
        print(f"waiting.after {memory_mb(gateway.pid)['pss_mb']:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few: proves only that it runs")
    parser.add_argument("--poll", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.poll is not None:
        address, *numbers = arguments.poll
        uvloop.run(poll_all(address, *map(int, numbers)))
    elif arguments.quick:
        bench(1_000, 4, 10)
    else:
        bench(1_000_000, 100, 100)


if __name__ == "__main__":
    main()
