"""Revocation lists for the certificates of a real RocketMQ: each of its servers has one of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from popgate.testing import GatewayDidNotStart, GatewayProcess, running_gateway
from popgate.testing.papers import Papers
from popgate.testing.rocketmq import RocketMQ
from tests.cluster.brokers import QUEUES, end_of, make
from tests.cluster.calls import acknowledge, one_of
from tests.cluster.load import PATIENT, Client, Code, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

BROKERS = ("broker-a", "broker-b")
SENDS = 2 * QUEUES * len(BROKERS)
"""Two to each queue."""


@pytest.fixture
def lists(papers: Papers, tmp_path: Path) -> Path:
    """The file of revocation lists; nothing is revoked."""
    file = tmp_path / "lists.pem"
    file.write_bytes(papers.revocations())
    return file


def renew(lists: Path, data: bytes) -> None:
    """As operators do: a file that is written in part is never there."""
    fresh = lists.with_suffix(".new")
    fresh.write_bytes(data)
    os.replace(fresh, lists)


def options(cluster: RocketMQ, papers: Papers, lists: Path) -> tuple[str, ...]:
    remote = {"tls": "true", "verify": "name", "ca_file": papers.authority, "crl_file": lists}
    return (
        "--broker",
        cluster.url,
        *(word for name, value in remote.items() for word in ("--set", f"remote.{name}={value}")),
    )


class Site:
    """A gateway before the cluster, a client of it, and a topic with a group of the same name."""

    def __init__(self, cluster: RocketMQ, gateway: GatewayProcess, client: Client, name: str) -> None:
        self.gateway, self.client, self.name = gateway, client, name
        self._cluster = cluster
        self._sent: set[str] = set()

    async def send(self) -> None:
        """Some messages, whose answers must all be successes."""
        for _ in range(SENDS):
            body = f"m{len(self._sent)}"
            answer = await self.client.send(self.name, body)
            assert answer.status.code == Code.OK, answer
            self._sent.add(body)

    async def stored(self) -> list[int]:
        """How many messages each broker has."""
        return [
            await asyncio.to_thread(end_of, self._cluster.brokers[broker, 0].address, broker, self.name)
            for broker in BROKERS
        ]

    async def consume(self) -> None:
        """All that was sent, and nothing else."""
        bodies = set()
        while len(bodies) < len(self._sent):
            message = await one_of(self.client, self.name)
            await acknowledge(self.client, self.name, message)
            assert message.body.decode() not in bodies
            bodies.add(message.body.decode())
        assert bodies == self._sent

    async def look(self) -> None:
        """Have the gateway look at its files, as it also does for each new connection."""
        page = f"{self.gateway.admin}/metrics"
        await asyncio.to_thread(lambda: urllib.request.urlopen(page, timeout=60).close())

    def refusal(self) -> str:
        """What the log says of refused certificates, the same in each worker; empty: none was refused."""
        events = [json.loads(line) for line in self.gateway.log.splitlines() if "is not used" in line]
        workers = {event["process"]: event["event"] for event in events}
        assert len(workers) == len(events), "it is said once"
        assert len(set(workers.values())) <= 1, workers
        return next(iter(workers.values()), "")


@contextlib.asynccontextmanager
async def site(cluster: RocketMQ, papers: Papers, lists: Path, name: str) -> AsyncIterator[Site]:
    await asyncio.to_thread(make, cluster, (name,))
    async with running_gateway(options=options(cluster, papers, lists), environment=PATIENT) as gateway:
        client = Client(gateway.endpoint, "somebody")
        try:
            yield Site(cluster, gateway, client, name)
        finally:
            await client.close()


def sentence(cluster: RocketMQ, papers: Papers, lists: Path, broker: str) -> str:
    return (
        f"{cluster.brokers[broker, 0].address} is not used: its certificate is not believed: certificate"
        f" revoked (or an authority in its chain), by remote.crl_file, {lists}; subject 'CN={broker}', serial"
        f" {papers.serial(broker)}, valid from "
    )


async def test_a_revoked_broker_is_left_out_until_it_is_taken_off_the_list(
    certified_cluster: RocketMQ, papers: Papers, lists: Path
) -> None:
    """Open connections stay, the other broker serves on, and nothing is restarted but the broker."""
    cluster = certified_cluster
    broker = cluster.brokers["broker-a", 0]
    async with site(cluster, papers, lists, "revoked-later") as one:
        await one.send()
        before = await one.stored()
        assert min(before) > 0, "both brokers are used"

        renew(lists, papers.revocations("broker-a"))
        await until(lambda: "were renewed" in one.gateway.log, turn=one.look)
        await one.send()
        kept = await one.stored()
        assert kept[0] > before[0], "its open connection stays"

        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(broker.start)
        await until(one.refusal)
        await one.send()
        assert await one.stored() == [kept[0], kept[1] + SENDS]
        assert sentence(cluster, papers, lists, "broker-a") in one.refusal()

        renew(lists, papers.revocations())

        async def is_back() -> bool:
            await one.send()
            return (await one.stored())[0] > kept[0]

        await until(is_back)
        await one.consume()


async def test_a_gateway_starts_without_a_revoked_broker(
    certified_cluster: RocketMQ, papers: Papers, lists: Path
) -> None:
    cluster = certified_cluster
    renew(lists, papers.revocations("broker-b"))
    async with site(cluster, papers, lists, "revoked-before") as one:
        await one.send()
        assert await one.stored() == [SENDS, 0]
        await one.consume()
        assert sentence(cluster, papers, lists, "broker-b") in one.refusal()


async def test_a_revoked_name_server_is_asked_nothing(
    certified_cluster: RocketMQ, papers: Papers, lists: Path, tmp_path: Path
) -> None:
    """The brokers' certificates are good, but nobody else says where they are."""
    renew(lists, papers.revocations("namesrv"))
    chosen = options(certified_cluster, papers, lists)
    gateway = GatewayProcess(tmp_path / "data", options=chosen, environment=PATIENT)
    with pytest.raises(GatewayDidNotStart) as refused:
        await asyncio.to_thread(gateway.start)
    serial = papers.serial("namesrv")
    assert f"by remote.crl_file, {lists}; subject 'CN=namesrv', serial {serial}" in str(refused.value)
