"""Name servers die, one and then all of them: what was known serves."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest

from popgate.testing import GatewayProcess, running_gateway
from popgate.testing.rocketmq import RocketMQ
from tests.cluster.load import Load, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


async def figure(gateway: GatewayProcess, name: str) -> float:
    """A figure as it is told at /metrics."""

    def read() -> str:
        with urllib.request.urlopen(f"{gateway.admin}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    for line in (await asyncio.to_thread(read)).splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise AssertionError(f"{name} is not told")


async def test_scenario_11_without_any_name_server_the_last_good_routes_serve_and_say_how_old_they_are(
    pair_cluster: RocketMQ,
) -> None:
    """No call fails, neither when one dies nor without any; new ones are believed when they know brokers."""
    quick = {"POPGATE_REMOTE__ROUTE_REFRESH_S": "1"}
    async with (
        running_gateway(options=("--broker", pair_cluster.url), environment=quick) as gateway,
        Load(gateway.endpoint, "ns", "ns") as load,
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
        assert await figure(gateway, "popgate_broker_route_failures_total") > 0
        await load.works(brokers=("broker-a", "broker-b"))
        async with Load(gateway.endpoint, "ns", "ns", producers=1, consumers=0) as another:
            await until(lambda: len(another.records.sent) > 10)
            assert another.records.failures == []
        load.records.fault()
        # One starts and knows no broker until it hears of them.
        await asyncio.to_thread(pair_cluster.name_servers[0].start)

        async def fresh() -> bool:
            return await figure(gateway, "popgate_broker_oldest_route_s") < 1.5

        await until(fresh)
        await load.works(brokers=("broker-a", "broker-b"))
        load.records.sent |= another.records.sent
        await load.ends()
        assert load.records.failures == []
