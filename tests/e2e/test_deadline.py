"""A gateway that was told to end is gone in its time, whatever hangs or fails behind it.

Everything that hangs here does so for longer than any test waits: what is not bounded does not end.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from popgate.clock import SystemClock
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.testing import GatewayProcess
from popgate.testing.peers import ScriptedPeer, scripted_cluster
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command
from tests.e2e.clients import SERVICE, Client, metadata
from tests.e2e.test_drain import FIXED_WINDOW, told
from tests.support.waiting import PATIENCE_S, until
from tests.unit.brokers.remote.consume.test_pop import Shelves, record

DRAIN_S = 3
SHORT = ("--set", f"stopping.drain_s={DRAIN_S}", "--set", "stopping.lame_duck_s=0.5")
PATIENT = ("--set", "remote.request_timeout_s=600", "--set", "remote.probe_s=300")
LARGE = 3 << 20
SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


def sends(peer: ScriptedPeer) -> list[Command]:
    return [request for code in SENDS for request in peer.of(code)]


def half_received(client: Client, topic: str) -> Any:
    """A receive of large messages whose client reads one of them, and no more."""
    return client.channel.unary_stream(
        SERVICE + "ReceiveMessage",
        request_serializer=rpc.ReceiveMessageRequest.SerializeToString,
        response_deserializer=rpc.ReceiveMessageResponse.FromString,
    )(
        rpc.ReceiveMessageRequest(
            group=pb.Resource(name="G"),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), id=-1),
            filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
            batch_size=4,
            invisible_duration=Duration(seconds=300),
        ),
        metadata=metadata("deaf"),
        timeout=PATIENCE_S,
    )


async def sends_on(client: Client) -> None:
    """As long as it may; each is a commit."""
    while True:
        await client.send("other", b"one more")


async def refused(call: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await call


@pytest.fixture
async def broker() -> AsyncIterator[tuple[str, ScriptedPeer]]:
    """The address of a name server, and the only broker that it knows."""
    async with scripted_cluster("broker-a", topics=("T",)) as (servers, peers):
        shelves = Shelves(peers, SystemClock())
        shelves.put("broker-a", *(record(at, bytes(LARGE)) for at in range(4)))
        for code in SENDS:
            peers["broker-a"].on(code, _stored)
        yield servers.address, peers["broker-a"]


def _stored(request: Command) -> Command:
    return request.answer(0, fields={"msgId": "ID", "queueId": "0", "queueOffset": "7"})


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_gateway_whose_broker_hangs_is_gone_in_its_time_and_says_what_was_not_given_back(
    broker: tuple[str, ScriptedPeer], workers: str
) -> None:
    servers, peer = broker
    options = ("--broker", f"rocketmq://{servers}", "--workers", workers, *PATIENT, *SHORT)
    gateway = await asyncio.to_thread(GatewayProcess(options=options).start)
    try:
        deaf, patient = Client(gateway.endpoint, "deaf", FIXED_WINDOW), Client(gateway.endpoint, "patient")
        receiving = half_received(deaf, "T")
        await receiving.read()
        await patient.send("T", b"its process knows the way to the broker")
        before = len(sends(peer))
        # From here on it answers nothing any more, and keeps its connections.
        peer.silent = True
        sending = asyncio.ensure_future(patient.send("T", b"one"))
        await until(lambda: len(sends(peer)) > before)
        gateway.signal(signal.SIGTERM)
        assert await asyncio.to_thread(gateway.wait) == 0
        await refused(sending)
        summary = told(gateway)
        assert summary["requests_cut_off"] == 2
        assert summary["messages_returned"] == 0
        assert summary["returns_failed"] >= 1
        for client in (deaf, patient):
            await client.channel.close()
    finally:
        await asyncio.to_thread(gateway.close)


async def test_a_gateway_whose_store_fails_is_gone_in_its_time_and_says_what_was_not_given_back() -> None:
    options = ("--set", "faults=seed=1;fail=commit:after=40", *SHORT)
    gateway = await asyncio.to_thread(GatewayProcess(options=options).start)
    try:
        deaf, producer = Client(gateway.endpoint, "deaf", FIXED_WINDOW), Client(gateway.endpoint, "producer")
        for _ in range(4):
            await producer.send("T", bytes(LARGE))
        receiving = half_received(deaf, "T")
        await receiving.read()
        with pytest.raises(AssertionError, match="write"):
            await sends_on(producer)
        assert await asyncio.to_thread(gateway.terminate) == 0
        summary = told(gateway)
        assert summary["requests_cut_off"] == 1
        assert summary["messages_returned"] == 0
        assert summary["returns_failed"] >= 1
        for client in (deaf, producer):
            await client.channel.close()
    finally:
        await asyncio.to_thread(gateway.close)
