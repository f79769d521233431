"""A controller makes another replica the master."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from popgate.testing import CREATE_ON_USE, GatewayProcess, running_gateway
from popgate.testing.rocketmq import JavaServer, RocketMQ
from tests.cluster.brokers import chosen
from tests.cluster.load import PATIENT, Load, until

pytestmark = [pytest.mark.slow, pytest.mark.counted, pytest.mark.timeout(1800)]

CAUSE = "the master died, and the new one had heard of the group's positions some seconds before"


async def another_leads(cluster: RocketMQ, dead: JavaServer) -> bool:
    """Whether the controllers that are left have chosen a leader."""
    try:
        return await asyncio.to_thread(cluster.leading_controller) is not dead
    except KeyError:
        return False


async def loses_its_master(cluster: RocketMQ, load: Load) -> None:
    """Kill the master; another one is chosen, and the dead one comes back as its slave."""
    master = cluster.master()
    fault = load.records.fault("broker-a", cause=CAUSE)
    await asyncio.to_thread(master.kill)
    await until(lambda: chosen(cluster, master))
    fault.is_over()
    await load.outlasts()
    assert cluster.master() is not master
    await asyncio.to_thread(master.start)
    await load.works(200)


def gateway_of(cluster: RocketMQ) -> contextlib.AbstractAsyncContextManager[GatewayProcess]:
    return running_gateway(options=("--broker", cluster.url, *CREATE_ON_USE), environment=PATIENT)


async def test_scenario_11_the_master_that_a_controller_chose_is_followed_within_seconds(
    controlled_cluster: RocketMQ,
) -> None:
    async with (
        gateway_of(controlled_cluster) as gateway,
        Load(gateway.endpoint, controlled_cluster, "controlled", "controlled") as load,
    ):
        await load.works(200)
        await loses_its_master(controlled_cluster, load)
        await load.ends()


async def test_scenario_11_the_leading_controller_of_three_is_lost_and_then_the_master(
    three_controllers_cluster: RocketMQ,
) -> None:
    """No client notices the first; the next leader chooses the next master."""
    cluster = three_controllers_cluster
    async with (
        gateway_of(cluster) as gateway,
        Load(gateway.endpoint, cluster, "controlled", "controlled") as load,
    ):
        await load.works(200)
        leader = cluster.leading_controller()
        fault = load.records.fault()
        await asyncio.to_thread(leader.kill)
        await until(lambda: another_leads(cluster, leader))
        fault.is_over()
        await load.outlasts()
        assert not load.records.failures
        await loses_its_master(cluster, load)
        await asyncio.to_thread(leader.start)
        await load.works(200)
        await load.ends()
