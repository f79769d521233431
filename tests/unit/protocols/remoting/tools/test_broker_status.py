"""What tools ask about a broker as a whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from popgate.context import Context
from popgate.filters.tags import tag_code
from popgate.ids.message_id import make_message_id
from popgate.model import Message, MessageType, Progress
from popgate.wire.bodies.heartbeats import ConsumerData, HeartbeatData, SubscriptionData
from popgate.wire.bodies.small_bodies import TopicList, decode_group_list, decode_kv_table
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.json_syntax.fastjson import loads
from protocols.remoting.clients.heartbeats import Heartbeats
from protocols.remoting.produce.transactions import ask_producer
from protocols.remoting.requests import DoorContext
from protocols.remoting.tools.broker_status import BrokerStatusHandler
from tests.support.turns import Turns
from tests.unit.protocols.remoting.conftest import ADDRESS, Caller, Stage

INDEX, READERS = RequestCode.QUERY_CONSUME_QUEUE, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO


def rooms(door_context: DoorContext) -> tuple[BrokerStatusHandler, Heartbeats]:
    return BrokerStatusHandler(door_context), Heartbeats(door_context, ask_producer)


@pytest.fixture
def caller(stage: Stage) -> Caller:
    return Caller(*rooms(stage.door_context))


async def send(stage: Stage, count: int, topic: str = "orders", tag: str = "") -> None:
    await stage.processor.send(
        Context(), [Message(topic, b"x", make_message_id(), tag=tag, queue_id=0) for _ in range(count)]
    )


async def beat(caller: Caller) -> None:
    """A client that produces for a group, and reads orders for another one."""
    readers = ConsumerData("readers", (SubscriptionData("orders", "a || b", tags=("a", "b")),))
    await caller.ok(
        RequestCode.HEART_BEAT, body=HeartbeatData("client@1", ("producers",), (readers,)).encode()
    )


def told(body: bytes) -> Any:
    return loads(body)


class TestTheBroker:
    async def test_how_it_is(self, stage: Stage, caller: Caller) -> None:
        stage.clock.advance(90_061)
        table = decode_kv_table((await caller.ok(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
        assert (table["brokerVersion"], table["brokerActive"]) == ("479", "true")
        assert table["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
        assert table["popgate.clients"] == "0"

    async def test_its_settings(self, caller: Caller) -> None:
        answer = await caller.ok(RequestCode.GET_BROKER_CONFIG)
        lines = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
        assert f"{lines['brokerIP1']}:{lines['listenPort']}" == ADDRESS
        assert (lines["brokerName"], lines["brokerClusterName"]) == ("popgate", "DefaultCluster")
        assert lines["autoCreateTopicEnable"] == "true"
        assert "counter" in json.loads(answer.fields["version"])


class TestTopicsAndGroups:
    async def test_topics_of_a_cluster(self, stage: Stage, caller: Caller) -> None:
        await stage.topic()
        answer = await caller.ok(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"})
        assert TopicList.decode(answer.body).topics == ("orders",)
        for fields in ({"cluster": "other"}, {}):
            refused = await caller.ask(RequestCode.GET_TOPICS_BY_CLUSTER, fields)
            assert refused.code == ResponseCode.SYSTEM_ERROR

    @pytest.mark.parametrize(
        "code",
        [RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER],
    )
    async def test_topics_of_the_system(self, stage: Stage, caller: Caller, code: int) -> None:
        await stage.topic()
        found = TopicList.decode((await caller.ok(code)).body)
        assert {"TBW102", "DefaultCluster", "popgate"} <= set(found.topics)
        assert "orders" not in found.topics

    async def test_who_reads_a_topic(self, stage: Stage, caller: Caller) -> None:
        await stage.topic()
        await stage.topic("others")
        await stage.group("late")
        await stage.group("idle")
        await send(stage, 1)
        await stage.processor.offsets.commit(Context(), "late", "orders", "popgate", 0, 1)
        await beat(caller)
        assert decode_group_list((await caller.ok(READERS, {"topic": "orders"})).body) == ("late", "readers")
        assert decode_group_list((await caller.ok(READERS, {"topic": "others"})).body) == ()
        assert (await caller.ask(READERS, {"topic": "unknown"})).code == ResponseCode.TOPIC_NOT_EXIST

    async def test_what_a_group_reads(self, stage: Stage, caller: Caller) -> None:
        await stage.topic()
        await stage.group()
        await stage.processor.offsets.commit(Context(), "readers", "orders", "popgate", 0, 0)
        answer = await caller.ok(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "readers"})
        assert TopicList.decode(answer.body).topics == ("orders",)
        refused = await caller.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "unknown"})
        assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    async def test_where_all_groups_stand(self, stage: Stage, caller: Caller) -> None:
        await stage.topic(queues=1)
        await stage.topic("ordered", queues=1, message_types=(MessageType.FIFO,))
        await stage.group()
        await send(stage, 3)
        for topic in ("orders", "ordered"):
            await stage.processor.offsets.commit(
                Context(), "readers", topic, "popgate", 0, 2 if topic == "orders" else 0
            )
        body = (await caller.ok(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False})).body
        part = told(body)
        assert (part["brokerAddr"], part["totalDiff"]) == (ADDRESS, 1)
        [group] = part["consumeStatsList"]
        assert list(group) == ["readers"]
        assert len(group["readers"]) == 2
        first = body[body.index(b'{"consumeTps"') :]
        assert b'"brokerOffset":3,"consumerOffset":2,"lastTimestamp":%d' % stage.clock.now_ms() in first
        ordered = told((await caller.ok(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": True})).body)
        assert len(ordered["consumeStatsList"][0]["readers"]) == 1

    async def test_others_get_a_turn_while_many_groups_are_told(
        self, stage: Stage, caller: Caller, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The embedded broker answers at once: all of 10,000 groups would take seconds."""
        await stage.topic(queues=1)
        for number in range(20):
            await stage.group(f"readers-{number}")
            await stage.processor.offsets.commit(Context(), f"readers-{number}", "orders", "popgate", 0, 0)
        progress, turns = stage.processor.metadata.progress, Turns()

        async def counted(context: Context, group: str, topic: str) -> Sequence[Progress]:
            turns.count()
            return await progress(context, group, topic)

        monkeypatch.setattr(stage.processor.metadata, "progress", counted)
        await caller.ok(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False})
        in_turn = turns.stop()
        assert (sum(in_turn), max(in_turn)) == (20, 1)


class TestClients:
    async def test_all_producers(self, stage: Stage, caller: Caller) -> None:
        await beat(caller)
        part = told((await caller.ok(RequestCode.GET_ALL_PRODUCER_INFO)).body)
        [one] = part["data"]["producers"]
        assert (one["clientId"], one["remoteIP"]) == ("client@1", caller.peer.address)
        assert one["lastUpdateTimestamp"] == stage.clock.now_ms()
        assert list(part["data"]) == ["producers"]


class TestIndex:
    async def test_entries_from_an_offset_on(self, stage: Stage, caller: Caller) -> None:
        await stage.topic()
        await send(stage, 4, tag="a")
        fields = {"topic": "orders", "queueId": 0, "index": 1, "count": 2}
        part = told((await caller.ok(INDEX, fields)).body)
        assert (part["minQueueIndex"], part["maxQueueIndex"], len(part["queueData"])) == (0, 4, 2)
        assert {one["tagsCode"] for one in part["queueData"]} == {tag_code("a")}
        assert all(one["physicSize"] > 0 for one in part["queueData"])
        assert "subscriptionData" not in part
        assert "filterData" not in part

    async def test_with_what_a_group_reads(self, stage: Stage, caller: Caller) -> None:
        await stage.topic()
        fields = {"topic": "orders", "queueId": 0, "index": 0, "count": 1, "consumerGroup": "readers"}
        assert told((await caller.ok(INDEX, fields)).body)["filterData"] == "'readers'@orders is not online!"
        await beat(caller)
        assert told((await caller.ok(INDEX, fields)).body)["subscriptionData"]["subString"] == "a || b"

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"topic": "unknown", "queueId": 0, "index": 0, "count": 1}, ResponseCode.TOPIC_NOT_EXIST),
            ({"topic": "orders", "queueId": 9, "index": 0, "count": 1}, ResponseCode.SYSTEM_ERROR),
            ({"topic": "orders", "queueId": 0, "count": 1}, ResponseCode.SYSTEM_ERROR),
            ({"topic": "orders", "queueId": 0, "index": "x"}, ResponseCode.SYSTEM_ERROR),
        ],
    )
    async def test_of_none(self, stage: Stage, caller: Caller, fields: dict[str, object], code: int) -> None:
        await stage.topic()
        assert (await caller.ask(INDEX, fields)).code == code
