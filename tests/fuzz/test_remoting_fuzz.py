"""Odd requests at the remoting door, from fixed seeds: whatever a client does, the fault is told as its own.

Every request code that is served gets requests that were right before some of their fields, or bytes of
their body, were changed; other connections say bytes that are no frames. None may be answered as a bug
of the gateway, and it must work afterwards. `TEST_FUZZ_ROUNDS` asks for more.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from brokers.remote.consume.pop_response import read_popped
from brokers.remote.settle.broker_clocks import BrokerClocks
from popgate.ids.message_id import decode_offset_message_id, encode_offset_message_id, make_message_id
from popgate.testing.clock import MovableClock
from popgate.testing.gateway import GatewayProcess, running_gateway
from popgate.testing.remoting import RemotingClient
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.headers import Serialization
from popgate.wire.frames.remoting import Command, encode_command
from popgate.wire.messages.batches import encode_batch
from tests.fuzz.test_wire_fuzz import mutated

ROUNDS = int(os.environ.get("TEST_FUZZ_ROUNDS", "30"))
BUG = "its log tells more"
RESPONSE_CODES = frozenset(ResponseCode)
TEXTS = (
    *(
        "",
        " ",
        "\t",
        "\x00",
        "\x01\x02",
        "*",
        "a || b",
        "||",
        "a = 1",
        "(" * 200,
        "NOT " * 5000,
        "null",
        "NaN",
    ),
    *(
        "%DLQ%g",
        "%RETRY%g",
        "%RETRY%",
        "TBW102",
        "rmq_sys_x",
        "CID_RMQ_SYS_x",
        "SCHEDULE_TOPIC_XXXX",
        "popgate",
    ),
    *("DefaultCluster", "DefaultCluster_REPLY_TOPIC", "名字", "\ufeff", "\u202e", "\U0010ffff", "k" * 128),
    *("k" * 40_000, "-0", "1e9", "true", "TRUE", "٣", "0 1 2 3 4 5 6 7", "0 " * 8, "9" * 30, "+5", "1_0"),
)
PLACE = encode_offset_message_id("127.0.0.1:1", 0)
DELETES = (
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.DELETE_TOPIC_IN_NAMESRV,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
)
NUMBERS = (
    *(-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 16, 31, 32, 33, 255),
    2**31 - 1,
    2**31,
    2**53,
    2**63 - 1,
    2**63,
)
PROPERTIES = "UNIQ_KEY\x01{}\x02TAGS\x01a\x02KEYS\x01k\x02"


def bodies(group: str) -> dict[int, bytes]:
    subscription = {"topic": "odd", "subString": "*", "expressionType": "TAG", "subVersion": 1}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    queues = [{"topic": "odd", "brokerName": "popgate", "queueId": 0}]
    locking = {"clientId": "me", "consumerGroup": group, "mqSet": queues}
    return {
        code: json.dumps(body).encode()
        for code, body in {
            RequestCode.HEART_BEAT: {
                "clientID": "me",
                "consumerDataSet": [consumer],
                "producerDataSet": [{"groupName": "odd-writers"}],
            },
            RequestCode.CHECK_CLIENT_CONFIG: {
                "clientId": "me",
                "group": group,
                "subscriptionData": subscription,
            },
            RequestCode.LOCK_BATCH_MQ: locking,
            RequestCode.UNLOCK_BATCH_MQ: locking,
            RequestCode.BATCH_ACK_MESSAGE: {"brokerName": "popgate", "acks": [{"c": group, "t": "odd"}]},
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [{"topicName": "odd", "perm": 6}]},
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"groupName": group, "retryMaxTimes": 3},
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {"groupConfigList": [{"groupName": group}]},
            RequestCode.SET_MESSAGE_REQUEST_MODE: {"topic": "odd", "consumerGroup": group, "mode": "POP"},
            RequestCode.QUERY_ASSIGNMENT: {"topic": "odd", "consumerGroup": group, "clientId": "me"},
        }.items()
    }


class Odd:
    """Makes requests, and makes them wrong. `seen` and `recalls` were right once; `places` are offsets."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seen = ["0 0 0 0 0 popgate 0 0"]
        self.places = ["0"]
        self.recalls = ["x"]
        self.bodies = bodies("odd-readers")

    def right(self, code: int) -> tuple[dict[str, str], bytes]:
        pick = self.random.choice
        properties = PROPERTIES.format(make_message_id()) + pick(
            ("", "DELAY\x011\x02", "DELAY\x0118\x02", "TRAN_MSG\x01true\x02")
        )
        send = {
            "a": "odd-writers",
            "b": "odd",
            "c": "TBW102",
            "d": "4",
            "e": "0",
            "f": "0",
            "g": "1",
            "h": "0",
        }
        fields = {
            "topic": "odd",
            "consumerGroup": "odd-readers",
            "producerGroup": "odd-writers",
            "group": "odd-readers",
            "queueId": pick(("0", "0", "-1")),
            "bname": "popgate",
            "queueOffset": "0",
            "maxMsgNums": "8",
            "sysFlag": pick(("0", "4", "6")),
            "commitOffset": "0",
            "suspendTimeoutMillis": "50",
            "subscription": "*",
            "expressionType": "TAG",
            "subVersion": "1",
            "timestamp": "1700000000000",
            "offset": pick(self.places),
            "delayLevel": "0",
            "originTopic": "odd",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "bornTimestamp": "1",
            "flag": "0",
            "properties": properties,
            "invisibleTime": "10000",
            "pollTime": "50",
            "bornTime": "0",
            "initMode": "0",
            "extraInfo": pick(self.seen),
            "commitLogOffset": "0",
            "clientId": "me",
            "tranStateTableOffset": "0",
            "commitOrRollback": pick(("0", "8", "12")),
            "clientID": "me",
            "msgId": make_message_id(),
            "recallHandle": pick(self.recalls),
            "namespace": "ORDER_TOPIC_CONFIG",
            "key": pick(("odd", "k")),
            "maxNum": "8",
            "beginTimestamp": "0",
            "endTimestamp": str(2**62),
            "index": "0",
            "count": "8",
            "cluster": "DefaultCluster",
        }
        if code in DELETES and self.random.random() < 0.97:
            # Mostly another one: what all others are about must be there.
            fields |= {"topic": "odd-gone", "groupName": "odd-gone"}
        if code in (310, 320, 325):
            fields = {**send, "i": properties, "j": "0", "k": "false", "m": str(code == 320).lower()}
        if code == RequestCode.SEND_BATCH_MESSAGE:
            block = PROPERTIES.format(make_message_id()).encode()
            return fields, encode_batch([(0, b"odd", block), (0, b"even", block)])
        return fields, self.bodies.get(code, b"odd")

    def change(self, fields: dict[str, str], body: bytes) -> bytes:
        for _ in range(self.random.choice((0, 1, 1, 2, 4))):
            name = self.random.choice(list(fields))
            match self.random.randrange(4):
                case 0:
                    fields.pop(name)
                case 1:
                    fields[name] = str(self.random.choice(NUMBERS))
                case 2 if len(fields[name]) > 1:
                    at = self.random.randrange(len(fields[name]))
                    fields[name] = (
                        fields[name][:at] + self.random.choice("0 -%\x01\x02名") + fields[name][at + 1 :]
                    )
                case _:
                    fields[name] = self.random.choice(TEXTS)
            if not fields:
                break
        return mutated(self.random, body) if self.random.random() < 0.3 else body

    def learn(self, answer: Command) -> None:
        """Keep the handles that were given out, and where messages lie: later requests use them."""
        if value := answer.fields.get("recallHandle"):
            self.recalls.append(value)
        if answer.code == ResponseCode.SUCCESS and "msgOffsetInfo" in answer.fields:
            _, popped = read_popped(answer, "popgate", "odd", BrokerClocks(MovableClock()))
            self.seen += [message.receipt for message in popped]
        if len(place := answer.fields.get("msgId", "")) == len(PLACE):
            self.places.append(str(decode_offset_message_id(place)[1]))
        del self.seen[:-50], self.places[:-50], self.recalls[:-50]


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayProcess]:
    async with running_gateway(
        listen=("remoting://127.0.0.1:0",),
        options=("--set", "limits.max_body_bytes=64KiB", "--set", "limits.max_wait_s=1"),
    ) as running:
        yield running


async def client_of(gateway: GatewayProcess, serialization: Serialization) -> RemotingClient:
    host, _, port = gateway.endpoint.rpartition(":")
    client = await RemotingClient.connect(host, int(port), serialization=serialization)
    client.replies = lambda asked: asked.answer(ResponseCode.SYSTEM_ERROR, "not me")
    return client


def judge(code: int, fields: dict[str, str], answer: Command) -> None:
    """Raises AssertionError for an answer that no request may get."""
    assert BUG not in answer.remark, (code, fields, answer.remark)
    assert answer.code in RESPONSE_CODES, (code, answer.code)
    assert answer.code == 0 or code in (11, 361, 200050) or 0 < len(answer.remark) < 2_000, (code, answer)


async def ask(client: RemotingClient, odd: Odd, code: int, codes: Counter[tuple[int, int]]) -> None:
    """One odd request; it is answered, and what its answer gives out is used by later ones."""
    fields, body = odd.right(code)
    answer: Command = await client.call(code, fields, odd.change(fields, body))
    judge(code, fields, answer)
    codes[code, answer.code] += 1
    odd.learn(answer)


@pytest.mark.parametrize("seed", range(2))
async def test_no_request_however_odd_is_answered_as_a_bug(gateway: GatewayProcess, seed: int) -> None:
    odd = Odd(seed)
    codes: Counter[tuple[int, int]] = Counter()
    plain, binary = [await client_of(gateway, one) for one in Serialization]
    served = [int(code) for code in RequestCode]
    for _ in range(ROUNDS):
        # Each code once, at the same time, but for what answers nothing but that it is not known.
        await asyncio.gather(
            *(
                ask(plain if code > 0x7FFF or odd.random.random() < 0.5 else binary, odd, code, codes)
                for code in served
            )
        )
        served = [
            code for code in served if codes[code, 3] < sum(n for (c, _), n in codes.items() if c == code)
        ]

    # That was no test if everything had been refused, or nothing.
    assert len(served) > 20, served
    for code in (310, 320, 11, 14, 15, 34, 105, 200050):
        assert codes[code, 0], (code, codes)
    fields, body = odd.right(310)
    assert (await plain.call(310, {**fields, "b": f"sound-{seed}"}, body)).code == ResponseCode.SUCCESS
    assert "Traceback" not in gateway.log
    for client in (plain, binary):
        await client.close()


@pytest.mark.parametrize("seed", range(2))
async def test_bytes_that_are_no_frames_end_their_connection_alone(
    gateway: GatewayProcess, seed: int
) -> None:
    odd = Odd(seed)
    good = await client_of(gateway, Serialization.JSON)
    for _ in range(ROUNDS):
        serialization = odd.random.choice(list(Serialization))
        client = await client_of(gateway, serialization)
        fields, body = odd.right(310)
        right = encode_command(client.request(310, fields, body))
        client.write(b"".join(mutated(odd.random, right) for _ in range(4)))
        # It is over, or waits for more; both end with it.
        assert (await good.call(105, {"topic": "TBW102"})).code == ResponseCode.SUCCESS
        await client.close()

    assert "Traceback" not in gateway.log
    await good.close()
