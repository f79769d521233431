"""What a broker's own books say of an acknowledgement, when its client was not told that it was taken.

A refusal does not prove that a message is unfinished, nor a lost answer that it is finished. So the broker
is asked, without any of the gateways' help where it is a RocketMQ: it keeps every acknowledgement that it
takes in its revive log, under a key made of the handle, and of an ordered group the position behind what is
finished. An embedded broker tells whether a group holds anything, or has anything left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from brokers.remote.settle.ack_batcher import real_topic
from popgate.ids.receipt import OF_TOPIC, Receipt, parse_receipt
from popgate.testing.rocketmq.plans import CLUSTER_NAME, MASTER
from popgate.testing.rocketmq.requests import addresses_known, ask
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.json_syntax.fastjson import loads
from popgate.wire.messages.properties import FIRST_POP_TIME, UNIQ_KEY, find_property
from popgate.wire.messages.records import Record, decode_records
from tests.replicas.ledger import Delivery
from tests.replicas.next_master import Revival

REVIVE_LOG = f"rmq_sys_REVIVE_LOG_{CLUSTER_NAME}"
_OF_A_BATCH = -1
"""The offset in the key of an acknowledgement of several messages (seen on 5.5.0); its text has them all."""
_WITHIN_S = 60.0
_WITH_SUBSCRIPTION = "4"
"""The flag of a pull that names what it wants, and needs no consumer that is registered."""

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
        return bool(_acknowledged(broker, real, group, receipt))

    async def was_ended(self, topic: str, delivery: Delivery) -> bool:
        """Whether a redelivery comes from a pop that had been ended in time, by its client or its gateway.

        A gateway gives back what it could not deliver, which no client knows of. A RocketMQ that stood still
        revives such a pop, too, before it has read of its end.
        """
        return await asyncio.to_thread(self._was_ended, topic, delivery)

    async def revivals(self, topic: str, deliveries: Sequence[Delivery]) -> list[Revival]:
        """All revivals of one message for one group, as those of its deliveries that were revived have it."""
        retried = (one for one in deliveries if parse_receipt(one.handle).topic_type != OF_TOPIC)
        one = next(retried, None)
        return [] if one is None else await asyncio.to_thread(self._revivals, topic, one)

    def _revivals(self, topic: str, delivery: Delivery) -> list[Revival]:
        revived = self._revived(topic, delivery)
        if revived is None:
            return []
        receipt = parse_receipt(delivery.handle)
        broker = addresses_known(self._name_server)[receipt.broker][MASTER]
        message_id = (find_property(revived.properties, UNIQ_KEY.encode()) or b"").decode()
        began = time.time() - time.monotonic()
        return [
            Revival(
                (record.queue_id, record.offset),
                int(find_property(record.properties, FIRST_POP_TIME.encode()) or 0) / 1000 - began,
                record.store_ms / 1000 - began,
                record.reconsume_times,
            )
            for record in _found(broker, real_topic(topic, delivery.group, receipt), message_id)
        ]

    def _revived(self, topic: str, delivery: Delivery) -> Record | None:
        """What was stored anew and given out then."""
        receipt = parse_receipt(delivery.handle)
        if receipt.ordered or receipt.topic_type == OF_TOPIC:
            return None
        broker = addresses_known(self._name_server)[receipt.broker][MASTER]
        return _at(broker, real_topic(topic, delivery.group, receipt), delivery.group, receipt)

    def _was_ended(self, topic: str, delivery: Delivery) -> bool:
        revived = self._revived(topic, delivery)
        if revived is None:
            return False
        receipt = parse_receipt(delivery.handle)
        broker = addresses_known(self._name_server)[receipt.broker][MASTER]
        retries = real_topic(topic, delivery.group, receipt)
        popped = find_property(revived.properties, FIRST_POP_TIME.encode())
        message_id = (find_property(revived.properties, UNIQ_KEY.encode()) or b"").decode()
        alike = [
            record.offset
            for record in _found(broker, retries, message_id)
            if find_property(record.properties, FIRST_POP_TIME.encode()) == popped
        ]
        # What came of it is marked alike, and was revived for a reason of its own.
        if not popped or min(alike, default=0) != receipt.offset:
            return False
        end_ms = min(int(popped) + delivery.hold_s * 1000, revived.store_ms)
        return any(
            ended.born_ms < end_ms
            for place in _found(broker, topic, message_id)
            for ended in _acknowledged(
                broker,
                topic,
                delivery.group,
                receipt._replace(pop_ms=int(popped), queue_id=place.queue_id, offset=place.offset),
            )
        )


def _acknowledged(broker: str, topic: str, group: str, receipt: Receipt) -> list[Record]:
    """The acknowledgements of a delivery in the revive log; they come there when their time is over."""
    place = (topic, str(receipt.queue_id))
    pop = (group, str(receipt.pop_ms), receipt.broker, "ack")
    return [
        record
        for offset in (receipt.offset, _OF_A_BATCH)
        for key in ["@".join((*place, str(offset), *pop))]
        for record in _found(broker, REVIVE_LOG, key)
        # Keys are compared by their hashes there.
        if key.encode() in record.properties and _is_about(loads(record.body), receipt.offset)
    ]


def _at(broker: str, topic: str, group: str, receipt: Receipt) -> Record | None:
    """The message at the place of a delivery."""
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(receipt.queue_id),
        "queueOffset": str(receipt.offset),
        "maxMsgNums": "1",
        "sysFlag": _WITH_SUBSCRIPTION,
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    answer = ask(broker, RequestCode.PULL_MESSAGE, fields, timeout_s=_WITHIN_S)
    records = decode_records(answer.body) if answer.code == ResponseCode.SUCCESS else []
    return next((record for record in records if record.offset == receipt.offset), None)


def _found(broker: str, topic: str, key: str) -> list[Record]:
    """What a topic has with this unique key."""
    fields = {
        "topic": topic,
        "key": key,
        "maxNum": "32",
        "beginTimestamp": "0",
        "endTimestamp": str((1 << 63) - 1),
        "_UNIQUE_KEY_QUERY": "true",
    }
    answer = ask(broker, RequestCode.QUERY_MESSAGE, fields, timeout_s=_WITHIN_S)
    return decode_records(answer.body) if answer.code == ResponseCode.SUCCESS else []


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

    async def was_ended(self, topic: str, delivery: Delivery) -> bool:
        """Never: this broker revives nothing that was ended."""
        return False

    async def revivals(self, topic: str, deliveries: Sequence[Delivery]) -> list[Revival]:
        """None: it has no masters that die."""
        return []
