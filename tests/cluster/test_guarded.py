"""A broker that wants to know who asks: the gateway's own account counts, whoever its client is; also TLS."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from popgate.ids.receipt import OF_RETRY_V2, parse_receipt
from popgate.testing import CREATE_ON_USE, GatewayDidNotStart, GatewayProcess, running_gateway
from popgate.testing.papers import Papers
from popgate.testing.rocketmq import RocketMQ
from tests.cluster.brokers import ACCOUNT
from tests.cluster.calls import acknowledge, made, one_of, receive, redelivered, retry_kind, settled
from tests.cluster.load import PATIENT, Client, Code

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


async def test_the_certificate_that_a_rocketmq_makes_up_for_itself(
    ruled_cluster: RocketMQ, tmp_path: Path
) -> None:
    """As shipped, without any setting of TLS, it has one that nobody vouches for."""
    strict = options(ruled_cluster, *SIGNED, "remote.tls=true")
    refused = GatewayProcess(tmp_path, options=strict, environment=PATIENT)
    with pytest.raises(GatewayDidNotStart, match="its certificate is not believed"):
        await asyncio.to_thread(refused.start)
    async with gateway_of(ruled_cluster, *SIGNED, *TLS) as gateway, client_of(gateway) as client:
        await made(gateway, "self-signed")
        assert (await client.send("self-signed", "hello")).status.code == Code.OK
        message = await one_of(client, "self-signed")
        assert message.body == b"hello"
        await acknowledge(client, "self-signed", message)


async def test_redeliveries_of_retry_topics_of_the_second_kind_are_finished(
    guarded_cluster: RocketMQ,
) -> None:
    async with gateway_of(guarded_cluster, *SIGNED, SHORTEST) as gateway, client_of(gateway) as client:
        for number in range(_TRIES):
            # With such a name retry topics of the first kind are ambiguous.
            name = f"again_and_again_{number}"
            await made(gateway, name)
            again = await redelivered(client, name, invisible_s=2)
            assert retry_kind(again) == OF_RETRY_V2
            code = await settled(client, name, again)
            if time.time_ns() // 1_000_000 < parse_receipt(again.system_properties.receipt_handle).due_ms:
                assert code == Code.OK
                break  # else the machine stood still: it may be refused, and come once more
        else:
            pytest.fail("no acknowledgement was answered in time")
        messages, _ = await client.stream("ReceiveMessage", receive(name, wait_s=13))
        assert messages == []
