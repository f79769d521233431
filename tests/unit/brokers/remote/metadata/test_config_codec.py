"""Settings of topics and groups, there and back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from brokers.remote.metadata.config_codec import (
    attribute_changes,
    group_body,
    group_in,
    refusal,
    topic_fields,
    topic_in,
)
from popgate.errors import BadRequest, IllegalGroup, IllegalTopic, PeerWireError, Unsupported
from popgate.model import (
    CustomizedRetry,
    ExponentialRetry,
    GroupConfig,
    MessageType,
    Permission,
    StartFrom,
    TopicConfig,
)
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command

TOLD_TOPIC = {
    "attributes": {},
    "order": False,
    "perm": 6,
    "readQueueNums": 2,
    "topicFilterType": "SINGLE_TAG",
    "topicName": "t",
    "topicSysFlag": 0,
    "writeQueueNums": 2,
}
TOLD_GROUP = {
    "attributes": {},
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupName": "g",
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 16,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}
"""As RocketMQ 5.5.0 tells them of a topic and a group made with its defaults."""


def test_a_topic_without_a_type_takes_every_type():
    assert topic_in(TOLD_TOPIC) == TopicConfig("t", (), 2, 2)


@pytest.mark.parametrize("kind", MessageType)
def test_a_declared_type_is_the_only_one(kind):
    told = {**TOLD_TOPIC, "attributes": {"message.type": kind.value, "cleanup.policy": "DELETE"}}
    assert topic_in(told) == TopicConfig("t", (kind,), 2, 2, attributes={"cleanup.policy": "DELETE"})


@pytest.mark.parametrize("kind", ["MIXED", "UNSPECIFIED", "OF_TOMORROW"])
def test_a_type_that_is_none_of_ours_takes_every_type_and_is_not_lost(kind):
    told = {**TOLD_TOPIC, "attributes": {"message.type": kind}}
    config = topic_in(told)
    assert config.message_types == ()
    assert "attributes" not in topic_fields(config, told)


def test_bits_of_a_permission_that_we_do_not_know_are_kept():
    told = {**TOLD_TOPIC, "perm": 15, "order": True, "topicSysFlag": 3}
    config = topic_in(told)
    assert config.permission is Permission.READ_WRITE
    fields = topic_fields(replace(config, permission=Permission.READ), told)
    assert (fields["perm"], fields["order"], fields["topicSysFlag"]) == ("13", "true", "3")


def test_odd_counts_of_queues_do_not_spoil_a_list():
    config = topic_in({**TOLD_TOPIC, "readQueueNums": -1, "writeQueueNums": 1 << 20})
    assert (config.read_queues, config.write_queues) == (0, 65_536)


def test_a_new_topic_is_told_with_everything_that_brokers_require():
    config = TopicConfig(
        "t", (MessageType.FIFO,), 3, 4, Permission.WRITE, attributes={"queue.type": "BatchCQ"}
    )
    assert topic_fields(config, None) == {
        "topic": "t",
        "defaultTopic": "TBW102",
        "readQueueNums": "3",
        "writeQueueNums": "4",
        "perm": "2",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": "+queue.type=BatchCQ,+message.type=FIFO",
    }


def test_only_what_changes_of_attributes_is_told():
    told = {**TOLD_TOPIC, "attributes": {"message.type": "FIFO", "a": "1", "b": "2"}}
    config = TopicConfig("t", (MessageType.NORMAL,), 2, 2, attributes={"a": "1"})
    assert topic_fields(config, told)["attributes"] == "+message.type=NORMAL,-b"
    assert topic_fields(replace(config, message_types=()), told)["attributes"] == "-message.type,-b"


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (TopicConfig("a b"), IllegalTopic),
        (TopicConfig(""), IllegalTopic),
        (TopicConfig("t" * 128), IllegalTopic),
        (TopicConfig("t", read_queues=0, write_queues=0), BadRequest),
        (TopicConfig("t", read_queues=-1), BadRequest),
        (TopicConfig("t", write_queues=1 << 20), BadRequest),
        (TopicConfig("t", retention_ms=1), Unsupported),
        (TopicConfig("t", retention_bytes=1), Unsupported),
        (TopicConfig("t", (MessageType.FIFO, MessageType.NORMAL)), Unsupported),
        (TopicConfig("t", (MessageType.FIFO,), attributes={"message.type": "NORMAL"}), BadRequest),
        (TopicConfig("t", attributes={"a": "1,+b=2"}), BadRequest),
        (TopicConfig("t", attributes={"a=b": "1"}), BadRequest),
        (TopicConfig("t", attributes={"a-b": "1"}), BadRequest),
        (TopicConfig("t", attributes={"": "1"}), BadRequest),
    ],
)
def test_a_topic_that_cannot_be_told_is_refused(config, error):
    with pytest.raises(error):
        topic_fields(config, None)


def test_a_group_with_defaults_is_read():
    assert group_in(TOLD_GROUP) == GroupConfig("g")


GROUPS = [
    GroupConfig("g"),
    GroupConfig("g", ordered=True, max_attempts=1, start_from=StartFrom.LAST, consume_enabled=False),
    GroupConfig("g", retry=ExponentialRetry(100, 5_000, 3.0), consume_timeout_ms=60_000),
    GroupConfig("g", retry=CustomizedRetry((1, 2, 3)), attributes={"priority.factor": "50"}),
]


@pytest.mark.parametrize("config", GROUPS)
def test_a_group_is_read_as_it_was_told(config):
    told = json.loads(group_body(config, None))
    told["attributes"] = {key[1:]: value for key, value in told["attributes"].items()}
    assert group_in(told) == config


def test_what_we_do_not_know_of_a_group_is_kept():
    told = {**TOLD_GROUP, "groupSysFlag": 7, "retryQueueNums": 3, "ofTomorrow": [1]}
    body = json.loads(group_body(GroupConfig("g", max_attempts=3), told))
    assert (body["groupSysFlag"], body["retryQueueNums"], body["ofTomorrow"]) == (7, 3, [1])
    assert body["retryMaxTimes"] == 2


@pytest.mark.parametrize(
    "retry",
    [
        CustomizedRetry((1, 20, 300), 0),
        CustomizedRetry((1, 20, 300), 1),
        CustomizedRetry((1, 20, 300), 2),
        CustomizedRetry((1, 20, 300), 3),
        CustomizedRetry((7,), 9),
        CustomizedRetry((1, 2, 3, 4, 5), 4),
    ],
)
def test_rests_stay_the_same_where_a_ladder_begins_elsewhere(retry):
    told = json.loads(group_body(GroupConfig("g", retry=retry), None))
    again = group_in(told).retry
    assert [again.delay_ms(n) for n in range(1, 12)] == [retry.delay_ms(n) for n in range(1, 12)]


@pytest.mark.parametrize(("given_ms", "minutes"), [(0, 0), (1, 1), (60_000, 1), (60_001, 2), (900_000, 15)])
def test_a_consume_timeout_is_rounded_up_to_minutes(given_ms, minutes):
    body = json.loads(group_body(GroupConfig("g", consume_timeout_ms=given_ms), None))
    assert body["consumeTimeoutMinute"] == minutes


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (GroupConfig("a b"), IllegalGroup),
        (GroupConfig("g" * 121), IllegalGroup),
        (GroupConfig("g", max_attempts=0), BadRequest),
        (GroupConfig("g", consume_timeout_ms=-1), BadRequest),
        (GroupConfig("g", broadcast=True), Unsupported),
        (GroupConfig("g", retry=ExponentialRetry(multiplier=1.5)), Unsupported),
        (GroupConfig("g", retry=ExponentialRetry(multiplier=float("inf"))), Unsupported),
        (GroupConfig("g", retry=CustomizedRetry(())), BadRequest),
        (GroupConfig("g", attributes={"a+b": ""}), BadRequest),
    ],
)
def test_a_group_that_cannot_be_told_is_refused(config, error):
    with pytest.raises(error):
        group_body(config, None)


@pytest.mark.parametrize(
    "told",
    [
        {**TOLD_GROUP, "groupName": 5},
        {**TOLD_GROUP, "retryMaxTimes": 1 << 40},
        {**TOLD_GROUP, "groupRetryPolicy": "x"},
        {**TOLD_GROUP, "groupRetryPolicy": {"customizedRetryPolicy": {"next": ["x"]}}},
        {**TOLD_GROUP, "groupRetryPolicy": {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"max": -1}}},
    ],
)
def test_a_group_told_in_another_form_is_an_error_of_the_peer(told):
    with pytest.raises(PeerWireError):
        group_in(told)


def test_a_group_without_any_retry_has_one_attempt():
    assert group_in({**TOLD_GROUP, "retryMaxTimes": -1}).max_attempts == 1


def test_nothing_is_told_of_attributes_that_stay():
    assert attribute_changes({"a": "1"}, {"a": "1"}) == {}


@pytest.mark.parametrize(
    ("code", "remark", "error", "words"),
    [
        (1, "unsupported key: owner", Unsupported, "attribute 'owner'"),
        (1, "java.lang.RuntimeException: unsupported key: owner, org.apache", Unsupported, "'owner'"),
        (1, "key duplication: +message.type", BadRequest, "key duplication"),
        (29, "MIXED message type is not supported.", BadRequest, "MIXED"),
    ],
)
def test_why_a_broker_refuses_is_told(code, remark, error, words):
    told = refusal(Command(ResponseCode(code), remark=remark), "broker-a")
    assert isinstance(told, error)
    assert words in told.sentence


_REMARK = "value is not in set: [UNSPECIFIED, FIFO, NORMAL]"
"""As RocketMQ 5.3.3 refuses a topic of a type that it does not know."""


@pytest.mark.parametrize(
    ("remark", "attributes", "sentence"),
    [
        (
            _REMARK,
            "+cleanup.policy=DELETE,+message.type=PRIORITY",
            (
                "a topic of type 'PRIORITY' at broker broker-a is not supported:"
                " its RocketMQ knows only 'FIFO, NORMAL, UNSPECIFIED'"
            ),
        ),
        (_REMARK, "+message.type=FIFO", f"broker broker-a refuses these settings: '{_REMARK}'"),
        (_REMARK, "", f"broker broker-a refuses these settings: '{_REMARK}'"),
        (
            "value is not in set: [DELETE, COMPACTION]",
            "+cleanup.policy=NONE,+message.type=FIFO",
            "broker broker-a refuses these settings: 'value is not in set: [DELETE, COMPACTION]'",
        ),
    ],
)
def test_a_message_type_that_a_broker_does_not_know_is_named(remark, attributes, sentence):
    answer = Command(ResponseCode.SYSTEM_ERROR, remark=remark)
    assert refusal(answer, "broker-a", attributes).sentence == sentence
