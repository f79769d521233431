"""brokers.remote.settle.send_back: the broker that has the message is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from popgate.context import Context
from popgate.errors import BrokerTimeout, BrokerUnavailable, GatewayError, GroupNotFound, NotFound
from popgate.model import SendBack
from popgate.testing.peers import ScriptedNameServer, ScriptedPeer
from popgate.wire.frames.codes import RequestCode, ResponseCode

BACK, GET = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
CONTEXT = Context(client_id="c")
REQUEST = SendBack("g", "broker-b", 77, 5, 4, "T", "M")
Cluster = tuple[ScriptedNameServer, dict[str, ScriptedPeer]]


def group(request: Any) -> Any:
    if request.fields["group"] != "g":
        return request.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group")
    return request.answer(0, body=json.dumps({"groupName": "g"}).encode())


@pytest.fixture
async def broker(make_broker: Any, asking_cluster: Cluster) -> Any:
    for master in asking_cluster[1].values():
        master.on(GET, group)
        master.on(BACK, lambda request: request.answer(0))
    made: Any = await make_broker(quiet=True)
    return made


async def test_the_broker_that_is_named_is_told_all(broker: Any, asking_cluster: Cluster) -> None:
    first, second = asking_cluster[1].values()
    await broker.send_back(CONTEXT, REQUEST)
    assert first.of(BACK) == []
    (asked,) = second.of(BACK)
    expected = {
        "group": "g",
        "offset": "77",
        "delayLevel": "5",
        "originMsgId": "M",
        "originTopic": "T",
        "maxReconsumeTimes": "3",
        "bname": "broker-b",
    }
    assert expected.items() <= asked.fields.items()


async def test_the_attempts_of_the_group_count_where_none_are_said(
    broker: Any, asking_cluster: Cluster
) -> None:
    await broker.send_back(CONTEXT, SendBack("g", "broker-a", 1, -1))
    (asked,) = asking_cluster[1]["broker-a"].of(BACK)
    assert "maxReconsumeTimes" not in asked.fields
    assert asked.fields["delayLevel"] == "-1"


@pytest.mark.parametrize(
    ("code", "remark", "error"),
    [
        (ResponseCode.SYSTEM_ERROR, "look message by offset failed, 77", NotFound),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "gone", GroupNotFound),
        (ResponseCode.SERVICE_NOT_AVAILABLE, "not now", BrokerUnavailable),
        (ResponseCode.FLUSH_DISK_TIMEOUT, "slow", BrokerTimeout),
        (ResponseCode.SYSTEM_ERROR, "something", GatewayError),
    ],
)
async def test_what_the_broker_says_is_told(
    broker: Any, asking_cluster: Cluster, code: int, remark: str, error: type[GatewayError]
) -> None:
    asking_cluster[1]["broker-b"].on(BACK, lambda request: request.answer(code, remark))
    with pytest.raises(error):
        await broker.send_back(CONTEXT, REQUEST)
    assert len(asking_cluster[1]["broker-b"].of(BACK)) == 1


async def test_what_is_not_there_is_told(broker: Any) -> None:
    for name in ("other", "no name"):
        with pytest.raises(GroupNotFound):
            await broker.send_back(CONTEXT, SendBack(name, "broker-a", 1))
    with pytest.raises(BrokerUnavailable):
        await broker.send_back(CONTEXT, SendBack("g", "no-such-broker", 1))
