"""brokers.remote.clients.queue_assignment: brokers decide what a consumer reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brokers.capabilities import AssignedQueue
from popgate.context import Context
from popgate.errors import BrokerTimeout, GatewayError, TopicNotFound
from popgate.testing.peers import ScriptedNameServer, ScriptedPeer
from popgate.wire.bodies.small_bodies import Assignment, AssignmentQuery, MessageQueue, encode_assignments
from popgate.wire.frames.codes import RequestCode

QUERY, MODE = int(RequestCode.QUERY_ASSIGNMENT), int(RequestCode.SET_MESSAGE_REQUEST_MODE)
Cluster = tuple[ScriptedNameServer, dict[str, ScriptedPeer]]


@pytest.fixture
async def broker(make_broker: Any) -> Any:
    return await make_broker(quiet=True)


async def assigned(broker: Any, topic: str = "T", *, broadcast: bool = False) -> list[AssignedQueue]:
    return await broker.assigned(Context(), topic, "readers", "c@1", "AVG", broadcast=broadcast)


async def test_any_broker_of_the_topic_says_what_a_client_reads(broker: Any, asking_cluster: Cluster) -> None:
    body = encode_assignments(
        [
            Assignment(MessageQueue("T", "broker-a", -1), "POP"),
            Assignment(MessageQueue("T", "broker-b", 3), "PULL"),
            Assignment(MessageQueue("other", "broker-b", 3), "PULL"),
        ]
    )
    masters = asking_cluster[1].values()
    for master in masters:
        master.on(QUERY, lambda request: request.answer(0, body=body))
    found = await assigned(broker, broadcast=True)
    assert found == [AssignedQueue("broker-a", -1, True), AssignedQueue("broker-b", 3)]
    (asked,) = [one for master in masters for one in master.of(QUERY)]
    assert AssignmentQuery.decode(asked.body) == AssignmentQuery("T", "readers", "c@1", "AVG", "BROADCASTING")


async def test_what_a_broker_says_may_be_wrong(broker: Any, asking_cluster: Cluster) -> None:
    for master in asking_cluster[1].values():
        master.on(QUERY, lambda request: request.answer(0, body=b"{"))
    with pytest.raises(BrokerTimeout, match="cannot be read"):
        await assigned(broker)
    for master in asking_cluster[1].values():
        master.on(QUERY, lambda request: request.answer(1, "no such strategy"))
    with pytest.raises(GatewayError, match="no such strategy"):
        await assigned(broker)
    with pytest.raises(TopicNotFound):
        await assigned(broker, "unknown")


async def test_all_brokers_are_told_how_a_topic_is_read(broker: Any, asking_cluster: Cluster) -> None:
    for master in asking_cluster[1].values():
        master.on(MODE, lambda request: request.answer(0))
    await broker.set_popped(Context(), "T", "readers", True, 3)
    for master in asking_cluster[1].values():
        (asked,) = master.of(MODE)
        assert json.loads(asked.body) == {
            "consumerGroup": "readers",
            "mode": "POP",
            "popShareQueueNum": 3,
            "topic": "T",
        }
    asking_cluster[1]["broker-b"].on(MODE, lambda request: request.answer(16, "no"))
    with pytest.raises(GatewayError, match="no"):
        await broker.set_popped(Context(), "T", "readers", False, 0)
