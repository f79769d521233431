"""The cluster's own tools see who is connected to a gateway, with what, and until when."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc.aio
import pytest

from popgate.testing import CREATE_ON_USE, running_gateway
from popgate.testing.rocketmq import RocketMQ
from popgate.testing.rocketmq.asking import addresses_known, ask
from popgate.wire.bodies.heartbeats import ConsumerConnection, decode_producer_connections
from popgate.wire.frames.codes import RequestCode, ResponseCode
from protocols.grpc.pb import definition_pb2 as pb
from protocols.grpc.pb import service_pb2 as rpc
from tests.cluster.load import until
from tests.e2e.clients import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NAME = "seen"
CONSUMERS, PRODUCER = {"consumer-1", "consumer-2"}, "producer-1"


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


async def test_tools_of_the_cluster_see_clients_with_their_subscriptions_until_they_leave(
    pair_cluster: RocketMQ,
) -> None:
    masters = [known[0] for known in addresses_known(pair_cluster.addresses[0]).values()]

    async def everywhere(*, consumers: set[str], producers: set[str]) -> None:
        async def hold() -> bool:
            for address in masters:
                ids, subscriptions = await asyncio.to_thread(consumers_at, address)
                if ids != consumers or (ids and (NAME, "*") not in subscriptions):
                    return False
                if await asyncio.to_thread(producers_at, address) != producers:
                    return False
            return True

        await until(hold, what="brokers know just these clients")

    async with running_gateway(options=("--broker", pair_cluster.url, *CREATE_ON_USE)) as gateway:
        there: dict[str, tuple[Client, Any]] = {}
        for name in (*sorted(CONSUMERS), PRODUCER):
            client = Client(gateway.endpoint, name)
            kind = pb.PRODUCER if name == PRODUCER else pb.PUSH_CONSUMER
            stream, settings = client.telemetry(kind, NAME, "" if name == PRODUCER else NAME)
            await stream.write(settings)
            assert (await stream.read()).status.code == pb.OK
            there[name] = client, stream
        await everywhere(consumers=CONSUMERS, producers={PRODUCER})
        await shown(pair_cluster, *CONSUMERS, NAME, command=("consumerConnection", "-g", NAME))
        await shown(pair_cluster, PRODUCER, command=("producerConnection", "-g", NAME, "-t", NAME))
        await leave(*there.pop("consumer-1"))
        await everywhere(consumers={"consumer-2"}, producers={PRODUCER})
        for client, stream in there.values():
            await leave(client, stream)
        await everywhere(consumers=set(), producers=set())
