"""The cluster's own tools see who is connected to a gateway, with what, and until when."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any

import grpc.aio
import pytest

from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.testing import CREATE_ON_USE, GatewayProcess, running_gateway
from popgate.testing.rocketmq import RocketMQ
from popgate.testing.rocketmq.requests import addresses_known, ask
from popgate.wire.bodies.heartbeats import ConsumerConnection, decode_producer_connections
from popgate.wire.frames.codes import RequestCode, ResponseCode
from tests.cluster.load import until
from tests.e2e.clients import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NAME = "seen"
CONSUMERS, PRODUCERS = {"consumer-1", "consumer-2", "consumer-3"}, {"producer-1", "producer-2"}


def consumers_at(address: str) -> tuple[set[str], set[tuple[str, str]]]:
    """The client ids of the group, and the topics and expressions of its subscriptions, as a broker tells."""
    answer = ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": NAME})
    if answer.code != ResponseCode.SUCCESS:
        return set(), set()  # nobody is online
    told = ConsumerConnection.decode(answer.body)
    ids = {one.client_id for one in told.connections}
    return ids, {(one.topic, one.expression) for one in told.subscriptions.values()}


def producers_at(address: str) -> set[str]:
    """Those of the topic, which over gRPC is a producer's group."""
    answer = ask(address, RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": NAME})
    if answer.code != ResponseCode.SUCCESS:
        return set()
    return {one.client_id for one in decode_producer_connections(answer.body)}


async def leave(client: Client, stream: Any) -> None:
    """As official clients do it."""
    request = rpc.NotifyClientTerminationRequest()
    if client.name in CONSUMERS:
        request.group.name = NAME
    await client.unary("NotifyClientTermination", request, rpc.NotifyClientTerminationResponse)
    stream.cancel()
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
        await stream.wait_for_connection()
    await client.channel.close(None)


async def shown(cluster: RocketMQ, *names: str, command: tuple[str, ...]) -> None:
    """Until mqadmin tells of them; it ends well, and prints why, also when a broker was too slow for it."""

    async def told() -> bool:
        printed = await asyncio.to_thread(cluster.admin, *command)
        return all(name in printed for name in names)

    await until(told, what=f"mqadmin {command[0]} shows {names}")


async def everywhere(cluster: RocketMQ, *, consumers: set[str], producers: set[str]) -> None:
    """Until each master knows just these clients, with their subscriptions."""
    masters = [known[0] for known in addresses_known(cluster.addresses[0]).values()]

    async def hold() -> bool:
        for address in masters:
            ids, subscriptions = await asyncio.to_thread(consumers_at, address)
            if ids != consumers or (ids and (NAME, "*") not in subscriptions):
                return False
            if await asyncio.to_thread(producers_at, address) != producers:
                return False
        return True

    await until(hold, what="brokers know just these clients")


async def join(gateway: GatewayProcess, name: str) -> tuple[Client, Any]:
    """A client with its stream, whose settings were taken."""
    client = Client(gateway.endpoint, name)
    producer = name in PRODUCERS
    kind = pb.PRODUCER if producer else pb.PUSH_CONSUMER
    stream, settings = client.telemetry(kind, NAME, "" if producer else NAME)
    await stream.write(settings)
    assert (await stream.read()).status.code == pb.OK
    return client, stream


async def test_tools_of_the_cluster_see_clients_with_their_subscriptions_until_they_leave(
    pair_cluster: RocketMQ,
) -> None:
    """Three consumers of a group and two producers, through two gateways."""
    options = ("--broker", pair_cluster.url, *CREATE_ON_USE)
    async with running_gateway(options=options) as first, running_gateway(options=options) as second:
        gateways = itertools.cycle((first, second))
        there = {name: await join(next(gateways), name) for name in sorted(CONSUMERS | PRODUCERS)}
        await everywhere(pair_cluster, consumers=CONSUMERS, producers=PRODUCERS)
        await shown(pair_cluster, *CONSUMERS, NAME, command=("consumerConnection", "-g", NAME))
        await shown(pair_cluster, *PRODUCERS, command=("producerConnection", "-g", NAME, "-t", NAME))
        await shown(pair_cluster, *CONSUMERS, command=("consumerStatus", "-g", NAME))
        await leave(*there.pop("consumer-1"))
        await everywhere(pair_cluster, consumers=CONSUMERS - {"consumer-1"}, producers=PRODUCERS)
        for client, stream in there.values():
            await leave(client, stream)
        await everywhere(pair_cluster, consumers=set(), producers=set())


async def test_the_cluster_forgets_the_clients_of_a_gateway_that_is_killed_and_keeps_the_others(
    pair_cluster: RocketMQ,
) -> None:
    """Its connections end with it. A client that comes back through another gateway is seen again."""
    options = ("--broker", pair_cluster.url, *CREATE_ON_USE)
    async with running_gateway(options=options) as first, running_gateway(options=options) as second:
        kept = {name: await join(first, name) for name in ("consumer-1", "producer-1")}
        lost = {name: await join(second, name) for name in ("consumer-2", "consumer-3", "producer-2")}
        await everywhere(pair_cluster, consumers=CONSUMERS, producers=PRODUCERS)
        await asyncio.to_thread(second.kill)
        await everywhere(pair_cluster, consumers={"consumer-1"}, producers={"producer-1"})
        for client, stream in lost.values():
            stream.cancel()
            await client.channel.close(None)
        kept["consumer-2"] = await join(first, "consumer-2")
        await everywhere(pair_cluster, consumers={"consumer-1", "consumer-2"}, producers={"producer-1"})
        for client, stream in kept.values():
            await leave(client, stream)
        await everywhere(pair_cluster, consumers=set(), producers=set())
