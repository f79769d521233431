"""What a broker's own books say of an acknowledgement, when its client was not told that it was taken.

A refusal does not prove that a message is unfinished, nor a lost answer that it is finished. So the broker
is asked, without any of the gateways' help where it is a RocketMQ: it keeps every acknowledgement that it
takes in its revive log, under a key made of the handle, and of an ordered group the position behind what is
finished. An embedded broker tells whether a group holds anything, or has anything left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from brokers.remote.settle.ack_batcher import real_topic
from popgate.ids.receipt import parse_receipt
from popgate.testing.rocketmq.plans import CLUSTER_NAME, MASTER
from popgate.testing.rocketmq.requests import addresses_known, ask
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.json_syntax.fastjson import loads
from popgate.wire.messages.records import decode_records
from tests.replicas.ledger import Delivery

REVIVE_LOG = f"rmq_sys_REVIVE_LOG_{CLUSTER_NAME}"
_OF_A_BATCH = -1
"""The offset in the key of an acknowledgement of several messages (seen on 5.5.0); its text has them all."""
_WITHIN_S = 60.0

Took = Callable[[str, Delivery], Awaitable[bool]]
"""(topic, delivery) -> whether the broker surely took an acknowledgement of it, or has finished it."""


class RocketMQBooks:
    """Of the brokers that a name server knows."""

    def __init__(self, name_server: str) -> None:
        self._name_server = name_server

    async def took(self, topic: str, delivery: Delivery) -> bool:
        """Raises OSError, PeerWireError when the broker does not answer."""
        return await asyncio.to_thread(self._took, topic, delivery)

    def _took(self, topic: str, delivery: Delivery) -> bool:
        return self.has(topic, delivery.group, delivery.handle)

    async def will_have(self, topic: str, group: str, handle: str) -> bool:
        """Whether an acknowledgement is there, or comes: a broker that stood still writes it down late."""
        end = time.monotonic() + _WITHIN_S
        while not await asyncio.to_thread(self.has, topic, group, handle):
            if time.monotonic() >= end:
                return False
            await asyncio.sleep(0.5)
        return True

    def has(self, topic: str, group: str, handle: str) -> bool:
        """Whether an acknowledgement is there. Raises OSError, PeerWireError; KeyError: the broker is not."""
        receipt = parse_receipt(handle)
        broker = addresses_known(self._name_server)[receipt.broker][MASTER]
        real = real_topic(topic, group, receipt)
        if receipt.ordered:
            fields = {"consumerGroup": group, "topic": real, "queueId": str(receipt.queue_id)}
            answer = ask(broker, RequestCode.QUERY_CONSUMER_OFFSET, fields, timeout_s=_WITHIN_S)
            return answer.code == ResponseCode.SUCCESS and int(answer.fields["offset"]) > receipt.offset
        place = (real, str(receipt.queue_id))
        pop = (group, str(receipt.pop_ms), receipt.broker, "ack")
        return any(
            _is_about(told, receipt.offset)
            for offset in (receipt.offset, _OF_A_BATCH)
            for told in _kept(broker, "@".join((*place, str(offset), *pop)))
        )


def _kept(broker: str, key: str) -> list[Any]:
    """The acknowledgements of this key in the revive log; they come there when their time is over."""
    fields = {
        "topic": REVIVE_LOG,
        "key": key,
        "maxNum": "32",
        "beginTimestamp": "0",
        "endTimestamp": str((1 << 63) - 1),
        "_UNIQUE_KEY_QUERY": "true",
    }
    answer = ask(broker, RequestCode.QUERY_MESSAGE, fields, timeout_s=_WITHIN_S)
    if answer.code != ResponseCode.SUCCESS:
        return []
    found = [(record, loads(record.body)) for record in decode_records(answer.body)]
    # Keys are compared by their hashes there.
    return [told for record, told in found if key.encode() in record.properties]


def _is_about(told: Any, offset: int) -> bool:
    return offset == told.get("ao") or offset in told.get("aol", ())


class EmbeddedBooks:
    """`ask`: asks a gateway's admin port for a path."""

    def __init__(self, ask_admin: Callable[[str], Awaitable[Any]]) -> None:
        self._ask = ask_admin

    async def took(self, topic: str, delivery: Delivery) -> bool:
        """Whether its group has nothing left of the topic, neither in its hands nor before it."""
        told = await self._ask(f"/api/groups/{delivery.group}/stuck?topic={topic}")
        (standing,) = told["topics"]
        return standing["lag"] == standing["dead_lettered"] == 0
