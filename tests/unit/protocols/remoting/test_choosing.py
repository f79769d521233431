"""Members of groups that may be mapped: what they are told of each other, and how they are known."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brokers.client_registration import ConnectedClient
from popgate.model import Reading
from popgate.testing.clock import MovableClock
from popgate.wire.bodies.heartbeats import ACTIVELY, BROADCASTING, POP, ConsumerData, HeartbeatData
from popgate.wire.bodies.small_bodies import AssignmentQuery, MessageQueue, QueueLocks, decode_assignments
from popgate.wire.frames.codes import RequestCode
from popgate.wire.json_syntax.fastjson import dumps
from processors.limits import Limits
from protocols.remoting.clients.heartbeats import Heartbeats
from protocols.remoting.clients.remoting_client import consumer_key
from protocols.remoting.consume.pop import PopHandler
from protocols.remoting.consume.queue_assignment import QueueAssignmentHandler
from protocols.remoting.consume.queue_locks import QueueLockHandler
from protocols.remoting.members.members import Members
from tests.unit.processors.conftest import FakeClient
from tests.unit.protocols.remoting.conftest import Caller, FakePeer, Stage

LIST, QUERY = RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.QUERY_ASSIGNMENT
CHANGED = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


@pytest.fixture
def limits() -> Limits:
    return Limits(mapped_groups=("readers", "others"))


class House:
    """The rooms that have to do with members, and clients of theirs."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.mapping = stage.processor.mapped_groups
        self.heartbeats = Heartbeats(stage.door_context)
        self.rooms = (
            self.heartbeats,
            Members(stage.door_context, self.heartbeats.push_member),
            QueueLockHandler(stage.door_context),
            QueueAssignmentHandler(stage.door_context, self.heartbeats.push_member),
            PopHandler(stage.door_context),
        )

    async def join(self, number: int, *groups: str, **settings: Any) -> Caller:
        consumers = tuple(ConsumerData(group, **settings) for group in groups or ("readers",))
        caller = Caller(*self.rooms, peer=FakePeer(f"10.1.1.{number}:{number}"), client_id=f"c@{number}")
        body = HeartbeatData(f"c@{number}", ("makers",), consumers).encode()
        await caller.ok(RequestCode.HEART_BEAT, body=body)
        return caller

    def pulled(self, number: int, group: str = "readers") -> None:
        self.mapping.told(consumer_key(f"c@{number}", group), Reading.CONCURRENT)

    async def is_mapped(self, mapped: bool = True, group: str = "readers") -> None:
        await self.stage.until(self._advanced(lambda: self.mapping.is_mapped(group) is mapped))

    def _advanced(self, look: Any) -> Any:
        def moved() -> bool:
            self.stage.clock.advance(0.1)
            return bool(look())

        return moved


@pytest.fixture
async def house(stage: Stage) -> House:
    await stage.topic()
    return House(stage)


async def listed(caller: Caller, group: str = "readers") -> list[str]:
    found: list[str] = json.loads((await caller.ok(LIST, {"consumerGroup": group})).body)["consumerIdList"]
    return found


def notices(caller: Caller) -> int:
    return [code for code, _, _ in caller.peer.told].count(CHANGED)


async def test_each_member_of_a_mapped_group_is_told_of_itself_alone(house: House) -> None:
    one, two = await house.join(1), await house.join(2)
    tool = Caller(*house.rooms, peer=FakePeer("10.9.9.9:9"))
    assert await listed(one) == await listed(two) == await listed(tool) == ["c@1", "c@2"]
    house.pulled(1)
    # Whoever asks next is told what holds then.
    assert await listed(one) == ["c@1"]
    assert await listed(two) == ["c@2"]
    assert await listed(tool) == ["c@1", "c@2"]
    stranger = await house.join(3, "others")
    assert await listed(stranger) == ["c@1", "c@2"]


async def test_members_are_told_when_their_group_is_mapped_and_when_it_is_not(house: House) -> None:
    one, two = await house.join(1), await house.join(2)
    await house.is_mapped(mapped=False)
    await house.stage.pass_s(1)
    before = notices(one), notices(two)
    house.pulled(1)
    await house.is_mapped()
    await house.stage.until(lambda: notices(one) > before[0] and notices(two) > before[1])
    before = notices(one), notices(two)
    body = QueueLocks("readers", "c@2", (MessageQueue("orders", "popgate", 0),)).encode()
    await two.ok(RequestCode.LOCK_BATCH_MQ, body=body)
    assert not house.mapping.is_mapped("readers")  # before it can pull what it has locked
    await house.stage.until(lambda: notices(one) > before[0] and notices(two) > before[1])
    assert await listed(one) == ["c@1", "c@2"]


@pytest.mark.parametrize("settings", [{"model": BROADCASTING}, {"consume_type": ACTIVELY}])
async def test_one_that_reads_by_itself_keeps_its_group_on_true_pull(house: House, settings: Any) -> None:
    one = await house.join(1)
    house.pulled(1)
    await house.is_mapped()
    two = await house.join(2, **settings)
    await house.is_mapped(mapped=False)
    assert house.heartbeats.push_member(two.peer, "readers") is None
    assert await listed(one) == await listed(two) == ["c@1", "c@2"]
    await two.ok(RequestCode.UNREGISTER_CLIENT, {"clientID": "c@2", "consumerGroup": "readers"})
    await house.is_mapped()


async def test_those_that_pop_mind_nothing_and_see_everybody(house: House) -> None:
    one, two = await house.join(1), await house.join(2, consume_type=POP)
    house.stage.processor.clients.register(FakeClient("grpc@1", group="readers"))
    house.pulled(1)
    await house.is_mapped()
    assert await listed(one) == ["c@1"]
    assert await listed(two) == ["c@1", "c@2", "grpc@1"]


async def test_a_client_of_another_gateway_counts(house: House) -> None:
    await house.join(1)
    house.pulled(1)
    await house.is_mapped()
    house.stage.broker.client_is_here(
        ConnectedClient("far", "readers", True, key="far", reading=Reading.TRUE_PULL)
    )
    await house.is_mapped(mapped=False)
    house.stage.broker.client_left("far")
    await house.is_mapped()


async def test_members_of_a_mapped_group_are_assigned_all_queues(house: House) -> None:
    one, two = await house.join(1), await house.join(2)
    body = AssignmentQuery("orders", "readers", "c@2").encode()

    async def assigned(caller: Caller) -> list[int]:
        answer = await caller.ok(QUERY, body=body)
        return [each.queue.queue_id for each in decode_assignments(answer.body)]

    assert await assigned(two) == [2, 3]
    house.pulled(1)
    await house.is_mapped()
    assert await assigned(two) == [0, 1, 2, 3]
    assert await assigned(Caller(*house.rooms, peer=FakePeer("10.9.9.9:9"))) == [2, 3]
    assert await listed(one) == ["c@1"]


@pytest.mark.parametrize("group", ["readers", "not-named"])
async def test_a_push_consumer_that_pops_is_known_as_one_that_does(house: House, group: str) -> None:
    asking, popping = await house.join(1, group), await house.join(2, group)
    broker = house.stage.broker

    async def readings() -> dict[str, Reading]:
        return {one.client_id: one.reading for one in await broker.members(group)}

    before = Reading.UNKNOWN if group == "readers" else Reading.TRUE_PULL
    assert await readings() == {"c@1": before, "c@2": before}
    body = dumps({"topic": "orders", "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0})
    await asking.ok(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)
    await asking.ok(QUERY, body=AssignmentQuery("orders", group, "c@1").encode())
    assert await readings() == {"c@1": Reading.NEUTRAL, "c@2": before}
    wanted = {"consumerGroup": group, "topic": "orders", "queueId": 0, "maxMsgNums": 1}
    await popping.call(RequestCode.POP_MESSAGE, {**wanted, "invisibleTime": 60_000, "pollTime": 0})
    assert await readings() == {"c@1": Reading.NEUTRAL, "c@2": Reading.NEUTRAL}


async def test_a_connection_of_several_clients_is_known_by_any(house: House) -> None:
    one = await house.join(1)
    body = HeartbeatData("c@2", consumers=(ConsumerData("others"),)).encode()
    await one.ok(RequestCode.HEART_BEAT, body=body)
    found = house.heartbeats.push_member(one.peer, "readers")
    assert found is not None
    assert found.client_id == "c@1"
    assert house.heartbeats.push_member(one.peer, "nobody") is None
    assert house.heartbeats.push_member(FakePeer(), "readers") is None


async def test_a_connection_that_comes_back_is_mapped_with_its_heartbeat(
    house: House, clock: MovableClock
) -> None:
    one = await house.join(1)
    house.pulled(1)
    await house.is_mapped()
    one.peer.close()
    await house.is_mapped(mapped=False)
    clock.advance(30)
    await house.join(1)
    await house.is_mapped()
