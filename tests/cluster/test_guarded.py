"""A broker that wants to know who asks: the gateway's own account counts, whoever its client is; also TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from popgate.ids.receipt import OF_RETRY_V2, parse_receipt
from popgate.testing import CREATE_ON_USE, GatewayDidNotStart, GatewayProcess, running_gateway
from popgate.testing.papers import Papers
from popgate.testing.rocketmq import RocketMQ
from protocols.grpc.pb import definition_pb2 as pb
from protocols.grpc.pb import service_pb2 as rpc
from protocols.grpc.pb.duration_pb2 import Duration
from tests.cluster.brokers import ACCOUNT
from tests.cluster.load import PATIENT, Client, Code, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SIGNED = (f"remote.access_key={ACCOUNT[0]}", f"remote.secret_key={ACCOUNT[1]}")
TLS = ("remote.tls=true", "remote.verify=none")
SHORTEST = "limits.min_invisible_s=1"
_TRIES = 10


def options(cluster: RocketMQ, *settings: str) -> tuple[str, ...]:
    return ("--broker", cluster.url, *CREATE_ON_USE, *(word for one in settings for word in ("--set", one)))


def gateway_of(cluster: RocketMQ, *settings: str) -> contextlib.AbstractAsyncContextManager[GatewayProcess]:
    """A started one that waits for a server that stands still: a first connection with TLS is slow."""
    return running_gateway(options=options(cluster, *settings), environment=PATIENT)


@contextlib.asynccontextmanager
async def client_of(gateway: GatewayProcess) -> AsyncIterator[Client]:
    """One that claims to be somebody else."""
    client = Client(gateway.endpoint, "somebody")
    claim = "MQv2-HMAC-SHA1 Credential=nobody//RocketMQ, SignedHeaders=x-mq-date-time, Signature=00"
    client.metadata += (("authorization", claim), ("x-mq-date-time", "20260101T000000Z"))
    try:
        yield client
    finally:
        await client.close()


async def made(gateway: GatewayProcess, name: str) -> None:
    """Make a topic, and a group of the same name. Raises HTTPError."""
    for path in ("/api/topics", "/api/groups"):
        request = urllib.request.Request(
            gateway.admin + path, json.dumps({"name": name}).encode(), {"content-type": "application/json"}
        )
        await asyncio.to_thread(lambda one=request: urllib.request.urlopen(one, timeout=60).close())


def receive(name: str, invisible_s: int = 60, wait_s: int = 20) -> Any:
    return rpc.ReceiveMessageRequest(
        group=pb.Resource(name=name),
        message_queue=pb.MessageQueue(topic=pb.Resource(name=name), id=-1),
        filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
        batch_size=1,
        invisible_duration=Duration(seconds=invisible_s),
        long_polling_timeout=Duration(seconds=wait_s),
    )


async def one_of(client: Client, name: str, invisible_s: int = 60) -> pb.Message:
    async def ask() -> list[pb.Message]:
        messages, status = await client.stream("ReceiveMessage", receive(name, invisible_s))
        assert status.code in (Code.OK, Code.MESSAGE_NOT_FOUND), status
        return messages

    (message,) = await until(ask)
    return message


async def acknowledge(client: Client, name: str, message: pb.Message) -> None:
    assert await settled(client, name, message) == Code.OK


async def settled(client: Client, name: str, message: pb.Message) -> int:
    """The code of the answer to an acknowledgement."""
    entry = rpc.AckMessageEntry(
        message_id=message.system_properties.message_id,
        receipt_handle=message.system_properties.receipt_handle,
    )
    resource = pb.Resource(name=name)
    request = rpc.AckMessageRequest(topic=resource, group=resource, entries=[entry])
    answer = await client.call("AckMessage", request)
    (told,) = answer.entries
    return int(told.status.code)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_every_request_is_the_gateways_own_whoever_its_client_is(
    guarded_cluster: RocketMQ, tls: bool
) -> None:
    name, more = ("guarded-tls", TLS) if tls else ("guarded", ())
    async with gateway_of(guarded_cluster, *SIGNED, *more) as gateway:
        await made(gateway, name)
        async with client_of(gateway) as client:
            answer = await client.send(name, "hello")
            assert answer.status.code == Code.OK, answer
            message = await one_of(client, name)
            assert message.body == b"hello"
            await acknowledge(client, name, message)


async def test_without_the_right_secret_nothing_is_done_and_why_is_told(guarded_cluster: RocketMQ) -> None:
    async with gateway_of(guarded_cluster, *SIGNED) as gateway:
        await made(gateway, "refused")
    wrong = (SIGNED[0], "remote.secret_key=wrong")
    async with gateway_of(guarded_cluster, *wrong) as gateway, client_of(gateway) as client:
        answer = await client.send("refused", "hello")
        assert answer.status.code != Code.OK
        assert "NO_PERMISSION: 'check signature failed" in answer.status.message


async def test_a_certificate_that_nobody_vouches_for_is_not_believed(
    guarded_cluster: RocketMQ, tmp_path: Path
) -> None:
    strict = options(guarded_cluster, *SIGNED, "remote.tls=true")
    gateway = GatewayProcess(tmp_path, options=strict, environment=PATIENT)
    with pytest.raises(GatewayDidNotStart, match=r"(?i)certificate"):
        await asyncio.to_thread(gateway.start)


async def test_a_certificate_is_believed_by_its_authority_and_its_name_and_by_both_only(
    guarded_cluster: RocketMQ, papers: Papers, tmp_path: Path
) -> None:
    """Those of the name server and of the broker; a wrong one is refused at the first that is asked."""
    name, tls = "guarded-verified", ("remote.tls=true", "remote.verify=name")
    right = (*SIGNED, *tls, f"remote.ca_file={papers.authority}")
    async with gateway_of(guarded_cluster, *right) as gateway, client_of(gateway) as client:
        await made(gateway, name)
        assert (await client.send(name, "hello")).status.code == Code.OK
        message = await one_of(client, name)
        assert message.body == b"hello"
        await acknowledge(client, name, message)
    (tmp_path / "others").mkdir()
    others = Papers(tmp_path / "others").authority
    for wrong, told in (
        ((f"remote.ca_file={others}",), "its certificate is not believed"),
        (
            (f"remote.ca_file={papers.authority}", "remote.server_name=broker.test"),
            "not believed.*broker.test",
        ),
    ):
        doubting = options(guarded_cluster, *SIGNED, *tls, *wrong)
        refused = GatewayProcess(tmp_path / "data", options=doubting, environment=PATIENT)
        with pytest.raises(GatewayDidNotStart, match=told):
            await asyncio.to_thread(refused.start)


async def test_redeliveries_of_retry_topics_of_the_second_kind_are_finished(
    guarded_cluster: RocketMQ,
) -> None:
    async with gateway_of(guarded_cluster, *SIGNED, SHORTEST) as gateway, client_of(gateway) as client:
        for number in range(_TRIES):
            # With such a name retry topics of the first kind are ambiguous.
            name = f"again_and_again_{number}"
            await made(gateway, name)
            again = await redelivered(client, name)
            code = await settled(client, name, again)
            if time.time_ns() // 1_000_000 < parse_receipt(again.system_properties.receipt_handle).due_ms:
                assert code == Code.OK
                break  # else the machine stood still: it may be refused, and come once more
        else:
            pytest.fail("no acknowledgement was answered in time")
        messages, _ = await client.stream("ReceiveMessage", receive(name, wait_s=13))
        assert messages == []


async def redelivered(client: Client, name: str) -> pb.Message:
    """A message that was sent, given back, and came again."""
    assert (await client.send(name, "hello")).status.code == Code.OK
    first = await one_of(client, name)
    resource = pb.Resource(name=name)
    request = rpc.ChangeInvisibleDurationRequest(
        topic=resource,
        group=resource,
        receipt_handle=first.system_properties.receipt_handle,
        invisible_duration=Duration(seconds=1),
    )
    changed = await client.call("ChangeInvisibleDuration", request)
    assert changed.status.code == Code.OK, changed
    again = await one_of(client, name, invisible_s=2)
    assert (again.body, again.system_properties.delivery_attempt) == (b"hello", 2)
    assert parse_receipt(again.system_properties.receipt_handle).topic_type == OF_RETRY_V2
    return again
