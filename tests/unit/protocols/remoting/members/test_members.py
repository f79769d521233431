"""Members of groups: who is told of them, and what they are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from popgate.context import Context
from popgate.ids.message_id import make_message_id
from popgate.kinds import Principal, ResourceKind
from popgate.model import FilterKind, Message, QueueOffsets, StartFrom
from popgate.wire.bodies.consumer_info import decode_offsets
from popgate.wire.bodies.heartbeats import (
    ACTIVELY,
    BROADCASTING,
    ConsumerConnection,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    decode_producer_connections,
)
from popgate.wire.bodies.small_bodies import MessageQueue
from popgate.wire.frames.codes import RequestCode, ResponseCode
from processors.clients.client_registry import ClientKind
from processors.policies.registry import Policies
from protocols.remoting.clients.heartbeats import Heartbeats
from protocols.remoting.members.members import Members
from tests.unit.processors.conftest import FakeClient
from tests.unit.protocols.remoting.conftest import Caller, FakePeer, Refusing, Stage

LIST = RequestCode.GET_CONSUMER_LIST_BY_GROUP
CONSUMERS, PRODUCERS = RequestCode.GET_CONSUMER_CONNECTION_LIST, RequestCode.GET_PRODUCER_CONNECTION_LIST
RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
CHANGED = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
WAS_RESET = RequestCode.RESET_CONSUMER_CLIENT_OFFSET


class House:
    """Both rooms, and clients of theirs."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.heartbeats = Heartbeats(stage.door_context)
        self.members = Members(stage.door_context)
        self.tool = Caller(self.members, peer=FakePeer("10.9.9.9:9"))

    async def join(self, number: int, *groups: str, language: str = "JAVA", **settings: Any) -> FakePeer:
        peer = FakePeer(f"10.1.1.{number}:{number}", language=language)
        consumers = tuple(
            ConsumerData(group, (SubscriptionData("orders", version=number),), **settings) for group in groups
        )
        body = HeartbeatData(f"c@{number}", ("makers",), consumers).encode()
        await Caller(self.heartbeats, peer=peer).ok(RequestCode.HEART_BEAT, body=body)
        return peer


@pytest.fixture
async def house(stage: Stage) -> House:
    return House(stage)


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def told(peer: FakePeer, code: int) -> list[Mapping[str, str]]:
    return [fields for seen, fields, _ in peer.told if seen == code]


async def test_the_list_of_a_group(house: House) -> None:
    await house.join(2, "readers")
    await house.join(1, "readers", "others")
    answer = await house.tool.ok(LIST, {"consumerGroup": "readers"})
    assert json.loads(answer.body) == {"consumerIdList": ["c@1", "c@2"]}
    answer = await house.tool.ok(LIST, {"consumerGroup": "others"})
    assert json.loads(answer.body) == {"consumerIdList": ["c@1"]}


async def test_each_client_of_a_broadcast_group_reads_all_queues(house: House, stage: Stage) -> None:
    """Its positions are its own: what it takes over from another one it would read from anywhere."""
    await stage.group("news", broadcast=True)
    for number in (1, 2):
        peer = await house.join(number, "news")
        member = Caller(house.members, peer=peer, client_id=f"c@{number}")
        answer = await member.ok(LIST, {"consumerGroup": "news"})
        assert json.loads(answer.body) == {"consumerIdList": [f"c@{number}"]}
    answer = await house.tool.ok(LIST, {"consumerGroup": "news"})
    assert json.loads(answer.body) == {"consumerIdList": ["c@1", "c@2"]}


async def test_clients_of_other_doors_are_in_the_list(house: House, stage: Stage) -> None:
    await house.join(1, "readers")
    stage.processor.clients.register(FakeClient("grpc", kind=ClientKind.PUSH_CONSUMER, group="readers"))
    answer = await house.tool.ok(LIST, {"consumerGroup": "readers"})
    assert json.loads(answer.body) == {"consumerIdList": ["c@1", "grpc"]}


async def test_nobody_is_told_as_a_broker_tells_it(house: House) -> None:
    peer = await house.join(1, "readers")
    peer.close()
    for group in ("readers", "strangers"):
        refused = await house.tool.ask(LIST, {"consumerGroup": group})
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark == f"no consumer for this group, {group}"
    assert (await house.tool.ask(LIST)).remark == "the request has no field consumerGroup"
    assert (await house.tool.ask(LIST, {"consumerGroup": "no good"})).code == ResponseCode.MESSAGE_ILLEGAL


async def test_members_are_told_of_each_other(house: House) -> None:
    first = await house.join(1, "readers")
    stranger = await house.join(9, "others")
    await turn()
    first.told.clear()
    stranger.told.clear()
    second = await house.join(2, "readers")
    await turn()
    for peer in (first, second):
        assert told(peer, CHANGED) == [{"consumerGroup": "readers"}]
    second.close()
    await turn()
    assert len(told(first, CHANGED)) == 2
    assert told(stranger, CHANGED) == []


async def test_what_changes_in_one_turn_is_told_once(house: House) -> None:
    first = await house.join(1, "readers")
    others = [await house.join(number, "readers") for number in (2, 3, 4)]
    await turn()
    first.told.clear()
    for peer in others:
        peer.close()
    await turn()
    assert told(first, CHANGED) == [{"consumerGroup": "readers"}]


async def test_a_client_of_another_door_changes_a_group_too(house: House, stage: Stage) -> None:
    first = await house.join(1, "readers")
    await turn()
    first.told.clear()
    stage.processor.clients.register(FakeClient("grpc", kind=ClientKind.PUSH_CONSUMER, group="readers"))
    await turn()
    assert told(first, CHANGED) == [{"consumerGroup": "readers"}]


async def test_who_cannot_be_told_is_left_out(house: House) -> None:
    first = await house.join(1, "readers")
    first.full = True
    second = await house.join(2, "readers")
    await turn()
    assert told(second, CHANGED)


async def test_the_connections_of_a_group(house: House, stage: Stage) -> None:
    await house.join(1, "readers", consume_type=ACTIVELY, model=BROADCASTING)
    stage.processor.clients.register(
        FakeClient(
            "grpc",
            kind=ClientKind.PUSH_CONSUMER,
            group="readers",
            subscriptions={"parcels": (FilterKind.SQL92, "a > 1")},
        )
    )
    answer = await house.tool.ok(CONSUMERS, {"consumerGroup": "readers"})
    found = ConsumerConnection.decode(answer.body)
    assert (found.consume_type, found.model) == (ACTIVELY, BROADCASTING)
    assert {(one.client_id, one.address) for one in found.connections} == {
        ("c@1", "10.1.1.1:1"),
        ("grpc", ""),
    }
    assert {topic: one.kind for topic, one in found.subscriptions.items()} == {
        "orders": "TAG",
        "parcels": "SQL92",
    }
    refused = await house.tool.ask(CONSUMERS, {"consumerGroup": "strangers"})
    assert refused.code == ResponseCode.CONSUMER_NOT_ONLINE


async def test_the_connections_of_producers(house: House) -> None:
    await house.join(1)
    await house.join(2)
    answer = await house.tool.ok(PRODUCERS, {"producerGroup": "makers", "topic": "orders"})
    assert {one.client_id for one in decode_producer_connections(answer.body)} == {"c@1", "c@2"}
    refused = await house.tool.ask(PRODUCERS, {"producerGroup": "strangers", "topic": "orders"})
    assert refused.code == ResponseCode.SYSTEM_ERROR


class TestOfAnAccountThatMayNotLook:
    @pytest.fixture
    def policies(self) -> Policies:
        return Policies(authorizer=Refusing("stranger", ResourceKind.CLUSTER))

    async def test_it_is_told_of_no_producers(self, house: House) -> None:
        await house.join(1)
        house.tool.context.principal = Principal("stranger")
        refused = await house.tool.ask(PRODUCERS, {"producerGroup": "makers", "topic": "orders"})
        assert refused.code == ResponseCode.NO_PERMISSION


async def filled(stage: Stage, *, queues: int = 2, each: int = 5) -> None:
    """Messages in every queue of `orders`, a second apart."""
    await stage.topic("orders", queues=queues)
    for _ in range(each):
        stage.clock.advance(1)
        for queue_id in range(queues):
            message = Message("orders", b"x", make_message_id(), broker=stage.broker.name, queue_id=queue_id)
            await stage.processor.send(Context(), [message])


async def test_a_reset_is_done_and_members_are_told(house: House, stage: Stage) -> None:
    await filled(stage)
    java, other = await house.join(1, "readers"), await house.join(2, "others")
    in_c = await house.join(3, "readers", language="CPP")
    fields = {"topic": "orders", "group": "readers", "timestamp": -1, "isForce": True}
    answer = await house.tool.ok(RESET, fields)
    name = stage.broker.name
    expected = {MessageQueue("orders", name, 0): 5, MessageQueue("orders", name, 1): 5}
    assert decode_offsets(answer.body) == expected
    (body,) = [body for code, _, body in java.told if code == WAS_RESET]
    assert decode_offsets(body) == expected
    assert told(java, WAS_RESET) == [
        {"topic": "orders", "group": "readers", "timestamp": "-1", "isForce": "true"}
    ]
    (body,) = [body for code, _, body in in_c.told if code == WAS_RESET]
    assert {(one["queueId"], one["offset"]) for one in json.loads(body)["offsetTable"]} == {(0, 5), (1, 5)}
    assert told(other, WAS_RESET) == []
    assert await stage.processor.offsets.committed(Context(), "readers", "orders", name, 1) == 5


async def test_a_reset_to_a_time(house: House, stage: Stage) -> None:
    await filled(stage, queues=1)
    await house.join(1, "readers")
    at = stage.clock.now_ms() - 1500
    answer = await house.tool.ok(RESET, {"topic": "orders", "group": "readers", "timestamp": at})
    assert list(decode_offsets(answer.body).values()) == [3]


async def test_without_force_nobody_goes_forwards(house: House, stage: Stage) -> None:
    await filled(stage)
    await house.join(1, "readers")
    name = stage.broker.name
    await stage.processor.offsets.commit(Context(), "readers", "orders", name, 0, 1)
    await stage.processor.offsets.commit(Context(), "readers", "orders", name, 1, 4)
    at = stage.clock.now_ms() - 2500
    fields = {"topic": "orders", "group": "readers", "timestamp": at, "isForce": False}
    answer = await house.tool.ok(RESET, fields)
    assert {queue.queue_id: done for queue, done in decode_offsets(answer.body).items()} == {0: 1, 1: 2}
    assert await stage.processor.offsets.committed(Context(), "readers", "orders", name, 1) == 2
    assert await stage.processor.offsets.committed(Context(), "readers", "orders", name, 0) == 1


async def test_who_need_not_go_back_is_not_told(house: House, stage: Stage) -> None:
    await filled(stage)
    peer = await house.join(1, "readers")
    name = stage.broker.name
    for queue_id in (0, 1):
        await stage.processor.offsets.commit(Context(), "readers", "orders", name, queue_id, 1)
    fields = {"topic": "orders", "group": "readers", "timestamp": stage.clock.now_ms(), "isForce": False}
    answer = await house.tool.ok(RESET, fields)
    assert {queue.queue_id: done for queue, done in decode_offsets(answer.body).items()} == {0: 1, 1: 1}
    assert told(peer, WAS_RESET) == []


async def test_a_reset_of_one_queue(house: House, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[tuple[object, ...]] = []
    reset_queue = stage.processor.offsets.reset_queue

    async def watched(context: Context, *words: Any) -> None:
        changed.append(words)
        await reset_queue(context, *words)

    monkeypatch.setattr(stage.processor.offsets, "reset_queue", watched)
    await filled(stage)
    await house.join(1, "readers")
    fields = {"topic": "orders", "group": "readers", "timestamp": -1, "queueId": 1, "offset": 3}
    answer = await house.tool.ok(RESET, fields)
    assert {queue.queue_id: done for queue, done in decode_offsets(answer.body).items()} == {1: 3}
    assert changed == [("readers", "orders", stage.broker.name, 1, 3)]
    refused = await house.tool.ask(RESET, {**fields, "queueId": 7})
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "no readable queue 7" in refused.remark


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (
            {"topic": "orders", "group": "strangers", "timestamp": 0},
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ),
        ({"topic": "nowhere", "group": "readers", "timestamp": 0}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "orders", "group": "readers", "timestamp": -2}, ResponseCode.SYSTEM_ERROR),
        ({"topic": "orders", "group": "readers", "timestamp": "soon"}, ResponseCode.SYSTEM_ERROR),
        ({"topic": "orders"}, ResponseCode.SYSTEM_ERROR),
        ({"topic": "or ders", "group": "readers"}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
async def test_a_reset_that_cannot_be(
    house: House, stage: Stage, fields: dict[str, object], code: ResponseCode
) -> None:
    await filled(stage, each=1)
    peer = await house.join(1, "readers")
    refused = await house.tool.ask(RESET, fields)
    assert refused.code == code, refused.remark
    assert told(peer, WAS_RESET) == []


async def test_members_are_told_of_resets_that_come_by_other_doors(house: House, stage: Stage) -> None:
    await filled(stage, each=3)
    peer = await house.join(1, "readers")
    await stage.processor.offsets.reset(Context(), "readers", "orders", StartFrom.LAST)
    (body,) = [body for code, _, body in peer.told if code == WAS_RESET]
    assert set(decode_offsets(body).values()) == {3}


async def test_members_of_a_door_that_opens_during_a_reset_are_told_of_it(
    house: House, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a reload opens one."""
    await filled(stage, each=3)
    first = await house.join(1, "readers")
    monkeypatch.setattr(house.members, "_is_here", lambda peer: peer is first)
    reset = stage.broker.reset
    opened: list[FakePeer] = []

    async def and_open(group: str, topic: str, to: StartFrom | int) -> QueueOffsets:
        was_set = await reset(group, topic, to)
        Members(stage.door_context, is_here=opened.__contains__)
        opened.append(await house.join(2, "readers"))
        return was_set

    monkeypatch.setattr(stage.broker, "reset", and_open)
    await stage.processor.offsets.reset(Context(), "readers", "orders", StartFrom.LAST)
    for peer in (first, *opened):
        (body,) = [body for code, _, body in peer.told if code == WAS_RESET]
        assert set(decode_offsets(body).values()) == {3}


async def test_what_a_reset_set_is_told_though_the_group_has_read_on_meanwhile(
    house: House, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(stage, queues=1)
    peer = await house.join(1, "readers")
    reset = stage.broker.reset

    async def and_read_on(group: str, topic: str, to: StartFrom | int) -> QueueOffsets:
        was_set = await reset(group, topic, to)
        await stage.broker.commit(Context(), group, topic, stage.broker.name, 0, 4)
        return was_set

    monkeypatch.setattr(stage.broker, "reset", and_read_on)
    answer = await house.tool.ok(RESET, {"topic": "orders", "group": "readers", "timestamp": 0})
    (body,) = [body for code, _, body in peer.told if code == WAS_RESET]
    expected = {MessageQueue("orders", stage.broker.name, 0): 0}
    assert (decode_offsets(answer.body), decode_offsets(body)) == (expected, expected)


async def test_a_reset_is_done_also_when_members_cannot_be_told(house: House, stage: Stage) -> None:
    await filled(stage, each=3)
    (await house.join(1, "readers")).full = True
    await stage.processor.offsets.reset(Context(), "readers", "orders", StartFrom.LAST)
    assert await stage.processor.offsets.committed(Context(), "readers", "orders", stage.broker.name, 0) == 3
