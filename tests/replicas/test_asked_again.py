"""RocketMQ asks about transactions that have ended: so it does by itself, and so no replica is misled.

A look at half messages stores each one again that may not be asked about yet, behind the others. What ends
at the former place later on is not matched with the latter: the broker asks. Seen on 5.5.0.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from typing import Any

import pytest

from brokers.remote.metadata.config_codec import topic_fields
from popgate.ids.message_id import decode_offset_message_id, make_message_id
from popgate.model import MessageType, TopicConfig
from popgate.pb.definition_pb2 import Code
from popgate.testing.rocketmq.requests import ask
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.messages.properties import UNIQ_KEY, encode_properties, find_property
from popgate.wire.messages.records import TRANSACTION_COMMIT, Record, decode_records
from tests.replicas.test_any_replica import A, B, Reader, half
from tests.support.waiting import until, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

HALVES = "RMQ_SYS_TRANS_HALF_TOPIC"
OPEN_S = 5
"""For so long a transaction may be ended; brokers of tests look every 3 s."""
_TRIES = 20
_FOREVER = str((1 << 63) - 1)


def found(broker: str, topic: str, message_id: str) -> list[Record]:
    """What a broker has with this id in a topic, in the order in which it was stored."""
    fields = {
        "topic": topic,
        "key": message_id,
        "maxNum": "32",
        "beginTimestamp": "0",
        "endTimestamp": _FOREVER,
        "_UNIQUE_KEY_QUERY": "true",
    }
    answer = ask(broker, RequestCode.QUERY_MESSAGE, fields, timeout_s=60)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return []
    assert answer.code == ResponseCode.SUCCESS, answer
    mine = [
        one
        for one in decode_records(answer.body)
        if one.topic == topic and find_property(one.properties, UNIQ_KEY.encode()) == message_id.encode()
    ]
    return sorted(mine, key=lambda one: one.commit_offset)


async def stored_again(broker: str, message_id: str) -> bool:
    """Whether the broker looked at a half message, and stored it again."""
    return len(await asyncio.to_thread(found, broker, HALVES, message_id)) > 1


async def test_scenario_05_a_commit_that_the_broker_asks_about_elsewhere_makes_one_message(
    pair: Any, cluster: Any
) -> None:
    """The end went through A, the question comes to B, which knows of no end."""
    await pair.make(MessageType.TRANSACTION)
    producer, ending = pair.client(B), pair.client(A)
    await producer.introduce(producer.producing(pair.topic))
    committed = 0
    while not committed:
        # On a machine that stands still the time for an unasked end may be over.
        entry = await half(producer, pair, b"once", recovery_s=OPEN_S)
        await until(lambda entry=entry: stored_again(cluster.broker, entry.message_id))
        committed += await ending.end(entry, topic=pair.topic) == Code.OK
    figures = pair.gateways[B].broker.figures

    async def settled() -> bool:
        return bool(figures()["checks_settled_total"])

    await until(settled)
    assert len(await asyncio.to_thread(found, cluster.broker, pair.topic, entry.message_id)) == 1
    reader = Reader(pair, A)
    await reader.take_until(b"once")
    assert reader.got == [b"once"]


def test_rocketmq_alone_asks_about_a_transaction_whose_commit_it_answered(cluster: Any) -> None:
    """No gateway takes part: the evidence for the page about clusters. Its own index tells what it did."""
    if os.environ.get("TEST_CLUSTER") != "true":
        pytest.skip("says something of RocketMQ only: sh tests/run.sh --long runs it")
    topic = f"alone-{uuid.uuid4().hex[:10]}"
    config = TopicConfig(topic, (MessageType.TRANSACTION,), read_queues=1, write_queues=1)
    fields = topic_fields(config, None)
    made = ask(cluster.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields, timeout_s=60)
    assert made.code == ResponseCode.SUCCESS, made
    for _ in range(_TRIES):
        message_id = make_message_id()
        place = send_half(cluster.broker, topic, message_id)
        wait_until(lambda one=message_id: len(found(cluster.broker, HALVES, one)) > 1)
        if end(cluster.broker, topic, message_id, place, TRANSACTION_COMMIT) == ResponseCode.SUCCESS:
            break
    else:
        pytest.fail("no commit came in time")
    before = found(cluster.broker, HALVES, message_id)
    wait_until(lambda: found(cluster.broker, topic, message_id))  # its index is behind its answers
    assert len(found(cluster.broker, topic, message_id)) == 1
    # Its last look at an open one stores it once more, and asks: that is when the immune time is over.
    wait_until(
        lambda: (
            found(cluster.broker, HALVES, message_id)[-1].store_ms > before[0].born_ms + (OPEN_S + 5) * 1000
        )
    )
    copy = found(cluster.broker, HALVES, message_id)[-1]
    # An answer to that question is taken as the first one was: a second message.
    again = (copy.commit_offset, copy.offset)
    answered = end(cluster.broker, topic, message_id, again, TRANSACTION_COMMIT, asked=True)
    assert answered == ResponseCode.SUCCESS
    wait_until(lambda: len(found(cluster.broker, topic, message_id)) == 2)


def send_half(broker: str, topic: str, message_id: str) -> tuple[int, int]:
    """A half message as classic producers send it; where it is: commit log offset and queue offset."""
    properties = {
        "UNIQ_KEY": message_id,
        "PGROUP": topic,
        "TRAN_MSG": "true",
        "CHECK_IMMUNITY_TIME_IN_SECONDS": str(OPEN_S + 5),
    }
    fields = {
        "producerGroup": topic,
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1",
        "queueId": "0",
        "sysFlag": "4",
        "bornTimestamp": str(time.time_ns() // 1_000_000),
        "flag": "0",
        "properties": encode_properties(properties).decode(),
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    sent = ask(broker, RequestCode.SEND_MESSAGE, fields, b"half", timeout_s=60)
    assert sent.code == ResponseCode.SUCCESS, sent
    _, commit_offset = decode_offset_message_id(sent.fields["msgId"])
    return commit_offset, int(sent.fields["queueOffset"])


def end(
    broker: str, topic: str, message_id: str, place: tuple[int, int], how: int, *, asked: bool = False
) -> int:
    """The code of the broker's answer."""
    fields = {
        "topic": topic,
        "producerGroup": topic,
        "tranStateTableOffset": str(place[1]),
        "commitLogOffset": str(place[0]),
        "commitOrRollback": str(how),
        "fromTransactionCheck": "true" if asked else "false",
        "msgId": message_id,
        "transactionId": message_id,
    }
    return ask(broker, RequestCode.END_TRANSACTION, fields, timeout_s=60).code
