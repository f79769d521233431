"""Name servers die, one and then all of them: what was known serves."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest

from popgate.testing import CREATE_ON_USE, GatewayProcess, running_gateway
from popgate.testing.rocketmq import RocketMQ
from popgate.testing.rocketmq.requests import addresses_known
from tests.cluster.brokers import register_now
from tests.cluster.load import PATIENT, Load, until

pytestmark = [pytest.mark.slow, pytest.mark.counted, pytest.mark.timeout(1800)]


async def figure(gateway: GatewayProcess, name: str) -> float:
    """A figure as it is told at /metrics."""

    def read() -> str:
        with urllib.request.urlopen(f"{gateway.admin}/metrics", timeout=60) as answer:
            return str(answer.read().decode())

    for line in (await asyncio.to_thread(read)).splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise AssertionError(f"{name} is not told")


async def test_scenario_11_without_any_name_server_the_last_good_routes_serve_and_say_how_old_they_are(
    pair_cluster: RocketMQ,
) -> None:
    """No call fails and nothing comes twice, neither when one dies nor without any, nor when one starts that
    hears of slaves before it hears of their masters; new ones are believed when they know brokers."""
    quick = {"POPGATE_REMOTE__ROUTE_REFRESH_S": "1", **PATIENT}
    async with (
        running_gateway(options=("--broker", pair_cluster.url, *CREATE_ON_USE), environment=quick) as gateway,
        Load(gateway.endpoint, pair_cluster, "ns", "ns") as load,
    ):
        await load.works(brokers=("broker-a", "broker-b"))
        for server in pair_cluster.name_servers:
            load.records.fault()
            await asyncio.to_thread(server.kill)
            await load.works(brokers=("broker-a", "broker-b"))

        async def old() -> bool:
            silent = await figure(gateway, "popgate_broker_name_servers_silent_s")
            return min(silent, await figure(gateway, "popgate_broker_oldest_route_s")) > 2

        await until(old)

        async def failed() -> bool:
            return await figure(gateway, "popgate_broker_route_failures_total") > 0

        await until(failed)
        await load.works(brokers=("broker-a", "broker-b"))
        async with Load(gateway.endpoint, pair_cluster, "ns", "ns", producers=1, consumers=0) as another:
            await until(lambda: len(another.records.sent) > 10)
            assert another.records.failures == []
        load.records.fault()
        # One starts and knows no broker until it hears of them: of the slaves first. That of broker-b then
        # stands in for its master, and does not know what was acknowledged since the name servers died.
        server = pair_cluster.name_servers[0]
        await asyncio.to_thread(server.start)
        for name in ("broker-b", "broker-a"):
            await asyncio.to_thread(register_now, pair_cluster.brokers[name, 1])

        async def fresh() -> bool:
            return await figure(gateway, "popgate_broker_oldest_route_s") < 1.5

        await until(fresh)
        await load.works(brokers=("broker-a", "broker-b"))

        async def complete() -> bool:
            known = await asyncio.to_thread(addresses_known, server.address)
            return all(known.get(name, {}).keys() == {0, 1} for name in ("broker-a", "broker-b"))

        await until(complete)
        await load.works(brokers=("broker-a", "broker-b"))
        load.records.sent |= another.records.sent
        await load.ends()
        assert load.records.failures == []
