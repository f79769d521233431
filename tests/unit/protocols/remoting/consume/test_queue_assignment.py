"""What consumers read that leave it to the gateway: shares of queues, or messages popped."""

from __future__ import annotations

import json

import pytest

from popgate.context import Context
from popgate.model import GroupConfig, Permission, Queue
from popgate.wire.bodies.heartbeats import ConsumerData, HeartbeatData
from popgate.wire.bodies.small_bodies import AssignmentQuery, decode_assignments
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.json_syntax.fastjson import dumps
from processors.members.queue_assignment import share_of
from protocols.remoting.clients.heartbeats import Heartbeats
from protocols.remoting.consume.queue_assignment import QueueAssignmentHandler
from tests.unit.protocols.remoting.conftest import Caller, FakePeer, Stage

QUERY, MODE = RequestCode.QUERY_ASSIGNMENT, RequestCode.SET_MESSAGE_REQUEST_MODE


@pytest.fixture
async def caller(stage: Stage) -> Caller:
    """Of two members of the group."""
    await stage.topic("orders", queues=5)
    room = Heartbeats(stage.door_context)
    for client_id in ("c@1", "c@2"):
        body = HeartbeatData(client_id, consumers=(ConsumerData("readers"),)).encode()
        await Caller(room, peer=FakePeer()).ok(RequestCode.HEART_BEAT, body=body)
    return Caller(QueueAssignmentHandler(stage.door_context))


async def assigned(caller: Caller, client_id: str = "c@1", **more: str) -> list[tuple[int, str]]:
    body = AssignmentQuery("orders", "readers", client_id, **more).encode()
    answer = await caller.ok(QUERY, body=body)
    return [(one.queue.queue_id, one.mode) for one in decode_assignments(answer.body)]


def mode(word: str = "POP", topic: str = "orders", group: str = "readers", share: object = 0) -> bytes:
    return dumps({"topic": topic, "consumerGroup": group, "mode": word, "popShareQueueNum": share})


async def test_members_share_the_queues(caller: Caller) -> None:
    assert await assigned(caller, "c@1") == [(0, "PULL"), (1, "PULL"), (2, "PULL")]
    assert await assigned(caller, "c@2") == [(3, "PULL"), (4, "PULL")]
    assert await assigned(caller, "c@2", strategy="AVG_BY_CIRCLE") == [(1, "PULL"), (3, "PULL")]
    assert await assigned(caller, "stranger") == []
    assert len(await assigned(caller, "stranger", model="BROADCASTING")) == 5


async def test_members_of_a_broadcast_group_share_nothing(stage: Stage, caller: Caller) -> None:
    await stage.processor.metadata.update_group(Context(), GroupConfig("readers", broadcast=True))
    caller.context.client_id = "c@1"
    assert len(await assigned(caller, "c@1")) == 5


async def test_a_group_that_pops_is_told_so_again_after_a_restart(caller: Caller, stage: Stage) -> None:
    await caller.ok(MODE, body=mode(share=3))
    assert await assigned(caller, "c@1") == await assigned(caller, "c@2") == [(-1, "POP")]
    config = await stage.processor.metadata.group(Context(), "readers")
    assert config.attributes == {"popgate.popped.orders": "3"}
    await caller.ok(MODE, body=mode("PULL"))
    assert len(await assigned(caller)) == 3


async def test_a_mode_makes_its_group(caller: Caller, stage: Stage) -> None:
    await caller.ok(MODE, body=mode(group="fresh"))
    assert (await stage.processor.metadata.group(Context(), "fresh")).name == "fresh"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (mode("PUSH"), ResponseCode.SYSTEM_ERROR),
        (mode(topic="%RETRY%readers"), ResponseCode.NO_PERMISSION),
        (mode(topic="or ders"), ResponseCode.MESSAGE_ILLEGAL),
        (mode(group=""), ResponseCode.MESSAGE_ILLEGAL),
        (mode(share=-2), ResponseCode.SYSTEM_ERROR),
        (mode(share=1 << 40), ResponseCode.SYSTEM_ERROR),
        (mode(share="x"), ResponseCode.SYSTEM_ERROR),
        (b"", ResponseCode.SYSTEM_ERROR),
        (b"[]", ResponseCode.SYSTEM_ERROR),
        (json.dumps({"topic": 7}).encode(), ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_modes_that_cannot_be(caller: Caller, stage: Stage, body: bytes, code: ResponseCode) -> None:
    assert (await caller.ask(MODE, body=body)).code == code
    assert (await stage.processor.metadata.group(Context(), "readers")).attributes == {}


async def test_topics_that_a_group_pops_have_a_bound(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("processors.members.queue_assignment._MOST_TOPICS", 1)
    await caller.ok(MODE, body=mode())
    await caller.ok(MODE, body=mode(share=5))
    assert "limit" in (await caller.ask(MODE, body=mode(topic="parcels"))).remark


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"7",
        AssignmentQuery("or ders", "readers", "c@1").encode(),
        AssignmentQuery("orders", "no good", "c@1").encode(),
        AssignmentQuery("orders", "readers", "c@1", "MACHINE_ROOM").encode(),
    ],
)
async def test_queries_that_cannot_be(caller: Caller, body: bytes) -> None:
    refused = await caller.ask(QUERY, body=body)
    assert refused.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL)


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE"])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 8, 9])
@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_every_queue_is_read_by_exactly_one(strategy: str, count: int, members: int) -> None:
    queues = [Queue("b", number, Permission.READ_WRITE) for number in range(count)]
    clients = [f"c{number}" for number in range(members)]
    shares = [share_of(strategy, queues, clients[::-1], client) for client in clients]
    assert sorted(one.queue_id for share in shares for one in share) == list(range(count))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
