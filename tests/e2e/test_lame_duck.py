"""A gateway that was told to end serves on first, so that those who send clients to it have time to stop."""

from __future__ import annotations

import asyncio
import signal
import urllib.error
import urllib.request
from typing import Any

import grpc
import grpc.aio
import pytest

from popgate.pb import definition_pb2 as pb
from popgate.pb.health_pb2 import HealthCheckRequest, HealthCheckResponse
from popgate.testing import GatewayProcess
from tests.e2e.clients import Client
from tests.e2e.test_drain import told
from tests.support.waiting import PATIENCE_S, until

ENDLESS = ("--set", "stopping.lame_duck_s=500", "--set", "stopping.drain_s=1000")
"""It is ended by a second signal: no test waits for it."""


def readiness(gateway: GatewayProcess) -> int:
    try:
        with urllib.request.urlopen(f"{gateway.admin}/ready", timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


async def health(client: Client) -> int:
    call = client.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )
    return int((await call(HealthCheckRequest(), timeout=PATIENCE_S)).status)


async def at_work(client: Client) -> None:
    """One of everything, and nothing of it fails."""
    await client.send("orders", client.name.encode())
    code, messages = await client.receive("orders", client.name, 5)
    assert code == pb.OK
    await client.ack("orders", client.name, messages)


async def listening(client: Client) -> Any:
    """Its Telemetry stream, when its settings have been answered."""
    call, settings = client.telemetry(pb.ClientType.PRODUCER, "orders", "")
    await call.write(settings)
    assert (await call.read()).HasField("settings")
    return call


@pytest.mark.parametrize(
    ("listen", "options"),
    [
        ("grpc://127.0.0.1:0", ()),
        ("grpc://127.0.0.1:0?transport=grpcio", ()),
        ("grpc+remoting://127.0.0.1:0", ()),
        ("grpc://127.0.0.1:0", ("--workers", "2")),
    ],
    ids=["http2", "grpcio", "shared port", "workers"],
)
async def test_who_was_told_to_end_says_so_and_serves_old_and_new_clients(
    listen: str, options: tuple[str, ...]
) -> None:
    gateway = GatewayProcess(listen=[listen], options=(*ENDLESS, *options)).start()
    try:
        address = gateway.endpoint.partition("?")[0]
        old = Client(address, "old")
        stream = await listening(old)
        await at_work(old)
        assert await health(old) == HealthCheckResponse.SERVING
        gateway.signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            assert (await stream.read()).HasField("reconnect_endpoints_command")
        await until(lambda: readiness(gateway) == 503)
        new = Client(address, "new")
        for client in (old, new):
            await at_work(client)
            assert await health(client) == HealthCheckResponse.NOT_SERVING
        gateway.signal(signal.SIGTERM)
        assert await asyncio.to_thread(gateway.wait) == 0
        assert told(gateway)["clients_told_to_move"] == 1
        for client in (old, new):
            await client.channel.close()
    finally:
        gateway.close()


async def test_a_lame_duck_ends_by_itself_and_then_the_doors_are_closed() -> None:
    """The default, which test processes switch off."""
    options = ("--set", "stopping.lame_duck_s=1", "--set", "stopping.drain_s=100")
    gateway = GatewayProcess(options=options).start()
    try:
        client = Client(gateway.endpoint, "client")
        await at_work(client)
        assert await asyncio.to_thread(gateway.terminate) == 0
        assert '"lame_duck_s": 1' in gateway.log
        with pytest.raises(grpc.aio.AioRpcError):
            await client.send("orders", b"late")
        await client.channel.close()
    finally:
        gateway.close()
