"""The rights by which a gateway keeps the numbers of several brokers and of their queues (ADR 12)."""

from __future__ import annotations

import asyncio
import json

import pytest

from popgate.testing import GatewayProcess
from popgate.testing.remoting import RemotingClient
from popgate.testing.rocketmq import RocketMQ
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import V4_9_4
from tests.cluster.brokers import ACCOUNT
from tests.cluster.calls import made
from tests.cluster.rights import DOOR, SECRET, add_user, gateway_of, response_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

DOORS = (*DOOR, "remoting://127.0.0.1:0")
GROUP, BROKERS = "Group:numbers of queues", "Topic:.brokers"
CASES = {"brokers": BROKERS, "group": GROUP, "topic": "Topic:numbered-topic", "all": ""}
"""What the account lacks `Sub` on, by name. What was kept once is read without a right: all come last."""


async def numbers_unkept(gateway: GatewayProcess) -> int:
    return int(json.loads(await response_of(gateway, "GET", "cluster"))["gateway"]["numbers_unkept"])


async def route_of(gateway: GatewayProcess, topic: str) -> str:
    """Why a client of 4.9.4, which names no broker, gets no route of a topic of several brokers."""
    host, _, port = gateway.addresses[1].partition("://")[2].rpartition(":")
    client = await RemotingClient.connect(host, int(port), version=V4_9_4)
    response = await client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    await client.close()
    return "" if response.code == ResponseCode.SUCCESS else str(response.remark)


async def test_numbers_need_rights_on_names_of_their_own(ruled_two_cluster: RocketMQ) -> None:
    outcomes = {}
    for case, missing in CASES.items():
        name = f"numbered-{case}"
        async with gateway_of(ruled_two_cluster, *ACCOUNT) as administrator:
            await made(administrator, name)
        rights = {(f"Topic:{name}", "Get"), (f"Topic:{name}", "Sub"), (GROUP, "Sub"), (BROKERS, "Sub")}
        rights.discard((missing, "Sub"))
        await asyncio.to_thread(add_user, ruled_two_cluster, name, sorted(rights))
        async with gateway_of(ruled_two_cluster, name, SECRET, listen=DOORS) as gateway:
            outcomes[case] = await numbers_unkept(gateway), await route_of(gateway, name)
    print(outcomes)
    assert {case: unkept for case, (unkept, _) in outcomes.items()} == {
        "brokers": 1,
        "group": 1,
        "topic": 0,
        "all": 0,
    }
    refused = {case for case, (_, refusal) in outcomes.items() if refusal}
    assert refused == {"group", "topic"}
    for case in refused:
        assert f"User:numbered-{case} has no permission" in outcomes[case][1]
