"""Texts: what RocketMQ 5.5.0 itself wrote."""

import pytest

from popgate.errors import PeerWireError
from popgate.wire.bodies.configs import (
    EXPONENTIAL,
    DataVersion,
    RetryPolicy,
    SubscriptionGroupConfig,
    TopicConfig,
    decode_group_configs,
    decode_topic_configs,
    encode_attributes,
    encode_group_configs,
    encode_registration,
    encode_topic_configs,
)
from popgate.wire.bodies.static_topics import QueueMapping
from popgate.wire.json_syntax.fastjson import loads

TOPIC_TEXT = (
    '{"attributes":{"message.type":"FIFO"},"order":false,"perm":6,"readQueueNums":8,"topicFilterType":'
    '"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":8}'
)
TOPIC = TopicConfig("T", 8, 8, attributes={"message.type": "FIFO"})
VERSION = DataVersion(0, 1_700_000_000_000)
VERSION_TEXT = '"dataVersion":{"counter":0,"stateVersion":0,"timestamp":1700000000000}'


def group_text(policy: str) -> str:
    return (
        '{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        '"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"g",'
        f'"groupRetryPolicy":{policy},"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,'
        '"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}'
    )


def test_a_topic_is_that_of_java() -> None:
    assert TopicConfig.decode(TOPIC_TEXT.encode()) == TOPIC
    assert TOPIC.encode() == TOPIC_TEXT.encode()


def test_a_topic_may_come_with_its_mapping() -> None:
    body = (
        b'{"attributes":{},"mappingDetail":{"bname":"broker-a","currIdMap":{},"dirty":false,"epoch":100,'
        b'"hostedQueues":{},"scope":"__global__","topic":"T","totalQueues":4},"order":false,"perm":6,'
        b'"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":4}'
    )
    topic = TopicConfig.decode(body)
    assert topic == TopicConfig("T", 4, 4, mapping=QueueMapping("T", "__global__", 4, "broker-a", 100))
    assert TopicConfig.decode(topic.encode()) == topic


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ('{"type":"CUSTOMIZED"}', RetryPolicy()),
        (
            '{"exponentialRetryPolicy":{"initial":5000,"max":7200000,"multiplier":2},"type":"EXPONENTIAL"}',
            RetryPolicy(EXPONENTIAL),
        ),
        (
            '{"customizedRetryPolicy":{"next":[1000,5000]},"type":"CUSTOMIZED"}',
            RetryPolicy(delays_ms=(1000, 5000)),
        ),
    ],
)
def test_a_group_is_that_of_java(text: str, policy: RetryPolicy) -> None:
    group = SubscriptionGroupConfig("g", retry_policy=policy)
    assert SubscriptionGroupConfig.decode(group_text(text).encode()) == group
    assert loads(group.encode()) == loads(group_text(text).encode())


def test_what_a_configuration_does_not_say_is_rocketmqs_default() -> None:
    assert TopicConfig.decode(b'{"topicName":"T"}') == TopicConfig("T", 16, 16, 6)
    assert SubscriptionGroupConfig.decode(b'{"groupName":"g"}') == SubscriptionGroupConfig("g")


def test_what_a_newer_rocketmq_adds_is_kept() -> None:
    topic = TopicConfig.decode(b'{"topicName":"T","perm":4,"newer":{"x":[1]}}')
    assert topic.more == {"newer": {"x": [1]}}
    assert loads(topic.encode())["newer"] == {"x": [1]}
    group = SubscriptionGroupConfig.decode(b'{"groupName":"g","subscriptionDataSet":[{"topic":"T"}]}')
    assert group.more == {"subscriptionDataSet": [{"topic": "T"}]}
    assert SubscriptionGroupConfig.decode(group.encode()) == group


def test_all_topics_are_those_of_java() -> None:
    text = f'{{{VERSION_TEXT},"topicConfigTable":{{"T":{TOPIC_TEXT}}}}}'.encode()
    assert decode_topic_configs(text) == ({"T": TOPIC}, VERSION)
    assert encode_topic_configs({"T": TOPIC}, VERSION) == text


def test_all_groups_come_back() -> None:
    text = group_text('{"type":"CUSTOMIZED"}')
    body = f'{{{VERSION_TEXT},"forbiddenTable":{{}},"subscriptionGroupTable":{{"g":{text}}}}}'.encode()
    groups = {"g": SubscriptionGroupConfig("g")}
    assert decode_group_configs(body) == (groups, VERSION)
    assert decode_group_configs(encode_group_configs(groups, VERSION)) == (groups, VERSION)


def test_a_registration_is_that_of_java() -> None:
    text = (
        f'{{"filterServerList":[],"topicConfigSerializeWrapper":{{{VERSION_TEXT},"mappingDataVersion":'
        f'{{"counter":0,"stateVersion":0,"timestamp":1700000000000}},"topicConfigTable":{{"T":{TOPIC_TEXT}}},'
        '"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}'
    )
    assert loads(encode_registration({"T": TOPIC}, VERSION)) == loads(text.encode())


def test_changes_of_attributes_are_told_by_their_signs() -> None:
    assert encode_attributes({"message.type": "FIFO", "a": "b"}, ("c",)) == "+message.type=FIFO,+a=b,-c"
    assert encode_attributes({}) == ""


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'{"topicName":1}',
        b'{"readQueueNums":-1}',
        b'{"writeQueueNums":70000}',
        b'{"attributes":{"a":1}}',
        b'{"order":1}',
        b'{"newer":{{"queueId":0}:1}}',
        b'{0:1,"newer":[99999999999999999999999999999999]}',
        b'{"mappingDetail":[]}',
        b'{"mappingDetail":{"epoch":"x"}}',
    ],
)
def test_a_damaged_topic_is_refused(body: bytes) -> None:
    with pytest.raises(PeerWireError):
        TopicConfig.decode(body)


@pytest.mark.parametrize(
    "body",
    [
        b"1",
        b'{"groupName":[]}',
        b'{"newer":{{"queueId":0}:1}}',
        b'{"retryMaxTimes":"many"}',
        b'{"groupRetryPolicy":[]}',
        b'{"groupRetryPolicy":{"customizedRetryPolicy":{"next":["x"]}}}',
        b'{"groupRetryPolicy":{"exponentialRetryPolicy":{"max":{}}}}',
    ],
)
def test_a_damaged_group_is_refused(body: bytes) -> None:
    with pytest.raises(PeerWireError):
        SubscriptionGroupConfig.decode(body)
