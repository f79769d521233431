"""What this process knows of ordered deliveries, where a broker tells less than it could.

A broker pops a batch again from its first unfinished message on, with all that follow, also those that
were finished; and the handle of a delivery still shows its first expiry when it was renewed. What is
remembered here makes that kinder through this process; another one does not know it. Source: protocol
facts 4.5.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from popgate.receipt import Receipt

_MOST_QUEUES = 8_192
_MOST_OFFSETS = 1_024
_MOST_DUES = 16_384

_Queue = tuple[str, str, str, int, int]
"""(topic, group, broker, topic type, queue id)"""


class OrderedDeliveries:
    """Bounded: the queues and deliveries that were used last."""

    __slots__ = ("_dues", "_finished", "_old_dues")

    def __init__(self) -> None:
        self._finished: OrderedDict[_Queue, set[int]] = OrderedDict()
        self._dues: dict[int, int] = {}
        self._old_dues: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<OrderedDeliveries queues {len(self._finished)}>"

    def renewed(self, topic: str, group: str, receipt: Receipt) -> None:
        """A delivery has this receipt now; its older ones are good for as long."""
        if len(self._dues) >= _MOST_DUES:
            self._dues, self._old_dues = {}, self._dues
        self._dues[_delivery(topic, group, receipt)] = receipt.due_ms

    def due_ms(self, topic: str, group: str, receipt: Receipt) -> int:
        """Until when a delivery is held, by its receipt or by what was heard of it later."""
        key = _delivery(topic, group, receipt)
        known = self._dues.get(key) or self._old_dues.get(key)
        return receipt.due_ms if known is None else known

    def finished(self, topic: str, group: str, receipt: Receipt) -> None:
        """This message was acknowledged through this process."""
        queue = _queue(topic, group, receipt)
        offsets = self._finished.get(queue)
        if offsets is None:
            if len(self._finished) >= _MOST_QUEUES:
                self._finished.popitem(last=False)
            offsets = self._finished[queue] = set()
        if len(offsets) >= _MOST_OFFSETS:
            offsets.clear()
        offsets.add(receipt.offset)
        self._finished.move_to_end(queue)

    def popped_again(self, topic: str, group: str, receipts: Iterable[Receipt]) -> set[Receipt]:
        """Of what one pop brought, in its order: the deliveries of messages that were finished before.

        A batch is popped again from a message on that is not finished. If it begins with one that is, the
        group was set back: then nothing counts that was known of the queue.
        """
        firsts: dict[_Queue, int] = {}
        again = set()
        for receipt in receipts:
            queue = _queue(topic, group, receipt)
            offsets = self._finished.get(queue)
            if offsets is None:
                continue
            if queue not in firsts:
                firsts[queue] = receipt.offset
                if receipt.offset in offsets:
                    del self._finished[queue]
                    continue
                # What is below is done at the broker, too.
                offsets -= {offset for offset in offsets if offset < receipt.offset}
            if receipt.offset in offsets:
                again.add(receipt)
        return again


def _queue(topic: str, group: str, receipt: Receipt) -> _Queue:
    return topic, group, receipt.broker, receipt.topic_type, receipt.queue_id


def _delivery(topic: str, group: str, receipt: Receipt) -> int:
    """A delivery of an ordered group keeps its pop time when it is renewed."""
    return hash((*_queue(topic, group, receipt), receipt.offset, receipt.pop_ms))
