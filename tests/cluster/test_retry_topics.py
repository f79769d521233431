"""Retry topics of the second kind (`enableRetryTopicV2`), and brokers that change between the kinds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
import uuid
from typing import Any

import pytest

from popgate.ids.receipt import OF_RETRY_V1, OF_RETRY_V2
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.testing import CREATE_ON_USE, GatewayProcess, running_gateway
from popgate.testing.rocketmq import RocketMQ
from popgate.testing.rocketmq.requests import addresses_known
from tests.cluster.calls import acknowledge, give_back, made, one_of, receive, redelivered, retry_kind
from tests.cluster.load import PATIENT, Client, Code, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SHORTEST = "limits.min_invisible_s=1"


async def turn(cluster: RocketMQ, second: bool) -> None:
    """Have all masters make retry topics of the second kind, or of the first."""
    for known in (await asyncio.to_thread(addresses_known, cluster.addresses[0])).values():
        change = ("-k", "enableRetryTopicV2", "-v", "true" if second else "false")
        printed = await asyncio.to_thread(cluster.admin, "updateBrokerConfig", "-b", known[0], *change)
        assert "success" in printed, printed


def gateway_of(cluster: RocketMQ) -> contextlib.AbstractAsyncContextManager[GatewayProcess]:
    options = ("--broker", cluster.url, *CREATE_ON_USE, "--set", SHORTEST)
    return running_gateway(options=options, environment=PATIENT)


async def bury(client: Client, name: str, message: pb.Message) -> None:
    resource, system = pb.Resource(name=name), message.system_properties
    request = rpc.ForwardMessageToDeadLetterQueueRequest(
        topic=resource,
        group=resource,
        receipt_handle=system.receipt_handle,
        message_id=system.message_id,
        delivery_attempt=system.delivery_attempt,
        max_delivery_attempts=system.delivery_attempt,
    )
    answer = await client.call("ForwardMessageToDeadLetterQueue", request)
    assert answer.status.code == Code.OK, answer


async def dead_letters(gateway: GatewayProcess, group: str) -> list[Any]:
    path = f"{gateway.admin}/api/groups/{group}/dead-letters/messages"
    answer = await asyncio.to_thread(lambda: urllib.request.urlopen(path, timeout=60).read())
    messages: list[Any] = json.loads(answer)["messages"]
    return messages


async def test_a_switch_of_the_kind_of_retry_topics_loses_nothing_that_is_under_way(
    pair_cluster: RocketMQ,
) -> None:
    name = f"switched-{uuid.uuid4().hex[:8]}"
    async with gateway_of(pair_cluster) as gateway:
        client = Client(gateway.endpoint, "switcher")
        await made(gateway, name)
        held = await redelivered(client, name, "held as a retry")
        assert retry_kind(held) == OF_RETRY_V1
        assert (await client.send(name, "held for the first time")).status.code == Code.OK
        first = await one_of(client, name)
        assert (await client.send(name, "waits as a retry")).status.code == Code.OK
        await give_back(client, name, await one_of(client, name))
        await turn(pair_cluster, second=True)
        try:
            await acknowledge(client, name, held)
            waited = await one_of(client, name)
            assert (waited.body, waited.system_properties.delivery_attempt) == (b"waits as a retry", 2)
            await acknowledge(client, name, waited)
            await give_back(client, name, first)
            again = await one_of(client, name)
            assert (again.body, again.system_properties.delivery_attempt) == (b"held for the first time", 2)
            assert retry_kind(again) == OF_RETRY_V2
            await give_back(client, name, again)
            once_more = await one_of(client, name)
            assert (once_more.body, once_more.system_properties.delivery_attempt) == (again.body, 3)
            assert retry_kind(once_more) == OF_RETRY_V2
            await bury(client, name, once_more)
            messages, _ = await client.stream("ReceiveMessage", receive(name, wait_s=13))
            assert messages == []
            letters = await until(lambda: dead_letters(gateway, name))
            assert [one["body"] for one in letters] == [once_more.body.decode()]
        finally:
            await turn(pair_cluster, second=False)
        await client.close()


async def test_a_switch_back_keeps_what_is_held_and_makes_retries_of_the_first_kind(
    pair_cluster: RocketMQ,
) -> None:
    """What is held is acknowledged by the handle that it was given out with, whichever kind is on then."""
    name = f"switched-back-{uuid.uuid4().hex[:8]}"
    await turn(pair_cluster, second=True)
    try:
        async with gateway_of(pair_cluster) as gateway:
            client = Client(gateway.endpoint, "switcher")
            await made(gateway, name)
            held = await redelivered(client, name, "held")
            assert retry_kind(held) == OF_RETRY_V2
            await turn(pair_cluster, second=False)
            await acknowledge(client, name, held)
            fresh = await redelivered(client, name, "fresh")
            assert retry_kind(fresh) == OF_RETRY_V1
            await acknowledge(client, name, fresh)
            await client.close()
    finally:
        await turn(pair_cluster, second=False)
