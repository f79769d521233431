"""Texts: what RocketMQ 5.5.0 itself wrote."""

import pytest

from popgate.errors import PeerWireError
from popgate.wire.bodies.broker_stats import (
    MOST_CONFIGS,
    IndexEntry,
    Rate,
    Rates,
    decode_producers,
    decode_subscription_group_list,
    decode_topic_list,
    encode_all_standings,
    encode_index,
    encode_producers,
)
from popgate.wire.bodies.heartbeats import Connection, SubscriptionData
from popgate.wire.bodies.offset_stats import ConsumeStats, QueueProgress
from popgate.wire.bodies.small_bodies import MessageQueue

INDEX = b'"maxQueueIndex":9,"minQueueIndex":1,"queueData":[{"eval":false,"physicOffset":100,"physicSize":200,'
TOPICS = (
    b'{"topicConfigList":[{"attributes":{},"order":false,"perm":6,"readQueueNums":16,'
    b'"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":16}]}'
)
GROUPS = (
    b'{"groupConfigList":[{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
    b'"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"G",'
    b'"groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,'
    b'"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}]}'
)


def test_producers_are_those_of_java() -> None:
    told = encode_producers({"P": [(Connection("c@1", "10.0.0.1:5000", "JAVA", 479), 7)]})
    assert told == (
        b'{"data":{"P":[{"clientId":"c@1","language":"JAVA","lastUpdateTimestamp":7,'
        b'"remoteIP":"10.0.0.1:5000","version":479}]}}'
    )


def test_producers_are_read_as_they_are_written() -> None:
    told = {"P": ((Connection("c@1", "10.0.0.1:5000", "JAVA", 479), 7),), "Q": ()}
    assert decode_producers(encode_producers(told)) == told
    assert decode_producers(b"{}") == {}


def test_rates_are_those_of_java() -> None:
    told = Rates(Rate(1, 2.0, 3.0), Rate(4, 5.0, 6.0))
    assert told.encode() == (
        b'{"statsDay":{"avgpt":0.0,"sum":0,"tps":0.0},"statsHour":{"avgpt":6.0,"sum":4,"tps":5.0},'
        b'"statsMinute":{"avgpt":3.0,"sum":1,"tps":2.0}}'
    )
    assert Rates.decode(told.encode()) == told
    assert Rates.decode(b"{}") == Rates()


@pytest.mark.parametrize("part", [b"1", b'"x"', b'{"P":1}', b'{"P":[1]}', b'{"P":[{"version":"x"}]}'])
def test_damaged_producers_are_told(part: bytes) -> None:
    with pytest.raises(PeerWireError):
        decode_producers(b'{"data":' + part + b"}")


@pytest.mark.parametrize("part", [b"1", b'{"sum":"x"}', b'{"tps":[]}', b'{"avgpt":"x"}', b'{"tps":1e999}'])
def test_damaged_rates_are_told(part: bytes) -> None:
    with pytest.raises(PeerWireError):
        Rates.decode(b'{"statsDay":' + part + b"}")


def test_the_standings_of_all_groups_are_those_of_java() -> None:
    stats = ConsumeStats({MessageQueue("T", "broker-a", 0): QueueProgress(9, 4, 0, 5)})
    assert encode_all_standings({"G": [stats]}, "10.0.0.1:10911", left=5, in_flight=1) == (
        b'{"brokerAddr":"10.0.0.1:10911","consumeStatsList":[{"G":[{"consumeTps":0.0,"offsetTable":'
        b'{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"brokerOffset":9,"consumerOffset":4,'
        b'"lastTimestamp":5,"pullOffset":0}}}]}],"totalDiff":5,"totalInflightDiff":1}'
    )


def test_the_index_of_a_queue_is_that_of_java() -> None:
    entries = [IndexEntry(100, 200, -5)]
    assert encode_index(entries, 1, 9) == b"{" + INDEX + b'"tagsCode":-5}]}'
    assert encode_index(entries, 1, 9, note="G@T is not online!") == (
        b'{"filterData":"G@T is not online!",' + INDEX + b'"tagsCode":-5}]}'
    )
    assert b'"subString":"a || b"' in encode_index([], 0, 0, subscription=SubscriptionData("T", "a || b"))


def test_lists_of_configurations_are_read_as_java_writes_them() -> None:
    [topic] = decode_topic_list(TOPICS)
    assert (topic.topic, topic.read_queues, topic.write_queues, topic.perm) == ("T", 16, 16, 6)
    [group] = decode_subscription_group_list(GROUPS)
    assert (group.group, group.most_retries, group.consume_enabled) == ("G", 16, True)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"topicConfigList":{},"groupConfigList":{}}',
        b'{"topicConfigList":[1],"groupConfigList":[1]}',
        b'{"topicConfigList":[{"readQueueNums":"x"}],"groupConfigList":[{"retryMaxTimes":"x"}]}',
    ],
)
def test_damage_is_told(body: bytes) -> None:
    for decode in (decode_topic_list, decode_subscription_group_list):
        with pytest.raises(PeerWireError):
            decode(body)


def test_lists_have_an_end() -> None:
    many = b'{"topicConfigList":[' + b",".join([b"{}"] * (MOST_CONFIGS + 1)) + b"]}"
    with pytest.raises(PeerWireError):
        decode_topic_list(many)
