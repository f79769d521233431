"""A controller makes another replica the master."""

from __future__ import annotations

import asyncio

import pytest

from popgate.testing import CREATE_ON_USE, running_gateway
from popgate.testing.rocketmq import JavaServer, RocketMQ
from tests.cluster.load import PATIENT, Load, until

pytestmark = [pytest.mark.slow, pytest.mark.counted, pytest.mark.timeout(1800)]

CAUSE = "the master died, and the new one had heard of the group's positions some seconds before"


async def chosen(cluster: RocketMQ, dead: JavaServer) -> bool:
    """Whether a name server tells of another master; that is RocketMQ's own work."""
    try:
        return await asyncio.to_thread(cluster.master) is not dead
    except KeyError:
        return False


async def test_scenario_11_the_master_that_a_controller_chose_is_followed_within_seconds(
    controlled_cluster: RocketMQ,
) -> None:
    async with (
        running_gateway(
            options=("--broker", controlled_cluster.url, *CREATE_ON_USE), environment=PATIENT
        ) as gateway,
        Load(gateway.endpoint, controlled_cluster, "controlled", "controlled") as load,
    ):
        await load.works(200)
        master = controlled_cluster.master()
        fault = load.records.fault("broker-a", cause=CAUSE)
        await asyncio.to_thread(master.kill)
        await until(lambda: chosen(controlled_cluster, master))
        fault.is_over()
        await load.outlasts()
        assert controlled_cluster.master() is not master
        await asyncio.to_thread(master.start)
        await load.works(200)
        await load.ends()
