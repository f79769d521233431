"""Administration of topics and groups, as tools and test suites ask for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from popgate.context import Context
from popgate.ids.message_id import make_message_id
from popgate.model import (
    CustomizedRetry,
    ExponentialRetry,
    GroupConfig,
    Message,
    MessageType,
    Permission,
    StartFrom,
    TopicConfig,
)
from popgate.wire.bodies import configs as wire
from popgate.wire.bodies.configs import (
    RetryPolicy,
    SubscriptionGroupConfig,
    decode_group_configs,
    decode_topic_configs,
)
from popgate.wire.bodies.offset_stats import ConsumeStats, QueueOffsets, TopicStats
from popgate.wire.bodies.small_bodies import MessageQueue
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.json_syntax.fastjson import dumps
from protocols.remoting.tools.config import ConfigHandler
from tests.unit.protocols.remoting.conftest import Caller, Stage

PUT_TOPIC, TOPIC = RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.GET_TOPIC_CONFIG
PUT_GROUP, GROUP = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG


def topic_fields(topic: str = "orders", **more: Any) -> dict[str, object]:
    """As mqadmin's updateTopic writes them."""
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        **more,
    }


@pytest.fixture
def caller(stage: Stage) -> Caller:
    return Caller(ConfigHandler(stage.door_context))


async def topic(stage: Stage, name: str = "orders") -> TopicConfig:
    return await stage.processor.metadata.topic(Context(), name)


async def group(stage: Stage, name: str = "readers") -> GroupConfig:
    return await stage.processor.metadata.group(Context(), name)


async def send(stage: Stage, count: int, name: str = "orders") -> None:
    await stage.processor.send(
        Context(), [Message(name, b"x", make_message_id(), queue_id=0) for _ in range(count)]
    )


class TestTopics:
    async def test_one_is_made_and_made_again(self, stage: Stage, caller: Caller) -> None:
        # A tool asks once for every broker of the route.
        for _ in range(2):
            await caller.ok(PUT_TOPIC, topic_fields())
        assert await topic(stage) == TopicConfig("orders", (), 4, 4)

    async def test_one_is_changed(self, stage: Stage, caller: Caller) -> None:
        await caller.ok(PUT_TOPIC, topic_fields())
        await caller.ok(PUT_TOPIC, topic_fields(readQueueNums=6, writeQueueNums=6, perm=4))
        assert await topic(stage) == TopicConfig("orders", (), 6, 6, Permission.READ)

    async def test_attributes_are_set_and_taken_away(self, stage: Stage, caller: Caller) -> None:
        await caller.ok(PUT_TOPIC, topic_fields(attributes="+message.type=FIFO,+owner=me"))
        config = await topic(stage)
        assert (config.message_types, dict(config.attributes)) == ((MessageType.FIFO,), {"owner": "me"})
        await caller.ok(PUT_TOPIC, topic_fields())
        assert (await topic(stage)).message_types == (MessageType.FIFO,)
        await caller.ok(PUT_TOPIC, topic_fields(attributes="-message.type,-owner,+note=x"))
        config = await topic(stage)
        assert (config.message_types, dict(config.attributes)) == ((), {"note": "x"})

    async def test_a_compacted_one_is_made_told_and_not_changed(self, stage: Stage, caller: Caller) -> None:
        made = topic_fields(attributes="+cleanup.policy=COMPACTION")
        for _ in range(2):
            await caller.ok(PUT_TOPIC, made)
        await caller.ok(PUT_TOPIC, topic_fields(readQueueNums=6))
        told = wire.TopicConfig.decode((await caller.ok(TOPIC, {"topic": "orders"})).body)
        assert told.attributes == {"cleanup.policy": "COMPACTION"}
        for fields in (
            topic_fields(attributes="-cleanup.policy"),
            topic_fields(attributes="+cleanup.policy=DELETE"),
            topic_fields("payments", attributes="+cleanup.policy=NONE"),
        ):
            refused = await caller.ask(PUT_TOPIC, fields)
            assert refused.code == ResponseCode.INVALID_PARAMETER
            assert "cleanup.policy" in refused.remark
        assert (await topic(stage)).compacted

    async def test_one_of_mixed_types_takes_all(self, stage: Stage, caller: Caller) -> None:
        await caller.ok(PUT_TOPIC, topic_fields(attributes="+message.type=MIXED"))
        assert (await topic(stage)).message_types == ()
        told = wire.TopicConfig.decode((await caller.ok(TOPIC, {"topic": "orders"})).body)
        assert told.attributes == {"message.type": "MIXED"}
        await caller.ok(PUT_TOPIC, topic_fields(attributes="+message.type=NORMAL"))
        config = await topic(stage)
        assert (config.message_types, dict(config.attributes)) == ((MessageType.NORMAL,), {})

    @pytest.mark.parametrize(
        "fields",
        [
            topic_fields("or ders"),
            topic_fields("TBW102"),
            topic_fields(readQueueNums=0),
            topic_fields(readQueueNums=100_000),
            topic_fields(readQueueNums="four"),
            topic_fields(perm="rw"),
            topic_fields(attributes="+message.type=ODD"),
            topic_fields(attributes="message.type=FIFO"),
            topic_fields(attributes="+message.type"),
            topic_fields(attributes="-message.type=FIFO"),
            topic_fields(attributes="x" * 20_000),
            topic_fields(attributes=",".join(f"+a{number}=x" for number in range(100))),
        ],
    )
    async def test_what_cannot_be_is_refused(
        self, stage: Stage, caller: Caller, fields: dict[str, object]
    ) -> None:
        assert (await caller.ask(PUT_TOPIC, fields)).code == ResponseCode.INVALID_PARAMETER
        assert await stage.processor.metadata.topics(Context()) == []

    async def test_queues_are_not_taken_away(self, stage: Stage, caller: Caller) -> None:
        await caller.ok(PUT_TOPIC, topic_fields())
        fewer = topic_fields(readQueueNums=2, writeQueueNums=2)
        assert (await caller.ask(PUT_TOPIC, fewer)).code == ResponseCode.INVALID_PARAMETER
        assert (await topic(stage)).queues == 4

    async def test_one_is_shown(self, stage: Stage, caller: Caller) -> None:
        await stage.topic(message_types=(MessageType.DELAY,), permission=Permission.READ)
        told = wire.TopicConfig.decode((await caller.ok(TOPIC, {"topic": "orders", "lo": True})).body)
        assert told == wire.TopicConfig("orders", 4, 4, 4, attributes={"message.type": "DELAY"})
        assert (await caller.ask(TOPIC, {"topic": "unknown"})).code == ResponseCode.TOPIC_NOT_EXIST

    async def test_all_are_shown(self, stage: Stage, caller: Caller) -> None:
        await stage.topic("one", 1)
        await stage.topic("two", 2, message_types=(MessageType.NORMAL, MessageType.FIFO))
        told, version = decode_topic_configs((await caller.ok(RequestCode.GET_ALL_TOPIC_CONFIG)).body)
        assert {name: config.read_queues for name, config in told.items()} == {"one": 1, "two": 2}
        assert told["two"].attributes == {"message.type": "MIXED"}
        assert version.ms == stage.clock.now_ms()

    async def test_one_is_deleted_and_deleted_again(self, stage: Stage, caller: Caller) -> None:
        await stage.topic()
        for code in (RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV) * 2:
            await caller.ok(code, {"topic": "orders"})
        assert await stage.processor.metadata.topics(Context()) == []
        assert (await caller.ask(RequestCode.DELETE_TOPIC_IN_BROKER)).code == ResponseCode.SYSTEM_ERROR

    async def test_where_its_queues_stand(self, stage: Stage, caller: Caller) -> None:
        await stage.topic("orders", 2)
        await send(stage, 3)
        stored_ms = stage.clock.now_ms()
        stage.clock.advance(5)
        stats = TopicStats.decode(
            (await caller.ok(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders"})).body
        )
        assert stats.offsets == {
            MessageQueue("orders", "popgate", 0): QueueOffsets(0, 3, stored_ms),
            MessageQueue("orders", "popgate", 1): QueueOffsets(0, 0, 0),
        }
        unknown = await caller.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "unknown"})
        assert unknown.code == ResponseCode.TOPIC_NOT_EXIST


class TestGroups:
    CONFIG = SubscriptionGroupConfig(
        "readers",
        ordered=True,
        most_retries=3,
        retry_policy=RetryPolicy("EXPONENTIAL", (), 1_000, 60_000, 3),
        consume_timeout_minutes=5,
        consume_from_minimum=False,
        attributes={"+owner": "me"},
    )

    async def test_one_is_made_and_made_again(self, stage: Stage, caller: Caller) -> None:
        for _ in range(2):
            await caller.ok(PUT_GROUP, body=self.CONFIG.encode())
        assert await group(stage) == GroupConfig(
            "readers",
            ordered=True,
            max_attempts=4,
            retry=ExponentialRetry(1_000, 60_000, 3.0),
            consume_timeout_ms=300_000,
            start_from=StartFrom.LAST,
            attributes={"owner": "me"},
        )

    async def test_one_with_nothing_but_a_name_has_the_defaults(self, stage: Stage, caller: Caller) -> None:
        await caller.ok(PUT_GROUP, body=b'{"groupName":"readers"}')
        assert await group(stage) == GroupConfig("readers")

    async def test_one_is_changed(self, stage: Stage, caller: Caller) -> None:
        await caller.ok(PUT_GROUP, body=self.CONFIG.encode())
        policy = RetryPolicy("CUSTOMIZED", (1_000, 2_000, 3_000))
        changed = replace(
            self.CONFIG, ordered=False, retry_policy=policy, attributes={"-owner": "", "+note": "x"}
        )
        await caller.ok(PUT_GROUP, body=changed.encode())
        config = await group(stage)
        assert (config.ordered, config.retry) == (False, CustomizedRetry((1_000, 2_000, 3_000)))
        assert config.attributes == {"note": "x"}

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[]",
            b'{"groupName":7}',
            b'{"groupName":""}',
            b'{"groupName":"read ers"}',
            b'{"groupName":"readers","retryMaxTimes":1000000}',
            b'{"groupName":"readers","consumeTimeoutMinute":0}',
            b'{"groupName":"readers","groupRetryPolicy":{"customizedRetryPolicy":{"next":[-1]}}}',
        ],
    )
    async def test_what_cannot_be_is_refused(self, stage: Stage, caller: Caller, body: bytes) -> None:
        assert (await caller.ask(PUT_GROUP, body=body)).code == ResponseCode.INVALID_PARAMETER
        assert await stage.processor.metadata.groups(Context()) == []

    async def test_settings_without_end_are_not_read(self, caller: Caller) -> None:
        answer = await caller.ask(PUT_GROUP, body=b" " * 300_000 + self.CONFIG.encode())
        assert answer.code == ResponseCode.SYSTEM_ERROR

    async def test_one_is_shown(self, stage: Stage, caller: Caller) -> None:
        await stage.group(max_attempts=4, ordered=True, consume_timeout_ms=61_000, consume_enabled=False)
        told = SubscriptionGroupConfig.decode((await caller.ok(GROUP, {"group": "readers"})).body)
        assert (told.group, told.most_retries, told.ordered) == ("readers", 3, True)
        assert (told.consume_timeout_minutes, told.consume_enabled) == (2, False)
        unknown = await caller.ask(GROUP, {"group": "unknown"})
        assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    @pytest.mark.parametrize("retry", [CustomizedRetry((5_000,)), ExponentialRetry(1_000, 9_000, 4.0)])
    async def test_what_is_shown_makes_the_same(
        self, stage: Stage, caller: Caller, retry: CustomizedRetry | ExponentialRetry
    ) -> None:
        await stage.group(retry=retry)
        before = await group(stage)
        await caller.ok(PUT_GROUP, body=(await caller.ok(GROUP, {"group": "readers"})).body)
        assert await group(stage) == before

    async def test_all_are_shown(self, stage: Stage, caller: Caller) -> None:
        await stage.group("one", max_attempts=2)
        await stage.group("two")
        body = (await caller.ok(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body
        told, _ = decode_group_configs(body)
        assert {name: config.most_retries for name, config in told.items()} == {"one": 1, "two": 16}

    async def test_one_is_deleted_and_deleted_again(self, stage: Stage, caller: Caller) -> None:
        await stage.group()
        for _ in range(2):
            await caller.ok(
                RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "readers", "cleanOffset": True}
            )
        assert await stage.processor.metadata.groups(Context()) == []

    async def test_where_it_stands(self, stage: Stage, caller: Caller) -> None:
        await stage.topic("orders", 1)
        await stage.group()
        await send(stage, 3)
        stored_ms = stage.clock.now_ms()
        await stage.processor.offsets.commit(Context(), "readers", "orders", "popgate", 0, 2)
        for fields in ({"consumerGroup": "readers"}, {"consumerGroup": "readers", "topic": "orders"}):
            stats = ConsumeStats.decode((await caller.ok(RequestCode.GET_CONSUME_STATS, fields)).body)
            standing = stats.standings[MessageQueue("orders", "popgate", 0)]
            assert (standing.broker_offset, standing.consumer_offset, standing.last_ms) == (3, 2, stored_ms)

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"consumerGroup": "unknown"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
            ({"consumerGroup": "readers", "topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
            ({}, ResponseCode.SYSTEM_ERROR),
        ],
    )
    async def test_where_none_stands(
        self, stage: Stage, caller: Caller, fields: dict[str, object], code: int
    ) -> None:
        await stage.group()
        assert (await caller.ask(RequestCode.GET_CONSUME_STATS, fields)).code == code


class TestLists:
    async def test_topics_are_made_and_changed(self, stage: Stage, caller: Caller) -> None:
        await stage.topic("there", queues=2)
        fifo = wire.TopicConfig("made", 3, 3, attributes={"+message.type": "FIFO"})
        body = dumps({"topicConfigList": [fifo.table(), wire.TopicConfig("there", 4, 4).table()]})
        await caller.ok(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
        made = await topic(stage, "made")
        assert (made.read_queues, made.message_types) == (3, (MessageType.FIFO,))
        assert (await topic(stage, "there")).write_queues == 4

    async def test_groups_are_made_and_changed(self, stage: Stage, caller: Caller) -> None:
        await stage.group("there")
        told = [
            SubscriptionGroupConfig("made", most_retries=3),
            SubscriptionGroupConfig("there", most_retries=4),
        ]
        body = dumps({"groupConfigList": [one.table() for one in told]})
        await caller.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=body)
        assert [(await group(stage, name)).max_attempts for name in ("made", "there")] == [4, 5]

    @pytest.mark.parametrize(
        "code",
        [RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST],
    )
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b'{"topicConfigList":[{}],"groupConfigList":[{}]}',
            b'{"topicConfigList":[{"topicName":"a b"}],"groupConfigList":[{"groupName":"a b"}]}',
        ],
    )
    async def test_damage(self, caller: Caller, code: int, body: bytes) -> None:
        answer = await caller.ask(code, body=body)
        assert answer.code in (ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR)
        assert answer.remark
