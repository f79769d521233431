"""Texts: what RocketMQ 5.5.0 itself wrote."""

import pytest

from popgate.errors import PeerWireError
from popgate.wire.bodies.consumer_info import (
    CONSUME_TYPE,
    SUCCESS,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumeStatus,
    PoppedQueue,
    PulledQueue,
    decode_offsets,
    decode_positions,
    encode_offsets,
    encode_positions,
)
from popgate.wire.bodies.heartbeats import SubscriptionData
from popgate.wire.bodies.small_bodies import MessageQueue
from popgate.wire.json_syntax.fastjson import loads

RAW = (
    b'{"mqPopTable":{{"brokerName":"broker-a","queueId":1,"topic":"T"}:{"droped":false,"lastPopTimestamp":0,'
    b'"waitAckCount":0}},"mqTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"cachedMsgCount":0,'
    b'"cachedMsgMaxOffset":0,"cachedMsgMinOffset":0,"cachedMsgSizeInMiB":0,"commitOffset":0,"droped":false,'
    b'"lastConsumeTimestamp":0,"lastLockTimestamp":0,"lastPullTimestamp":0,"locked":false,'
    b'"transactionMsgCount":0,"transactionMsgMaxOffset":0,"transactionMsgMinOffset":0,"tryUnlockTimes":0}},'
    b'"properties":{"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"},"statusTable":{"T":{"consumeFailedMsgs":0,'
    b'"consumeFailedTPS":0.0,"consumeOKTPS":0.0,"consumeRT":0.0,"pullRT":0.0,"pullTPS":0.0}},'
    b'"subscriptionSet":[{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG","subString":'
    b'"TagA||TagB","subVersion":1700000000000,"tagsSet":["TagA"],"topic":"T"}],"userConsumerInfo":{}}'
)
INFO = ConsumerRunningInfo(
    {CONSUME_TYPE: "CONSUME_PASSIVELY"},
    (SubscriptionData("T", "TagA||TagB", "TAG", ("TagA",), (2_598_919,), 1_700_000_000_000),),
    {MessageQueue("T", "broker-a", 0): PulledQueue()},
    {MessageQueue("T", "broker-a", 1): PoppedQueue()},
    {"T": ConsumeStatus()},
)


def test_what_a_consumer_runs_is_told_as_java_does() -> None:
    assert ConsumerRunningInfo.decode(RAW) == INFO
    assert INFO.encode() == RAW


def test_everything_of_it_comes_back() -> None:
    info = ConsumerRunningInfo(
        {"a": "b"},
        (),
        {MessageQueue("T", "b", 3): PulledQueue(1, 2, 3, 4, 5, True, 6, 7, True, 8, 9)},
        {MessageQueue("T", "b", 4): PoppedQueue(1, True, 2)},
        {"T": ConsumeStatus(1.5, 2.5, 3.5, 4.5, 5.5, 6)},
        {"user": "info"},
        "stacks",
    )
    assert ConsumerRunningInfo.decode(info.encode()) == info


def test_how_a_message_went_is_told_as_java_does() -> None:
    text = b'{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":3}'
    assert ConsumeResult.decode(text) == ConsumeResult(SUCCESS, spent_ms=3)
    assert ConsumeResult(SUCCESS, spent_ms=3).encode() == text
    other = ConsumeResult("CR_LATER", "why", 1, True, False)
    assert ConsumeResult.decode(other.encode()) == other


def test_offsets_to_reset_are_told_as_java_does() -> None:
    text = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:12}}'
    offsets = {MessageQueue("T", "broker-a", 0): 12}
    assert decode_offsets(text) == offsets
    assert encode_offsets(offsets) == text
    standing = (
        b'{"consumerTable":{},"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:12}}'
    )
    assert decode_offsets(standing, "messageQueueTable") == offsets
    assert loads(encode_offsets(offsets, "messageQueueTable"))["messageQueueTable"]


def test_where_clients_stand_is_told_as_java_does() -> None:
    text = b'{"consumerTable":{"c@1":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:12},"c@2":{}}}'
    positions: dict[str, dict[MessageQueue, int]] = {"c@1": {MessageQueue("T", "broker-a", 0): 12}, "c@2": {}}
    assert decode_positions(text) == positions
    assert encode_positions(positions) == text
    for wrong in (
        b"[]",
        b'{"consumerTable":[]}',
        b'{"consumerTable":{"c":{"T":1}}}',
        b'{"consumerTable":{"c":1}}',
    ):
        with pytest.raises(PeerWireError):
            decode_positions(wrong)


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'{"mqTable":{"T":{}}}',
        b'{"mqTable":{{"queueId":0}:1}}',
        b'{"mqPopTable":{{"queueId":0}:{"droped":7}}}',
        b'{"statusTable":{"T":{"pullRT":"x"}}}',
        b'{"subscriptionSet":{}}',
        b'{"jstack":1}',
    ],
)
def test_damage_is_told(body: bytes) -> None:
    with pytest.raises(PeerWireError):
        ConsumerRunningInfo.decode(body)


@pytest.mark.parametrize("body", [b"1", b'{"offsetTable":{"T":1}}', b'{"offsetTable":{{"queueId":0}:"x"}}'])
def test_damaged_offsets_are_refused(body: bytes) -> None:
    with pytest.raises(PeerWireError):
        decode_offsets(body)
