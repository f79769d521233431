"""Texts: what RocketMQ 5.5.0 itself wrote."""

import pytest

from popgate.errors import PeerWireError
from popgate.wire.bodies.offset_stats import ConsumeStats, QueueOffsets, QueueProgress, TopicStats
from popgate.wire.bodies.small_bodies import MessageQueue

FIRST, SECOND = MessageQueue("T", "broker-a", 1), MessageQueue("T", "broker-a", 0)


def test_the_offsets_of_a_topic_are_those_of_java() -> None:
    text = (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"T"}:{"lastUpdateTimestamp":5,'
        b'"maxOffset":9,"minOffset":1},{"brokerName":"broker-a","queueId":0,"topic":"T"}:'
        b'{"lastUpdateTimestamp":5,"maxOffset":9,"minOffset":1}},"topicPutTps":0.0}'
    )
    stats = TopicStats({FIRST: QueueOffsets(1, 9, 5), SECOND: QueueOffsets(1, 9, 5)})
    assert TopicStats.decode(text) == stats
    assert stats.encode() == text


def test_the_standing_of_a_group_is_that_of_java() -> None:
    text = (
        b'{"consumeTps":0.0,"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"brokerOffset":9,'
        b'"consumerOffset":4,"lastTimestamp":5,"pullOffset":0}}}'
    )
    stats = ConsumeStats({SECOND: QueueProgress(9, 4, 0, 5)})
    assert ConsumeStats.decode(text) == stats
    assert stats.encode() == text


@pytest.mark.parametrize("kind", [TopicStats, ConsumeStats])
@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'{"offsetTable":[]}',
        b'{"offsetTable":{"T":{}}}',
        b'{"offsetTable":{{"queueId":0}:1}}',
        b'{"offsetTable":{{"queueId":"x"}:{}}}',
        b'{"offsetTable":{[1,2]:{}}}',
        b'{"offsetTable":{{"queueId":0}:{"maxOffset":"x","consumerOffset":"x"}}}',
        b'{"topicPutTps":"x","consumeTps":"x"}',
    ],
)
def test_damage_is_told(kind: type[TopicStats] | type[ConsumeStats], body: bytes) -> None:
    with pytest.raises(PeerWireError):
        kind.decode(body)
