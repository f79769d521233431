"""A broker comes and goes under load, as operators do it."""

from __future__ import annotations

import asyncio

import pytest

from popgate.testing import CREATE_ON_USE, running_gateway
from popgate.testing.rocketmq import BrokerPlan, RocketMQ
from popgate.testing.rocketmq.requests import addresses_known
from tests.cluster.brokers import configure, end_of, make_at, wipe_write_permission
from tests.cluster.load import PATIENT, Load, until

pytestmark = [pytest.mark.slow, pytest.mark.counted, pytest.mark.timeout(1800)]

NEW = "broker-c"


async def test_scenario_11_a_broker_is_added_drained_and_removed_under_load_and_no_client_notices(
    pair_cluster: RocketMQ,
) -> None:
    quick = {"POPGATE_REMOTE__ROUTE_REFRESH_S": "5", **PATIENT}
    async with (
        running_gateway(options=("--broker", pair_cluster.url, *CREATE_ON_USE), environment=quick) as gateway,
        Load(gateway.endpoint, pair_cluster, "leaving", "leaving") as load,
    ):
        records = load.records
        await load.works(brokers=("broker-a", "broker-b"))
        server = await asyncio.to_thread(pair_cluster.add_broker, BrokerPlan(NEW))
        try:
            await asyncio.to_thread(make_at, server.address, ("leaving",))
            await load.works(200, brokers=(NEW,))

            def stored() -> int:
                return end_of(server.address, NEW, "leaving")

            await asyncio.to_thread(configure, server, brokerPermission="4")
            await asyncio.to_thread(wipe_write_permission, pair_cluster, NEW)

            async def left_alone() -> bool:
                before = await asyncio.to_thread(stored)
                await load.works(200)
                return await asyncio.to_thread(stored) == before

            # A broker without permission takes what is sent to it all the same: routes must be told anew.
            await until(left_alone)
            count = await asyncio.to_thread(stored)
            await until(lambda: count == sum(acks[0].broker == NEW for acks in records.acks.values()))
            await load.looks_up()
            await asyncio.to_thread(server.stop)

            async def forgotten() -> bool:
                known = [await asyncio.to_thread(addresses_known, one) for one in pair_cluster.addresses]
                return not any(NEW in brokers for brokers in known)

            # It takes leave, and name servers take it off a moment after they have answered that.
            await until(forgotten)
        finally:
            server.kill()
            del pair_cluster.brokers[NEW, 0]
        await load.works(200)
        await load.ends()
        assert records.failures == []
