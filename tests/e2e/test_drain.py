"""SIGTERM under load: clients are told to move, nothing is lost, and the summary's numbers are right."""

from __future__ import annotations

import asyncio
import re
import signal
import urllib.request
from typing import Any

import grpc
import grpc.aio
import pytest

from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.testing import GatewayProcess
from tests.e2e.clients import SERVICE, Client, metadata
from tests.support.waiting import PATIENCE_S

RETRYABLE = {grpc.StatusCode.UNAVAILABLE}
"""What a call ends with that came too late: nobody looked at it, and the client makes it again elsewhere."""

POLL_S = 300
"""Of those who wait until the gateway leaves, however long it takes until then."""

FIXED_WINDOW = ("grpc.http2.bdp_probe", 0)
"""A client that measures its connection lets 16 MB come unread where the measured round trip is slow."""


def told(gateway: GatewayProcess) -> dict[str, int]:
    """The summary that the gateway printed."""
    line = next(line for line in gateway.output.splitlines() if line.startswith("stopped "))
    return {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", line)}


def waiting(gateway: GatewayProcess) -> int:
    """How many receives wait there."""
    with urllib.request.urlopen(f"{gateway.admin}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    found = re.search(r"^popgate_waiting_receives (\S+)$", text, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


class Town:
    """Producers and consumers at work, each as an official client does it."""

    def __init__(self) -> None:
        self.sent: set[bytes] = set()
        self.got: list[bytes] = []
        self.refused: list[grpc.aio.AioRpcError] = []
        self.reconnects = 0
        self.ended_well = 0
        self.over = False

    async def produce(self, client: Client) -> None:
        number = 0
        while not self.over:
            body = f"{client.name}-{number}".encode()
            number += 1
            try:
                await client.send("orders", body)
            except grpc.aio.AioRpcError as error:
                self.refused.append(error)
                return
            self.sent.add(body)

    async def consume(self, client: Client) -> None:
        while not self.over:
            try:
                code, messages = await client.receive("orders", "workers", 15)
                assert code in (pb.OK, pb.MESSAGE_NOT_FOUND)
                self.got += [one.body for one in messages]
                if messages:
                    await client.ack("orders", "workers", messages)
            except grpc.aio.AioRpcError as error:
                self.refused.append(error)
                return

    async def listen(self, client: Client, kind: Any, topic: str, group: str, ready: asyncio.Event) -> None:
        call, settings = client.telemetry(kind, topic, group)
        await call.write(settings)
        while (command := await call.read()) is not grpc.aio.EOF:
            if command.WhichOneof("command") == "settings":
                ready.set()
            self.reconnects += command.WhichOneof("command") == "reconnect_endpoints_command"
        self.ended_well += await call.code() is grpc.StatusCode.OK


async def test_a_gateway_under_load_leaves_with_nothing_lost_and_says_what_became_of_everything() -> None:
    # Longer than a machine stands still: what is cut off here was not served.
    options = ("--set", "stopping.drain_s=50", "--set", f"limits.max_wait_s={POLL_S}")
    gateway = GatewayProcess(options=options).start()
    try:
        town = Town()
        address = gateway.endpoint
        producers = [Client(address, f"producer-{n}") for n in range(3)]
        consumers = [Client(address, f"consumer-{n}") for n in range(4)]
        idle = [Client(address, f"idle-{n}") for n in range(5)]
        await producers[0].send("orders", b"first")
        town.sent.add(b"first")
        listening = []
        for client in (*producers, *consumers):
            ready = asyncio.Event()
            kind, group = (
                (pb.ClientType.PRODUCER, "")
                if client in producers
                else (pb.ClientType.PUSH_CONSUMER, "workers")
            )
            listening.append(asyncio.ensure_future(town.listen(client, kind, "orders", group, ready)))
            await asyncio.wait_for(ready.wait(), PATIENCE_S)
        polls = [asyncio.ensure_future(one.receive("quiet", "sleepers", POLL_S)) for one in idle]
        async with asyncio.timeout(PATIENCE_S):
            while await asyncio.to_thread(waiting, gateway) < len(idle):
                await asyncio.sleep(0.01)
        work = [asyncio.ensure_future(town.produce(one)) for one in producers]
        work += [asyncio.ensure_future(town.consume(one)) for one in consumers]
        async with asyncio.timeout(PATIENCE_S):
            while len(town.got) < 200:
                await asyncio.sleep(0.01)
        gateway.signal(signal.SIGTERM)
        # Who waits is answered, at once and empty.
        for code, messages in await asyncio.wait_for(asyncio.gather(*polls), PATIENCE_S):
            assert (code, messages) == (pb.MESSAGE_NOT_FOUND, [])
        await asyncio.wait_for(asyncio.gather(*work, *listening), PATIENCE_S)
        town.over = True
        assert await asyncio.to_thread(gateway.wait) == 0
        assert (town.reconnects, town.ended_well) == (7, 7)
        assert {error.code() for error in town.refused} <= RETRYABLE
        summary = told(gateway)
        assert summary["connections"] == 12
        assert (summary["clients_told_to_move"], summary["streams_ended"]) == (7, 7)
        assert summary["requests_finished"] >= 5
        assert summary["requests_cut_off"] == 0
        assert '"event": "stopped"' in gateway.log
        # Whoever goes on finds everything that was answered, and nothing that is held by the dead.
        with gateway.successor() as after:
            late = Client(after.endpoint, "late")
            while not town.sent <= set(town.got):
                code, messages = await late.receive("orders", "workers", 5)
                assert code == pb.OK, f"{len(town.sent - set(town.got))} of {len(town.sent)} are missing"
                town.got += [one.body for one in messages]
                await late.ack("orders", "workers", messages)
            # A send whose answer was lost may be there too; nothing else.
            assert town.sent <= set(town.got)
            assert len(set(town.got) - town.sent) <= len(producers)
            await late.channel.close()
        for client in (*producers, *consumers, *idle):
            await client.channel.close()
    finally:
        gateway.close()


async def test_a_second_signal_cuts_off_what_is_left_and_counts_it() -> None:
    """A reader that stopped reading holds its request open: the first signal waits, the second does not."""
    gateway = GatewayProcess(options=("--set", "stopping.drain_s=300")).start()
    try:
        client = Client(gateway.endpoint, "deaf", FIXED_WINDOW)
        for _ in range(4):
            await client.send("large", b"x" * (4 << 20))
        call = client.channel.unary_stream(SERVICE + "ReceiveMessage")(
            rpc.ReceiveMessageRequest(
                group=pb.Resource(name="g"),
                message_queue=pb.MessageQueue(topic=pb.Resource(name="large"), id=-1),
                filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
                batch_size=4,
                invisible_duration=Duration(seconds=300),
            ).SerializeToString(),
            metadata=metadata("deaf"),
            timeout=PATIENCE_S,
        )
        await call.read()
        gateway.signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            while '"stopping"' not in gateway.log:
                await asyncio.sleep(0.01)
        gateway.signal(signal.SIGTERM)
        assert await asyncio.to_thread(gateway.wait) == 0
        summary = told(gateway)
        assert (summary["connections"], summary["requests_cut_off"]) == (1, 1)
        assert summary["messages_returned"] >= 1
        await client.channel.close()
    finally:
        gateway.close()


async def test_what_does_not_end_is_cut_off_at_the_deadline_and_counted() -> None:
    """One signal is enough: a call whose answer never comes holds up the end for no longer than was set."""
    options = ("--set", "stopping.drain_s=1", "--set", "faults=seed=1;hang=AckMessage")
    gateway = GatewayProcess(options=options).start()
    try:
        client = Client(gateway.endpoint, "patient")
        await client.send("orders", b"one")
        code, messages = await client.receive("orders", "workers", 20)
        assert (code, [one.body for one in messages]) == (pb.OK, [b"one"])
        held = asyncio.ensure_future(client.ack("orders", "workers", messages))
        async with asyncio.timeout(PATIENCE_S):
            while "fault 1: hang=AckMessage" not in gateway.log:
                await asyncio.sleep(0.01)
        gateway.signal(signal.SIGTERM)
        assert await asyncio.to_thread(gateway.wait) == 0
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            await held
        assert cut.value.code() in RETRYABLE
        summary = told(gateway)
        assert (summary["connections"], summary["requests_cut_off"]) == (1, 1)
        await client.channel.close()
    finally:
        gateway.close()
