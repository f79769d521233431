"""Requests made of odd values: each is answered, whatever is in it, and nothing breaks."""

from __future__ import annotations

import random

import pytest

from popgate.wire.bodies.configs import SubscriptionGroupConfig
from popgate.wire.bodies.small_bodies import MessageQueue, QueueLocks
from popgate.wire.frames.codes import RequestCode
from popgate.wire.messages.batches import BatchItem, encode_batch
from protocols.remoting.codec.messages import LONG, SHORT
from protocols.remoting.consume.offsets import OffsetHandler
from protocols.remoting.consume.pull import PullHandler
from protocols.remoting.consume.queue_locks import QueueLockHandler
from protocols.remoting.produce.send import SendHandler
from protocols.remoting.routing import RouteHandler
from protocols.remoting.tools.config import ConfigHandler
from protocols.remoting.tools.lookup import LookupHandler
from tests.unit.protocols.remoting.conftest import Caller, Stage

FIELDS = (
    *LONG.values(),
    *SHORT.values(),
    *("consumerGroup", "queueOffset", "maxMsgNums", "commitOffset", "suspendTimeoutMillis", "subscription"),
    *("subVersion", "expressionType", "maxMsgBytes", "timestamp", "boundaryType", "setZeroIfNotFound"),
    *("recallHandle", "key", "maxNum", "beginTimestamp", "endTimestamp", "_UNIQUE_KEY_QUERY", "indexType"),
    *("offset", "readQueueNums", "writeQueueNums", "perm", "attributes", "group", "groupName", "namespace"),
)
VALUES = (
    *("", " ", "0", "1", "2", "-1", "+1", "007", "1_000", "1.5", "1e3", "0x1", "true", "TRUE", "\u0661"),
    *("2147483647", "2147483648", "-2147483648", "9223372036854775807", "9223372036854775808", "9" * 400),
    *("orders", "unknown", "readers", "popgate", "elsewhere", "DefaultCluster", "TBW102", "%RETRY%readers"),
    *("%DLQ%readers", "%RETRY%", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_", "SCHEDULE_TOPIC_XXXX", "x" * 300, "%"),
    *(
        "\x00",
        "\ud800",
        "größe",
        "\u202e",
        "a\x01b\x02",
        "UNIQ_KEY\x01\ud800\x02",
        "KEYS\x01k1 k2",
        "\x01\x02",
    ),
    *("DELAY\x013\x02", "DELAY\x01-3\x02", "DELAY\x01x\x02", "TIMER_DELIVER_MS\x011\x02", "TRAN_MSG\x01true"),
    *("_SYS_MSG_PRIORITY_\x019\x02", "__LITE_TOPIC\x01one\x02", "__SHARDINGKEY\x01\x00\x02", "*", "a || b"),
    *(
        "TAG",
        "SQL92",
        "price > 1",
        "price >",
        "TAGS\x01" + "t" * 500,
        "+message.type=FIFO",
        "-x,+y=z",
        "v1 a b",
    ),
)
BODIES = (
    *(b"", b"body", b"\xff" * 40, b"{", b"[]", b"null", b"{}", b'{"mqSet":{}}', b"\x00\x00\x00\x20"),
    encode_batch([BatchItem(0, b"one", b"UNIQ_KEY\x01a\x02"), BatchItem(-1, b"two", b"\x01\x02\x02")]),
    encode_batch([BatchItem(0, b"", b"")]),
    QueueLocks("readers", "client", (MessageQueue("orders", "popgate", 0),)).encode(),
    QueueLocks("read ers", "\u202e", (MessageQueue("", "", -1),)).encode(),
    SubscriptionGroupConfig("readers", attributes={"+": "", "-x": "y"}).encode(),
    b'{"groupName":"\\ud800"}',
    b'{"consumerGroup":"readers","clientId":"\\ud800","mqSet":[{"topic":"\\ud800","queueId":1e9}]}',
)
USUAL = {
    **dict.fromkeys(("topic", "b"), "orders"),
    **dict.fromkeys(("queueId", "e", "queueOffset", "sysFlag", "f", "offset", "timestamp"), "0"),
    "consumerGroup": "readers",
    "group": "readers",
    "groupName": "readers",
    "a": "makers",
    "key": "k1",
    "maxMsgNums": "3",
    "bname": "popgate",
    "n": "popgate",
    "commitOffset": "0",
    "bornTimestamp": "1",
}
"""With these most requests get somewhere before something is wrong."""


@pytest.mark.parametrize("seed", range(8))
async def test_every_request_is_answered(stage: Stage, seed: int) -> None:
    await stage.topic()
    await stage.group()
    house = stage.door_context
    caller = Caller(
        *(
            RouteHandler(house),
            SendHandler(house),
            PullHandler(house),
            OffsetHandler(house),
            QueueLockHandler(house),
        ),
        *(LookupHandler(house), ConfigHandler(house)),
    )
    chance = random.Random(seed)
    deleting = {
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
    }
    codes = [code for code in caller.handlers if code not in deleting]
    for _ in range(250):
        fields: dict[str, object] = {**USUAL} if chance.random() < 0.8 else {}
        for _ in range(chance.randrange(4)):
            fields[chance.choice(FIELDS)] = chance.choice(VALUES)
        if chance.random() < 0.2:
            fields.pop(chance.choice([*fields, "none"]), None)
        # A pull that waits is another test's business.
        fields.pop("suspendTimeoutMillis", None)
        answer = await caller.ask(chance.choice(codes), fields, chance.choice(BODIES))
        assert answer.code == 0 or answer.remark
