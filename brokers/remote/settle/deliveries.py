"""What this process knows of deliveries: clocks of brokers, handles that are spent, returns."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.settle.ack_batcher import Ack, AckBatcher, real_topic
from brokers.remote.settle.broker_clocks import BrokerClocks
from brokers.remote.settle.ordered_deliveries import OrderedDeliveries
from brokers.remote.settle.recent_handles import RecentHandles
from brokers.remote.settle.undelivered import Undelivered
from popgate.answers import error_of
from popgate.context import Context
from popgate.errors import (
    BrokerBusy,
    BrokerTimeout,
    BrokerUnavailable,
    GatewayError,
    IllegalReceipt,
    ReceiptExpired,
    shown,
)
from popgate.ids.receipt import NO_BROKER, OF_TOPIC, ORDERED, Receipt, parse_receipt
from popgate.naming import RETRY_PREFIX, pop_retry_origin
from popgate.wire.bodies.routes import TopicRoute
from popgate.wire.frames.codes import RequestCode, ResponseCode

SUSPENDS_FROM = 513
"""The version that brokers tell (5.5.0) from which on a delivery can be given up without being counted."""
_ACK_TRIES = 3
"""An acknowledgement may be repeated: done twice it is done once."""
_NOT_DONE = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
    }
)
"""Answers of a broker that surely left a delivery as it was."""
_ILLEGAL = frozenset({ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_MESSAGE, ResponseCode.INVALID_PARAMETER})


class Deliveries:
    """What pops and settlement know of deliveries.

    `finished`: handles whose messages are or may be acknowledged or dead-lettered, or are in progress;
    `acknowledged`: those that their broker confirmed; `repeated`: those that were in `finished` when they
    were acknowledged once more, so that a failure says nothing of them. `replaced`: those whose messages were
    hidden again or freed, where that creates a new handle; `unsure`: those of them without a response from
    their broker.
    """

    def __init__(self, access: ClusterAccess) -> None:
        self._client = access.client
        self._clock = access.clock
        self._routes = access.routes
        self.clocks = BrokerClocks(access.clock)
        self.finished = RecentHandles()
        self.acknowledged = RecentHandles()
        self.repeated = RecentHandles()
        self.replaced = RecentHandles()
        self.unsure = RecentHandles()
        self.returns = Undelivered()
        self.ordered = OrderedDeliveries()
        self.acking = AckBatcher(self._client)
        self._works: set[asyncio.Task[object]] = set()

    async def stop(self) -> None:
        while self._works:
            await asyncio.wait(list(self._works))
        await self.acking.stop()

    # -- inside -------------------------------------------------------------------------------

    def in_background(self, work: Coroutine[object, object, object]) -> None:
        """Run something in the background; `stop` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)

    def delivery(self, handle: str, topic: str, group: str, route: TopicRoute) -> Receipt:
        """Read a handle. Raises IllegalReceipt for one that no broker can have issued for the group."""
        receipt = parse_receipt(handle)
        self.check_place(receipt, handle, topic, group, route)
        return receipt

    def check_place(self, receipt: Receipt, handle: str, topic: str, group: str, route: TopicRoute) -> None:
        """Raises IllegalReceipt for a place that no broker has, or from which the group pops nothing."""
        if not may_be_popped(topic, group):
            # Whoever writes a handle himself would have the broker give back what it cannot.
            raise IllegalReceipt(handle, f"nothing is popped from {shown(topic)} as group {group}")
        if receipt.revive_queue > ORDERED:
            # A broker makes each queue that it is told, with a file of 6 MB, and keeps it.
            raise IllegalReceipt(handle, f"no broker has a revive queue {receipt.revive_queue}")
        broker = receipt.broker
        for queues in route.queues:
            if queues.broker == broker:
                break
        else:
            if route.broker(broker) is None and self._routes.clusters.get(broker) is None:
                raise IllegalReceipt(handle, "no broker of that name is known", NO_BROKER)
            return
        if (
            receipt.topic_type == OF_TOPIC
            and not route.mappings
            and receipt.queue_id >= max(queues.read_queues, queues.write_queues)
        ):
            raise IllegalReceipt(handle, f"topic {topic} has no queue {receipt.queue_id} there")

    def is_over(self, topic: str, group: str, receipt: Receipt) -> bool:
        """Whether the time of a delivery is surely over, by the broker's clock, as far as is known here."""
        due_ms = self.ordered.due_ms(topic, group, receipt) if receipt.ordered else receipt.due_ms
        return self.clocks.surely_past_ms(receipt.broker) >= due_ms

    def check_usable(self, topic: str, group: str, handle: str, receipt: Receipt) -> None:
        """Raises ReceiptExpired for a delivery that must not be touched any more: it could come back."""
        if self._is_finished(handle):
            raise ReceiptExpired(handle, "the message is finished already")
        if handle in self.replaced:
            raise ReceiptExpired(handle, "its invisible time was changed, which made a new handle")
        if self.is_over(topic, group, receipt):
            raise ReceiptExpired(handle)

    def not_finished(self, handle: str) -> None:
        """A try to finish this failed; unless there was another one, the message surely is not finished."""
        if handle not in self.repeated:
            self.finished.discard(handle)

    def _is_finished(self, handle: str) -> bool:
        # Confirmed ones also where a repetition failed, which takes them out of the others.
        return handle in self.finished or handle in self.acknowledged

    async def hide(
        self,
        context: Context | None,
        topic: str,
        group: str,
        handle: str,
        receipt: Receipt,
        invisible_ms: int,
        *,
        suspend: bool,
    ) -> Receipt:
        """Change the invisible time of a delivery; returns the new receipt. Never retried.

        A broker checks no state: it would make a finished message visible again (any-replica, section 1).
        Raises ReceiptExpired, IllegalReceipt, and failures of brokers.
        """
        if not receipt.ordered:
            self.replaced.add(handle)
        fields = {
            "consumerGroup": group,
            "topic": real_topic(topic, group, receipt),
            "queueId": str(receipt.queue_id),
            "extraInfo": handle,
            "offset": str(receipt.offset),
            "invisibleTime": str(invisible_ms),
            "suspend": "true" if suspend else "false",
        }
        broker = receipt.broker
        asked = self._clock.monotonic()
        try:
            answer = await self._client.call_patiently(
                broker, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields, context=context
            )
        except (BrokerUnavailable, BrokerBusy):
            self.replaced.discard(handle)
            raise
        except BaseException:
            self.unsure.add(handle)
            raise
        if answer.code != ResponseCode.SUCCESS:
            if answer.code in _NOT_DONE:
                self.replaced.discard(handle)
            else:
                self.unsure.add(handle)
            if answer.code in _ILLEGAL:
                raise IllegalReceipt(handle, answer.remark[:200] or "the broker refuses it")
            raise error_of(answer, broker=broker, topic=topic, group=group)
        renewed = answer.fields
        pop_ms = _number(renewed.get("popTime"))
        if receipt.ordered:
            if not pop_ms:
                # Below what the group has finished (4.5).
                raise ReceiptExpired(handle, "the message is finished already")
            start = receipt.start_offset
        else:
            self.clocks.told(broker, pop_ms, asked, self._clock.monotonic())
            start = receipt.offset
        changed = Receipt(
            start,
            pop_ms or receipt.pop_ms,
            _number(renewed["invisibleTime"]) if "invisibleTime" in renewed else invisible_ms,
            _number(renewed["reviveQid"]) if "reviveQid" in renewed else receipt.revive_queue,
            receipt.topic_type,
            broker,
            receipt.queue_id,
            receipt.offset,
            receipt.commit_offset,
        )
        if receipt.ordered:
            self.ordered.renewed(topic, group, changed)
        return changed

    async def free(self, topic: str, group: str, handle: str, receipt: Receipt) -> bool:
        """Return a delivery that reached no consumer as well as the broker can; whether it was freed."""
        # Since the caller looked. Of ordered ones it may have put down itself that nobody else has them.
        if self._is_finished(handle) or (handle in self.replaced and not receipt.ordered):
            return False
        self.returns.returned(handle)
        try:
            await self.hide(None, topic, group, handle, receipt, 0, suspend=True)
        except GatewayError:
            return False
        if receipt.ordered:
            self.replaced.add(handle)
        return True

    async def bury_whole(
        self, context: Context, topic: str, group: str, handle: str, receipt: Receipt
    ) -> None:
        """As `bury`, and to its end also when the caller is cancelled. Raises as it does."""
        self.finished.add(handle)  # before anybody else asks
        task = asyncio.get_running_loop().create_task(self.bury(context, topic, group, handle, receipt))
        self._works.add(task)
        task.add_done_callback(self._ended)
        await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._works.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited for it was told

    async def bury(
        self, context: Context | None, topic: str, group: str, handle: str, receipt: Receipt
    ) -> None:
        """Copy a message to the group's dead letters, then finish its delivery (3.10).

        Raises the failure of the copy. If finishing fails, the message is redelivered, and is
        in both places: that is not reported as a failure, because a retry would copy it again.
        """
        self.finished.add(handle)
        fields = {
            "offset": str(receipt.commit_offset),
            "group": group,
            "delayLevel": "-1",
            "originMsgId": "",
            "originTopic": real_topic(topic, group, receipt),
            "unitMode": "false",
            "maxReconsumeTimes": "0",
        }
        broker = receipt.broker
        try:
            answer = await self._client.call_patiently(
                broker, RequestCode.CONSUMER_SEND_MSG_BACK, fields, context=context
            )
        except (BrokerUnavailable, BrokerBusy):
            self.not_finished(handle)
            raise
        if answer.code != ResponseCode.SUCCESS:
            self.not_finished(handle)
            if answer.code == ResponseCode.SYSTEM_ERROR and "look message" in answer.remark:
                raise IllegalReceipt(handle, "there is no such message")
            raise error_of(answer, broker=broker, topic=topic, group=group)
        for _ in range(_ACK_TRIES):
            (outcome,) = await self.acking.finish(broker, [Ack(topic, group, receipt, handle)])
            if outcome is None and receipt.ordered:
                self.ordered.finished(topic, group, receipt)
            if not isinstance(outcome, (BrokerUnavailable, BrokerTimeout, BrokerBusy)):
                return


def may_be_popped(topic: str, group: str) -> bool:
    """Whether a broker can give back what the group pops from a topic.

    It derives the topic of a redelivery from the name of the topic that the message was popped from. If it
    finds none in the name, as in that of a retry topic which is not for the group's own pops of a topic, it
    fails, retries, and never again revives any message that others popped through the same revive queue; if
    that topic does not exist, or is a wrong one, the message is lost. It does so for every check point, also
    for those that it writes when an invisible time is changed. Source: RocketMQ 5.3.3,
    PopReviveService.mergeAndRevive, KeyBuilder.parseNormalTopic, ChangeInvisibleTimeProcessor.
    """
    return not topic.startswith(RETRY_PREFIX) or bool(pop_retry_origin(group, topic))


def _number(text: str | None) -> int:
    """A number in a response; 0 if it is not one."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else 0
