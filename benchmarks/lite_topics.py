"""What very many idle lite topics cost a gateway: memory, and CPU while nothing happens.

    python benchmarks/lite_topics.py            # 100,000 of 100 clients, less than a minute
    python benchmarks/lite_topics.py --quick    # a hundred; proves only that it runs

Each lite topic was made by a message that its client received and acknowledged, and each client subscribes to
its share of them and waits with a long poll. MB are the proportional set size of the gateway's processes; CPU
is that of all of them, in percent of one core: while all only wait, and with what it takes when every client
repeats its subscriptions every 30 s, as RocketMQ's clients do. In the end a message is sent to one lite
topic; it must wake the client that subscribes to it, and no other.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import grpc.aio
import uvloop

from benchmarks.beside.processes import cpu_s, memory_mb
from benchmarks.waiting import (
    BATCH,
    SERVICE,
    WAIT_S,
    message,
    metadata,
    own_connection,
    receive_call,
    send,
    wait_for,
)
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.testing import GatewayProcess

TOPIC, GROUP = pb.Resource(name="rooms"), pb.Resource(name="readers")
CONNECTIONS = 10
AT_ONCE = 8
"""Clients that work at the same time."""
REPEATED_S = 30.0
"""RocketMQ's clients repeat their whole set of lite topics so often (protocol facts 4.10)."""


class Client:
    """One with an id of its own, and its share of the lite topics."""

    def __init__(self, channel: grpc.aio.Channel, number: int, rooms: Sequence[str]) -> None:
        self._channel = channel
        self._metadata = metadata(f"reader-{number}")
        self.rooms = rooms

    async def fill(self) -> None:
        for at in range(0, len(self.rooms), BATCH):
            await send(self._channel, [message(TOPIC.name, room) for room in self.rooms[at : at + BATCH]])

    async def subscribe(self) -> None:
        """To all of its lite topics, whatever it subscribed to before."""
        request = rpc.SyncLiteSubscriptionRequest(
            action=pb.LiteSubscriptionAction.COMPLETE_ADD, topic=TOPIC, group=GROUP, lite_topic_set=self.rooms
        )
        await self._call("SyncLiteSubscription", request, rpc.SyncLiteSubscriptionResponse)

    async def drain(self) -> None:
        """Receive and acknowledge what is in its lite topics, a message of each."""
        left = len(self.rooms)
        while left:
            entries = [
                rpc.AckMessageEntry(
                    message_id=one.system_properties.message_id,
                    receipt_handle=one.system_properties.receipt_handle,
                )
                for one in await self.receive(10)
            ]
            if not entries:
                raise SystemExit(f"{left} messages of {len(self.rooms)} did not come")
            request = rpc.AckMessageRequest(topic=TOPIC, group=GROUP, entries=entries)
            await self._call("AckMessage", request, rpc.AckMessageResponse)
            left -= len(entries)

    async def receive(self, wait_s: int) -> list[pb.Message]:
        request = rpc.ReceiveMessageRequest(
            group=GROUP,
            message_queue=pb.MessageQueue(topic=TOPIC, id=-1),
            filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
            batch_size=32,
            invisible_duration=Duration(seconds=600),
            long_polling_timeout=Duration(seconds=wait_s),
        )
        call = receive_call(self._channel, rpc.ReceiveMessageResponse.FromString)
        answers = call(request, metadata=self._metadata, timeout=wait_s + 60)
        return [one.message async for one in answers if one.WhichOneof("content") == "message"]

    async def _call(self, name: str, request: Any, answer_type: Any) -> None:
        call = self._channel.unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer_type.FromString,
        )
        answer = await call(request, metadata=self._metadata, timeout=60)
        assert answer.status.code == pb.OK, answer.status


async def for_each(clients: Sequence[Client], work: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    """Do it for all clients, some at a time."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(client: Client) -> None:
        async with slots:
            await work(client)

    await asyncio.gather(*map(one, clients))


def make_topic(gateway: GatewayProcess) -> None:
    request = urllib.request.Request(
        f"{gateway.admin}/api/topics",
        json.dumps({"name": TOPIC.name, "types": ["LITE"]}).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=30).close()


async def measure(gateway: GatewayProcess, count: int, clients: int, each: int, idle_s: float) -> None:
    async with contextlib.AsyncExitStack() as open_:
        channels = [
            await open_.enter_async_context(own_connection(gateway.endpoint)) for _ in range(CONNECTIONS)
        ]
        crowd = [
            Client(channels[n % CONNECTIONS], n, [f"room-{n}-{at}" for at in range(each)])
            for n in range(clients)
        ]
        await for_each(crowd, Client.subscribe)
        await for_each(crowd, Client.fill)
        await for_each(crowd, Client.drain)
        waiting = [asyncio.ensure_future(client.receive(WAIT_S)) for client in crowd]
        await asyncio.to_thread(wait_for, gateway, clients)
        await asyncio.sleep(idle_s / 10)
        before, begun = cpu_s(gateway.pid), time.monotonic()
        await asyncio.sleep(idle_s)
        idle = (cpu_s(gateway.pid) - before) / (time.monotonic() - begun)
        print(f"lite.topics_{count} {memory_mb(gateway.pid)['pss_mb']:.1f} MB")
        print(f"lite.idle_cpu_{count} {idle * 100:.2f} %")
        before = cpu_s(gateway.pid)
        await for_each(crowd, Client.subscribe)
        repeating = (cpu_s(gateway.pid) - before) / REPEATED_S
        print(f"lite.repeating_cpu_{count} {(idle + repeating) * 100:.2f} %")
        await send(channels[0], [message(TOPIC.name, crowd[0].rooms[0])])
        done, _ = await asyncio.wait(waiting, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(wait_for, gateway, clients - 1)
        assert done == {waiting[0]}
        print(f"lite.woken {len(waiting[0].result())} of {clients} polls")
        for poll in waiting:
            poll.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a hundred; proves only that it runs")
    clients, each, idle_s = (4, 25, 1.0) if parser.parse_args().quick else (100, 1_000, 30.0)
    with GatewayProcess(options=("--set", f"limits.max_wait_s={WAIT_S + 10}")) as gateway:
        make_topic(gateway)
        print(f"lite.idle {memory_mb(gateway.pid)['pss_mb']:.1f} MB")
        uvloop.run(measure(gateway, clients * each, clients, each, idle_s))


if __name__ == "__main__":
    main()
