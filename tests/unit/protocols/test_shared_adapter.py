"""protocols.shared_adapter and protocols.schemes: gRPC and remoting at one address, optional TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from brokers.embedded.broker import EmbeddedBroker
from popgate.clock import SystemClock
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.testing.papers import Papers
from popgate.testing.remoting import RemotingClient
from popgate.wire.bodies.routes import TopicRoute
from popgate.wire.frames.codes import RequestCode, ResponseCode
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from protocols.adapter import Adapter, AdapterContext, parse_listen
from protocols.probing import Level, Wish
from protocols.schemes import listens_by_itself, load_for, make_adapter
from protocols.shared_adapter import SharedAdapter
from protocols.tls import Certificate
from proxy.cli.diagnosis.doctor import _all
from proxy.metrics import Metrics
from tests.support.waiting import PATIENCE_S, until

BOTH = "grpc+remoting://127.0.0.1:0"
_ROUTE = "/apache.rocketmq.v2.MessagingService/QueryRoute"


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture
async def adapter_context(tmp_path: Path, papers: Papers) -> AsyncIterator[AdapterContext]:
    clock = SystemClock()
    broker = EmbeddedBroker(tmp_path / "data", clock=clock)
    await broker.start()
    processor = MessagingProcessor(broker, clock=clock, limits=Limits())
    await processor.start()
    metrics = Metrics()
    yield AdapterContext(
        processor,
        clock,
        calls=metrics.counters,
        connections=metrics.counters.connections,
        remoting_connections=metrics.counters.remoting_connections,
        sniffing=metrics.counters.sniffing,
        certificate=Certificate(*papers.pair("gateway")),
    )
    await processor.stop()
    await broker.stop()
    of = (
        metrics.counters.connections.open,
        metrics.counters.remoting_connections.open,
        metrics.counters.sniffing.open,
    )
    assert of == (0, 0, 0)


@contextlib.asynccontextmanager
async def started(url: str, adapter_context: AdapterContext) -> AsyncIterator[tuple[Adapter, str]]:
    """With where it listens, "host:port" or the path of a socket."""
    adapter = make_adapter(parse_listen(url), adapter_context)
    await adapter.start()
    try:
        (address,) = adapter.addresses
        scheme = url.partition(":")[0]
        assert address.startswith(scheme)
        yield adapter, address.removeprefix(scheme).removeprefix("://").removeprefix(":")
    finally:
        await adapter.stop()
        # What it had is over with the loop's next turns.
        seen: Any = (adapter_context.connections, adapter_context.remoting_connections)
        await until(lambda: not any(one.open for one in seen))


async def is_serving(channel: grpc.aio.Channel) -> bool:
    answer = await health_pb2_grpc.HealthStub(channel).Check(
        health_pb2.HealthCheckRequest(), timeout=PATIENCE_S, wait_for_ready=True
    )
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def told_by_grpc(channel: grpc.aio.Channel, address: str) -> str:
    """Where a gRPC client is told to go."""
    call = channel.unary_unary(
        _ROUTE,
        request_serializer=rpc.QueryRouteRequest.SerializeToString,
        response_deserializer=rpc.QueryRouteResponse.FromString,
    )
    host, _, port = address.rpartition(":")
    dialled = pb.Endpoints(scheme=pb.AddressScheme.IPv4, addresses=[pb.Address(host=host, port=int(port))])
    answer = await call(
        rpc.QueryRouteRequest(topic=pb.Resource(name="orders"), endpoints=dialled),
        metadata=(("x-mq-client-id", "one"), ("x-mq-language", "JAVA")),
        timeout=PATIENCE_S,
    )
    assert answer.status.code == pb.OK, answer
    (place,) = answer.message_queues[0].broker.endpoints.addresses
    return f"{place.host}:{place.port}"


async def told_by_remoting(client: RemotingClient) -> set[str]:
    """Where a classic client is told to go."""
    answer = await client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
    assert answer.code == ResponseCode.SUCCESS
    return {place for broker in TopicRoute.decode(answer.body).brokers for place in broker.addresses.values()}


def served_by(adapter: Adapter) -> list[str]:
    """What reads the connections of all doors: each its own, with nothing in between."""
    assert isinstance(adapter, SharedAdapter)
    servers: list[Any] = [member._server for member in adapter._members]  # type: ignore[attr-defined]
    open_here = [one for server in servers for one in server.connections]
    assert all(one.transport.get_protocol() is one for one in open_here)
    return sorted(type(one).__name__ for one in open_here)


async def classic(address: str, **how: Any) -> RemotingClient:
    host, _, port = address.rpartition(":")
    return await RemotingClient.connect(host, int(port), **how)


@pytest.mark.parametrize("url", [BOTH, "remoting+grpc://127.0.0.1:0", BOTH + "?tls=permissive"])
async def test_both_are_served_at_one_port_and_tell_it_to_their_clients(
    adapter_context: AdapterContext, url: str
) -> None:
    async with (
        started(url, adapter_context) as (adapter, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        client = await classic(address)

        assert await is_serving(channel)
        assert await told_by_grpc(channel, address) == address
        assert await told_by_remoting(client) == {address}
        assert served_by(adapter) == ["Http2Connection", "RemotingConnection"]
        await client.close()
        seen: Any = adapter_context.sniffing
        assert seen.protocols == {("grpc", "no"): 1, ("remoting", "no"): 1}


@pytest.mark.parametrize("tls", ["true", "permissive"])
async def test_both_are_served_inside_of_tls(
    adapter_context: AdapterContext, papers: Papers, tls: str
) -> None:
    credentials = grpc.ssl_channel_credentials(papers.authority.read_bytes())
    async with (
        started(f"{BOTH}?tls={tls}", adapter_context) as (adapter, address),
        grpc.aio.secure_channel(address, credentials) as channel,
    ):
        client = await classic(address, tls=ssl.create_default_context(cafile=papers.authority))

        assert await is_serving(channel)
        assert await told_by_remoting(client) == {address}
        assert served_by(adapter) == ["Http2Connection", "RemotingConnection"]
        await client.close()
        seen: Any = adapter_context.sniffing
        assert seen.protocols == {("grpc", "yes"): 1, ("remoting", "yes"): 1}


@pytest.mark.parametrize("secured", [True, False])
async def test_one_protocol_with_or_without_tls(
    adapter_context: AdapterContext, papers: Papers, secured: bool
) -> None:
    tls = ssl.create_default_context(cafile=papers.authority) if secured else None
    async with started("remoting://127.0.0.1:0?tls=permissive", adapter_context) as (adapter, address):
        assert isinstance(adapter, SharedAdapter)
        client = await classic(address, tls=tls)

        assert await told_by_remoting(client) == {address}
        await client.close()


async def test_who_connects_is_what_a_balancer_says(adapter_context: AdapterContext) -> None:
    async with started(BOTH + "?proxy_protocol=true", adapter_context) as (adapter, address):
        said = b"PROXY TCP4 203.0.113.7 10.0.0.1 5000 8080\r\n"
        client = await classic(address)
        client.write(said)
        # Its end is what it dialled, as the balancer says it.
        assert await told_by_remoting(client) == {"10.0.0.1:8080"}
        assert isinstance(adapter, SharedAdapter)

        reader, writer = await asyncio.open_connection(*address.rsplit(":", 1))
        writer.write(said + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
        async with asyncio.timeout(PATIENCE_S):
            assert (await reader.readexactly(4))[3] == 4  # settings
        grpc_door: Any = adapter._members[0]
        (connection,) = grpc_door._server.connections
        assert (connection.peer, connection.local) == ("203.0.113.7:5000", "10.0.0.1:8080")
        writer.close()
        await writer.wait_closed()
        await client.close()


async def test_a_socket_in_the_file_system(adapter_context: AdapterContext, socket_folder: Path) -> None:
    path = socket_folder / "door"
    url = f"grpc+remoting+unix:{path}?advertised=gw.example.com:80&mode=660"
    async with (
        started(url, adapter_context) as (_, address),
        grpc.aio.insecure_channel(f"unix:{path}") as channel,
    ):
        assert address == f"{path}"
        assert path.stat().st_mode & 0o777 == 0o660
        client = await RemotingClient.connect("", 0, path=str(path))

        assert await is_serving(channel)
        assert await told_by_remoting(client) == {"gw.example.com:80"}
        await client.close()


async def test_the_doctor_looks_at_all_that_is_spoken_there(adapter_context: AdapterContext) -> None:
    async with started(BOTH, adapter_context) as (_, address):
        host, _, port = address.rpartition(":")
        wish = Wish(host, int(port), patience_s=PATIENCE_S, write=False)

        found = [finding async for finding in _all("grpc+remoting", wish, None)]

    checks = [one.check for one in found]
    assert checks.count("port") == 1
    assert {"http2", "remoting", "health", "route"} <= set(checks)
    assert not [one for one in found if one.level is Level.PROBLEM and one.check != "route"]


async def test_a_drain_lets_all_go(adapter_context: AdapterContext) -> None:
    async with (
        started(BOTH, adapter_context) as (adapter, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        assert await is_serving(channel)
        client, quiet = await classic(address), await classic(address)
        assert (await client.call(77_777)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

        draining = asyncio.ensure_future(adapter.drain(time.monotonic() + 60))
        await quiet.until_over()
        await client.until_over()
        await draining

        assert adapter.farewell().cut_off == 0
        with pytest.raises(OSError, match=r"."):
            await classic(address)


async def test_connections_of_all_protocols_count_together(adapter_context: AdapterContext) -> None:
    async with started(BOTH, replace(adapter_context, max_connections=1)) as (_, address):
        client = await classic(address)
        assert (await client.call(77_777)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        async with grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=PATIENCE_S
                )
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        await client.close()


async def test_one_that_never_started_ends(adapter_context: AdapterContext) -> None:
    adapter = make_adapter(parse_listen(BOTH), adapter_context)

    assert adapter.addresses == []
    await adapter.drain(0.0)
    await adapter.stop()

    assert adapter.farewell().connections == 0


async def test_an_address_that_is_taken_is_named(adapter_context: AdapterContext) -> None:
    async with started(BOTH, adapter_context) as (_, address):
        other = make_adapter(parse_listen(f"grpc+remoting://{address}"), adapter_context)

        with pytest.raises(OSError, match=rf"cannot listen at grpc\+remoting://{address}: "):
            await other.start()
        await other.stop()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (BOTH + "?color=red", "has no option 'color'; there are: advertised, mode, proxy_protocol, tls, tr"),
        (BOTH + "?tls=yes", "the option tls is true, false or permissive, not 'yes'"),
        (BOTH + "?proxy_protocol=1", "the option proxy_protocol is true or false, not '1'"),
        (BOTH + "?transport=grpcio", "transport=grpcio listens by itself"),
        ("grpc://127.0.0.1:0?tls=permissive&transport=grpcio", "transport=grpcio listens by itself"),
        (BOTH + "?mode=600", "is no socket in the file system"),
        ("grpc+grpc://127.0.0.1:0", "names a protocol twice"),
        ("grpc+amqp://127.0.0.1:0", "there is no protocol 'amqp'; these are: grpc, remoting"),
        ("grpc+://127.0.0.1:0", "there is no protocol ''"),
        ("grpc+remoting+unix:/tmp/door", "has no port to advertise"),
        ("remoting://127.0.0.1:0?tls=permissive&transport=http2", "has no option 'transport'"),
    ],
)
async def test_addresses_that_cannot_be(adapter_context: AdapterContext, url: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make_adapter(parse_listen(url), adapter_context)


@pytest.mark.parametrize("tls", ["true", "permissive"])
async def test_without_a_certificate_there_is_no_tls(adapter_context: AdapterContext, tls: str) -> None:
    with pytest.raises(ValueError, match=r"has nothing to show: set tls.certificate and tls.key"):
        make_adapter(parse_listen(f"{BOTH}?tls={tls}"), replace(adapter_context, certificate=None))


def test_another_process_can_accept_for_it() -> None:
    listen = parse_listen(BOTH)
    load_for(listen)
    load_for(parse_listen("amqp+grpc://127.0.0.1:0"))

    assert listen.schemes == ("grpc", "remoting")
    assert not listens_by_itself(listen)
    assert listens_by_itself(parse_listen("grpc://127.0.0.1:0?transport=grpcio"))
