"""What becomes of deliveries at a cluster: finished, hidden for longer, freed, buried.

A broker answers SUCCESS to nonsense and to handles whose time is over, and does nothing. What can be
known is judged here: by the broker's own clock, as its answers show it, and by what this process did
with the handle before. Sources: protocol facts 4.4 and 4.5, any-replica section 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from brokers.remote.acking import Ack
from brokers.remote.handling import Handling
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    BrokerBusy,
    BrokerUnavailable,
    Fault,
    GatewayError,
    IllegalReceipt,
    NotFound,
    ReceiptExpired,
)

LONGEST_INVISIBLE_MS = 3 * 24 * 3_600_000 - 60_000
"""A broker keeps the end of an invisible time as a timer, and a timer for three days at most (3.9)."""


class Settling(Handling):
    """The port's `ack`, `change_invisible`, `give_back` and `dead_letter`."""

    async def ack(
        self, context: Context, topic: str, group: str, receipts: Sequence[str]
    ) -> list[GatewayError | None]:
        """A handle whose time is over is sent all the same, and told as expired: it may be too late.

        That counts when the broker has answered: it says SUCCESS also to what came a moment too late.
        """
        route = await self.route_of(topic)
        await self.group(group)
        results: list[GatewayError | None] = [None] * len(receipts)
        by_broker: dict[str, tuple[list[int], list[Ack]]] = {}
        for at, handle in enumerate(receipts):
            try:
                receipt = self._delivery(handle, topic, route)
            except IllegalReceipt as error:
                results[at] = error
                continue
            if handle in self.replaced:
                # Sent all the same: of a change without an answer nobody knows whether it was done.
                results[at] = ReceiptExpired(handle, "its invisible time was changed, or it was given back")
            elif self._is_over(topic, group, receipt) and handle not in self.acknowledged:
                results[at] = ReceiptExpired(handle)
            else:
                self.finished.add(handle)
            places, acks = by_broker.setdefault(receipt.broker, ([], []))
            places.append(at)
            acks.append(Ack(topic, group, receipt, handle))
        asked = [
            (places, acks, self.acking.finish(broker, acks)) for broker, (places, acks) in by_broker.items()
        ]
        for places, acks, done in asked:
            for at, ack, outcome in zip(places, acks, await done, strict=True):
                if isinstance(outcome, (BrokerUnavailable, BrokerBusy)):
                    self.finished.discard(ack.handle)
                if outcome is None and results[at] is None:
                    results[at] = self._acknowledged(topic, group, ack)
                results[at] = outcome or results[at]
        return _told(results)

    def _acknowledged(self, topic: str, group: str, ack: Ack) -> GatewayError | None:
        """What to say of an acknowledgement that its broker answered with SUCCESS."""
        if ack.handle not in self.acknowledged:
            if self._is_over(topic, group, ack.receipt):
                return ReceiptExpired(ack.handle)
            self.acknowledged.add(ack.handle)
        if ack.receipt.ordered:
            self.ordered.finished(topic, group, ack.receipt)
        return None

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
        route = await self.route_of(topic)
        await self.group(group)
        if not 0 <= invisible_ms <= LONGEST_INVISIBLE_MS:
            raise BadRequest(
                f"an invisible time of {invisible_ms} ms is not possible, the longest is"
                f" {LONGEST_INVISIBLE_MS} ms",
                Fault.ILLEGAL_INVISIBLE_TIME,
            )
        delivery = self._delivery(receipt, topic, route)
        self._check_usable(topic, group, receipt, delivery)
        changed = await self._hide(context, topic, group, receipt, delivery, invisible_ms, suspend=suspend)
        handle = changed.encode()
        if suspend:
            self.replaced.add(receipt)
            self.replaced.add(handle)
        return handle

    async def give_back(self, context: Context, topic: str, group: str, receipts: Sequence[str]) -> int:
        """Never tried again, and never for what this process saw finished."""
        try:
            route = await self.route_of(topic)
            await self.group(group)
        except NotFound:
            return 0
        free = []
        for handle in dict.fromkeys(receipts):
            try:
                self._check_usable(topic, group, handle, self._delivery(handle, topic, route))
            except IllegalReceipt:
                continue
            free.append(self._free(topic, group, handle, undelivered=True))
        return sum(await asyncio.gather(*free))

    async def dead_letter(self, context: Context, topic: str, group: str, receipt: str) -> None:
        route = await self.route_of(topic)
        await self.group(group)
        delivery = self._delivery(receipt, topic, route)
        self._check_usable(topic, group, receipt, delivery)
        if delivery.commit_offset < 0:
            raise IllegalReceipt(receipt, "it does not say where the message is stored")
        await self._bury_whole(context, topic, group, receipt)


def _told(results: list[GatewayError | None]) -> list[GatewayError | None]:
    """The results; raised is what kept the broker from doing any of it."""
    first = results[0] if results else None
    if first is not None and first.retryable and all(type(one) is type(first) for one in results):
        raise first
    return results
