"""brokers.remote.clients.group_members: the cluster is asked who is in a group."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brokers.capabilities import GroupMember
from brokers.remote.clients.heartbeats import MEMBER_VERSION
from popgate.errors import BrokerUnavailable, GatewayError
from popgate.model import Reading
from popgate.testing.peers import ScriptedNameServer, ScriptedPeer
from popgate.wire.bodies.heartbeats import Connection, ConsumerConnection
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command

LIST = RequestCode.GET_CONSUMER_LIST_BY_GROUP
Cluster = tuple[ScriptedNameServer, dict[str, ScriptedPeer]]


@pytest.fixture
async def broker(make_broker: Any) -> Any:
    made: Any = await make_broker()
    return made


def tells(*names: str) -> Any:
    body = b'{"consumerIdList":[%b]}' % b",".join(b'"%b"' % name.encode() for name in names)
    return lambda request: request.answer(0, body=body)


def refuses(code: int, remark: str) -> Any:
    return lambda request: request.answer(code, remark)


async def test_one_broker_of_the_cluster_is_asked(broker: Any, asking_cluster: Cluster) -> None:
    masters = asking_cluster[1].values()
    for master in masters:
        master.on(LIST, tells("c2", "c1"))
    assert await broker.consumers("g") == ["c1", "c2"]
    (asked,) = [one for master in masters for one in master.of(LIST)]
    assert asked.fields["consumerGroup"] == "g"


async def test_a_broker_that_knows_no_consumer_says_so_with_an_error(
    broker: Any, asking_cluster: Cluster
) -> None:
    for master in asking_cluster[1].values():
        master.on(LIST, refuses(ResponseCode.SYSTEM_ERROR, "no consumer for this group, g"))
    assert await broker.consumers("g") == []
    assert await broker.consumers("no name") == []


async def test_another_broker_is_asked_when_one_cannot_answer(broker: Any, asking_cluster: Cluster) -> None:
    first, second = asking_cluster[1].values()
    first.on(LIST, tells("c"))
    second.on(LIST, tells("c"))
    assert await broker.consumers("g") == ["c"]
    await first.stop()
    assert [await broker.consumers("g") for _ in range(8)] == [["c"]] * 8
    await second.stop()
    with pytest.raises(BrokerUnavailable):
        await broker.consumers("g")


async def test_what_else_a_broker_says_is_told(broker: Any, asking_cluster: Cluster) -> None:
    for master in asking_cluster[1].values():
        master.on(LIST, refuses(ResponseCode.NO_PERMISSION, "not you"))
    with pytest.raises(GatewayError, match="not you"):
        await broker.consumers("g")


async def test_a_notice_of_a_broker_is_passed_on(broker: Any, asking_cluster: Cluster) -> None:
    changed: list[str] = []
    broker.on_members(changed.append)
    for one in asking_cluster[1].values():
        one.on(LIST, tells())
    master = asking_cluster[1]["broker-a"]
    while not master.connections:
        await broker.consumers("g")
    notice = Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields={"consumerGroup": "g"})
    master.connections[0].say(notice)
    async with asyncio.timeout(60):
        while not changed:
            await asyncio.sleep(0)
    assert changed == ["g"]


CONNECTIONS = RequestCode.GET_CONSUMER_CONNECTION_LIST


def connects(*told: tuple[str, int]) -> Any:
    body = ConsumerConnection(tuple(Connection(name, version=version) for name, version in told)).encode()
    return lambda request: request.answer(0, body=body)


async def test_members_are_those_of_all_brokers(broker: Any, asking_cluster: Cluster) -> None:
    first, second = asking_cluster[1].values()
    first.on(CONNECTIONS, connects(("concurrent", MEMBER_VERSION + 2), ("pulls", MEMBER_VERSION + 3)))
    second.on(CONNECTIONS, connects(("concurrent", MEMBER_VERSION + 2), ("direct", 493)))
    assert {one.client_id: one for one in await broker.members("g")} == {
        "concurrent": GroupMember("concurrent", True, Reading.CONCURRENT),
        "pulls": GroupMember("pulls", True, Reading.TRUE_PULL),
        "direct": GroupMember("direct", False, Reading.UNKNOWN),
    }
    assert first.of(CONNECTIONS)[0].fields["consumerGroup"] == "g"
    assert await broker.members("no name") == []


async def test_a_client_that_comes_by_two_ways_is_told_twice(broker: Any, asking_cluster: Cluster) -> None:
    for master in asking_cluster[1].values():
        master.on(CONNECTIONS, connects(("c", MEMBER_VERSION + 2), ("c", 493)))
    assert sorted(one.gateway for one in await broker.members("g")) == [False, True]


@pytest.mark.parametrize("version", [0, 493, MEMBER_VERSION - 1, MEMBER_VERSION + 4, -1, 2**31 - 1])
async def test_any_other_version_is_that_of_no_gateway(
    broker: Any, asking_cluster: Cluster, version: int
) -> None:
    for master in asking_cluster[1].values():
        master.on(CONNECTIONS, connects(("c", version)))
    assert await broker.members("g") == [GroupMember("c", False, Reading.UNKNOWN)]


async def test_one_broker_that_answers_is_enough_to_know_members(
    broker: Any, asking_cluster: Cluster
) -> None:
    first, second = asking_cluster[1].values()
    first.on(CONNECTIONS, refuses(ResponseCode.CONSUMER_NOT_ONLINE, "the consumer group[g] not online"))
    second.on(CONNECTIONS, connects(("c", MEMBER_VERSION)))
    assert await broker.members("g") == [GroupMember("c", True, Reading.NEUTRAL)]
    await second.stop()
    assert await broker.members("g") == []
    await first.stop()
    with pytest.raises(BrokerUnavailable):
        await broker.members("g")


@pytest.mark.parametrize(
    "script",
    [
        refuses(ResponseCode.NO_PERMISSION, "not you"),
        lambda request: request.answer(0, body=b"{"),
        lambda request: request.answer(0, body=b'{"connectionSet":[{"clientId":"c","version":"x"}]}'),
        lambda request: request.answer(0, body=b'{"connectionSet":[7]}'),
    ],
)
async def test_what_makes_no_sense_of_members_is_not_believed(
    broker: Any, asking_cluster: Cluster, script: Any
) -> None:
    for master in asking_cluster[1].values():
        master.on(CONNECTIONS, script)
    with pytest.raises(GatewayError, match=r"not you|no sense"):
        await broker.members("g")
