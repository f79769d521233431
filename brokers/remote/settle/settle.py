"""Settles deliveries at a cluster: finished, hidden for longer, released, dead-lettered.

A broker answers SUCCESS to invalid handles, and to expired ones: those it accepts for a moment more,
and then ignores. So the gateway judges what it can before it sends a request: by the broker's own clock,
as its responses show it, and by what this process did with the handle before. Sources: protocol facts 4.4
and 4.5, any-replica section 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.access.refreshing_cache import RefreshingCache
from brokers.remote.settle.ack_batcher import Ack, real_topic
from brokers.remote.settle.deliveries import Deliveries
from popgate.answers import error_of
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerBusy,
    BrokerUnavailable,
    Fault,
    GatewayError,
    IllegalReceipt,
    NotFound,
    PeerWireError,
    ReceiptExpired,
)
from popgate.ids.receipt import Receipt, parse_receipt
from popgate.model import GroupConfig
from popgate.wire.bodies.routes import TopicRoute
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.messages.records import decode_record

LONGEST_INVISIBLE_MS = 3 * 24 * 3_600_000 - 60_000
"""A broker keeps the end of an invisible time as a timer, and a timer for three days at most (3.9)."""


class Settlement:
    """The port's `ack`, `change_invisible`, `give_back` and `dead_letter`."""

    def __init__(
        self, access: ClusterAccess, deliveries: Deliveries, groups: RefreshingCache[GroupConfig]
    ) -> None:
        self._client = access.client
        self._routes = access.routes
        self._deliveries = deliveries
        self._groups = groups

    async def ack(
        self, context: Context, topic: str, group: str, receipts: Sequence[str]
    ) -> list[GatewayError | None]:
        """Refused acknowledgements are not sent, and for sent ones the broker's response counts.

        A broker accepts an acknowledgement for a moment after its delivery has expired: a refused
        one that was sent would finish the message all the same.
        """
        route = self._routes.kept(topic) or await self._routes.of(topic)
        known = context.group
        if (known is None or known.name != group) and self._groups.kept(group) is None:
            await self._groups.of(group)
        finished = self._deliveries.finished
        if len(receipts) == 1:
            # Without the lists and tables for what several have in common.
            judged = self._judge(topic, group, receipts[0], route)
            if type(judged) is IllegalReceipt:
                judged = self._judge(topic, group, receipts[0], await self._routes.newer(topic, route))
            if isinstance(judged, GatewayError):
                return [judged]
            if judged.handle in finished:
                self._deliveries.repeated.add(judged.handle)
            finished.add(judged.handle)
            outcomes = await self._deliveries.acking.finish(judged.receipt.broker, [judged])
            self._note(judged, outcomes[0])
            if outcomes[0] is None:
                self._deliveries.acknowledged.add(judged.handle)
            return _told(outcomes)
        results, by_broker, illegal = self._judge_all(topic, group, receipts, route)
        if illegal:
            # A broker pops from queues that it has only just been given.
            newer = await self._routes.newer(topic, route)
            results, by_broker, _ = self._judge_all(topic, group, receipts, newer)
        requests = []
        for broker, (places, acks) in by_broker.items():
            handles = [ack.handle for ack in acks]
            if finished.add_all(handles):
                # Which of them costs more to know than it is worth: it only counts where this fails.
                self._deliveries.repeated.add_all(handles)
            requests.append((places, acks, self._deliveries.acking.finish(broker, acks)))
        for places, acks, done in requests:
            outcomes = await done
            for at, ack, outcome in zip(places, acks, outcomes, strict=True):
                if outcome is not None or ack.receipt.ordered:  # of others there is nothing to note
                    results[at] = outcome
                    self._note(ack, outcome)
            self._deliveries.acknowledged.add_all(
                [ack.handle for ack, outcome in zip(acks, outcomes, strict=True) if outcome is None]
            )
        return _told(results)

    def _judge_all(
        self, topic: str, group: str, receipts: Sequence[str], route: TopicRoute
    ) -> tuple[list[GatewayError | None], dict[str, tuple[list[int], list[Ack]]], bool]:
        """Why handles are refused, the requests for the others by broker, each with its places among the
        handles, and whether one is no handle of a place in the route."""
        results: list[GatewayError | None] = [None] * len(receipts)
        by_broker: dict[str, tuple[list[int], list[Ack]]] = {}
        checked: set[tuple[object, ...]] = set()
        replaced = self._deliveries.replaced.any_of(receipts)
        illegal = False
        for at, handle in enumerate(receipts):
            judged = self._judge(topic, group, handle, route, checked, replaced)
            if isinstance(judged, GatewayError):
                results[at] = judged
                illegal = illegal or type(judged) is IllegalReceipt
                continue
            broker = judged.receipt.broker
            place = by_broker.get(broker)
            if place is None:
                place = by_broker[broker] = [], []
            place[0].append(at)
            place[1].append(judged)
        return results, by_broker, illegal

    def _judge(
        self,
        topic: str,
        group: str,
        handle: str,
        route: TopicRoute,
        checked: set[tuple[object, ...]] | None = None,
        replaced: bool = True,
    ) -> Ack | GatewayError:
        """The request for a handle, or why it is refused.

        `checked`: of several handles, the pops and places that are good; it is added to. `replaced`: whether
        the handle may be a replaced one.
        """
        deliveries = self._deliveries
        try:
            receipt = parse_receipt(handle)
            # Nearly all of several are from few places, and of few pops: each is looked at once.
            in_time = checked is not None and receipt[1:7] in checked
            if not in_time:
                deliveries.check_place(receipt, handle, topic, group, route)
        except IllegalReceipt as error:
            return error
        if replaced and handle in deliveries.replaced and handle not in deliveries.unsure:
            return ReceiptExpired(handle, "its invisible time was changed, or it was given back")
        if not in_time:
            if deliveries.is_over(topic, group, receipt):
                if handle not in deliveries.acknowledged:
                    return ReceiptExpired(handle)
            elif checked is not None and not receipt.ordered:
                checked.add(receipt[1:7])
        # `Ack(...)`, without a call of Python for each.
        return tuple.__new__(Ack, (topic, group, receipt, handle))

    async def _receipt(self, topic: str, group: str, handle: str, route: TopicRoute) -> Receipt:
        """Read a handle. Raises IllegalReceipt where neither `route` nor a newer one has its place."""
        try:
            return self._deliveries.delivery(handle, topic, group, route)
        except IllegalReceipt:
            pass
        newer = await self._routes.newer(topic, route)
        return self._deliveries.delivery(handle, topic, group, newer)

    def _receipts(
        self, topic: str, group: str, handles: Sequence[str], route: TopicRoute
    ) -> dict[str, Receipt]:
        """Read handles, without those whose place is not in `route`."""
        receipts = {}
        for handle in handles:
            try:
                receipts[handle] = self._deliveries.delivery(handle, topic, group, route)
            except IllegalReceipt:
                continue
        return receipts

    def _note(self, ack: Ack, outcome: GatewayError | None) -> None:
        """Keep what the outcome of an acknowledgement says of the delivery."""
        if outcome is None:
            if ack.receipt.ordered:
                self._deliveries.ordered.finished(ack.topic, ack.group, ack.receipt)
        elif isinstance(outcome, (BrokerUnavailable, BrokerBusy)):
            self._deliveries.not_finished(ack.handle)

    async def change_invisible(
        self,
        context: Context,
        topic: str,
        group: str,
        receipt: str,
        invisible_ms: int,
        *,
        suspend: bool = False,
    ) -> str:
        route = await self._routes.of(topic)
        await self._groups.of(group)
        if not 0 <= invisible_ms <= LONGEST_INVISIBLE_MS:
            raise BadRequest(
                f"an invisible time of {invisible_ms} ms is not possible, the longest is"
                f" {LONGEST_INVISIBLE_MS} ms",
                Fault.ILLEGAL_INVISIBLE_TIME,
            )
        delivery = await self._receipt(topic, group, receipt, route)
        self._deliveries.check_usable(topic, group, receipt, delivery)
        changed = await self._deliveries.hide(
            context, topic, group, receipt, delivery, invisible_ms, suspend=suspend
        )
        handle = changed.encode()
        if suspend:
            self._deliveries.returns.returned(receipt)  # brokers before 5.5.0 count it as an attempt
            self._deliveries.replaced.add(receipt)
            self._deliveries.replaced.add(handle)
        return handle

    async def give_back(self, context: Context, topic: str, group: str, receipts: Sequence[str]) -> int:
        """Never tried again, and never for what this process saw finished."""
        receipts = list(dict.fromkeys(receipts))
        try:
            route = await self._routes.of(topic)
            await self._groups.of(group)
            deliveries = self._receipts(topic, group, receipts, route)
            if len(deliveries) < len(receipts):
                newer = await self._routes.newer(topic, route)
                deliveries = self._receipts(topic, group, receipts, newer)
        except NotFound:
            return 0
        free = []
        for handle, delivery in deliveries.items():
            try:
                self._deliveries.check_usable(topic, group, handle, delivery)
            except IllegalReceipt:
                continue
            free.append(self._deliveries.free(topic, group, handle, delivery))
        return sum(await asyncio.gather(*free))

    async def dead_letter(self, context: Context, topic: str, group: str, receipt: str) -> None:
        route = await self._routes.of(topic)
        await self._groups.of(group)
        delivery = await self._receipt(topic, group, receipt, route)
        self._deliveries.check_usable(topic, group, receipt, delivery)
        if delivery.commit_offset < 0:
            raise IllegalReceipt(receipt, "it does not say where the message is stored")
        await self._check_message(context, topic, group, receipt, delivery)
        self._deliveries.check_usable(topic, group, receipt, delivery)  # it may be finished by now
        await self._deliveries.bury_whole(context, topic, group, receipt, delivery)

    async def _check_message(
        self, context: Context, topic: str, group: str, handle: str, receipt: Receipt
    ) -> None:
        """Raises IllegalReceipt if the message that is to be copied is one of another topic.

        A broker copies what begins at the offset that it is told, whatever topic that is of, and a client may
        write what it likes into a handle. What the broker does not show it is asked to copy all the same:
        it says why it cannot. But not what it does not show now alone: a client that keeps it busy would
        have anything copied. Raises BrokerBusy, BrokerUnavailable, BrokerTimeout: nothing was done.
        """
        answer = await self._client.call_patiently(
            receipt.broker,
            RequestCode.VIEW_MESSAGE_BY_ID,
            {"offset": str(receipt.commit_offset)},
            context=context,
        )
        if answer.code == ResponseCode.SYSTEM_BUSY:
            raise error_of(answer, broker=receipt.broker, topic=topic, group=group)
        if answer.code != ResponseCode.SUCCESS:
            return
        try:
            stored = decode_record(answer.body).topic
        except PeerWireError:
            return
        if stored != real_topic(topic, group, receipt):
            raise IllegalReceipt(handle, "the message that it names is one of another topic")


def _told(results: list[GatewayError | None]) -> list[GatewayError | None]:
    """The results; raised is what kept the broker from doing any of it."""
    first = results[0] if results else None
    if first is not None and first.retryable and all(type(result) is type(first) for result in results):
        raise first
    return results
