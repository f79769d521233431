"""What this process knows of ordered deliveries and a broker does not report.

A broker pops a batch again from its first unfinished message on, with all that follow, including finished
ones; and the handle of a renewed delivery still shows its first expiry. This module hides that for deliveries
through this process; another process does not know of them. Source: protocol facts 4.5.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from popgate.ids.receipt import Receipt

_MOST_QUEUES = 8_192
_MOST_OFFSETS = 1_024
_MOST_DUES = 16_384
_MOST_HANDLES = 16_384

_Queue = tuple[str, str, str, int, int]
"""(topic, group, broker, topic type, queue id)"""


class OrderedDeliveries:
    """Bounded: the queues and deliveries that were used last."""

    __slots__ = ("_dues", "_finished", "_held", "_old_dues", "_pops")

    def __init__(self) -> None:
        self._finished: OrderedDict[_Queue, set[int]] = OrderedDict()
        self._dues: dict[int, int] = {}
        self._old_dues: dict[int, int] = {}
        self._pops: dict[_Queue, tuple[int, int]] = {}
        """Of the last pop: its first offset, and its attempt id by its hash, 0 for none."""
        self._held: OrderedDict[int, int] = OrderedDict()
        """How many were dealt the delivery of a handle, by its hash."""

    def __repr__(self) -> str:
        return f"<OrderedDeliveries queues {len(self._finished)}>"

    def renewed(self, topic: str, group: str, receipt: Receipt) -> None:
        """A delivery has this receipt now; its older ones are good for as long."""
        if len(self._dues) >= _MOST_DUES:
            self._dues, self._old_dues = {}, self._dues
        self._dues[_delivery(topic, group, receipt)] = receipt.due_ms

    def due_ms(self, topic: str, group: str, receipt: Receipt) -> int:
        """Until when a delivery is held, by its receipt or by a later renewal."""
        key = _delivery(topic, group, receipt)
        known = self._dues.get(key) or self._old_dues.get(key)
        return receipt.due_ms if known is None else known

    def dealt(self, handle: str) -> None:
        """Somebody is to have this delivery.

        A receive that is repeated within a millisecond gets the very handles of the first one.
        """
        key = hash(handle)
        self._held[key] = self._held.pop(key, 0) + 1
        if len(self._held) > _MOST_HANDLES:
            self._held.popitem(last=False)

    def is_returned(self, handle: str) -> bool:
        """One caller does not have this delivery any more; returns whether no other one has it."""
        key = hash(handle)
        others = self._held.pop(key, 1) - 1
        if others > 0:
            self._held[key] = others
        return others <= 0

    def finished(self, topic: str, group: str, receipt: Receipt) -> None:
        """This message was acknowledged, or dead-lettered, through this process."""
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

    def popped_again(
        self, topic: str, group: str, deliveries: Iterable[tuple[Receipt, int]], *, attempt_id: str = ""
    ) -> set[Receipt]:
        """Of what one pop brought, in its order: the deliveries of messages that were finished before.

        A batch is popped again from a message on that is not finished: each of its messages counts one
        attempt more, unless the receive of this `attempt_id` is repeated. If it begins with a finished
        one, the group was set back: then nothing counts that was known of the queue. It was set back as
        well if it begins before the last pop did, or a message comes as if for the first time: another
        replica may have finished the first.
        """
        mark = hash(attempt_id) if attempt_id else 0
        firsts: dict[_Queue, int] = {}
        repeated: set[_Queue] = set()
        again = set()
        for receipt, attempt in deliveries:
            queue = _queue(topic, group, receipt)
            if queue not in firsts:
                firsts[queue] = receipt.offset
                if self._is_repeated(queue, receipt.offset, mark):
                    repeated.add(queue)
                offsets = self._finished.get(queue)
                if offsets is None:
                    continue
                if receipt.offset in offsets:
                    del self._finished[queue]
                    continue
                # What is below is done at the broker, too.
                offsets -= {offset for offset in offsets if offset < receipt.offset}
            offsets = self._finished.get(queue)
            if offsets is None or receipt.offset not in offsets:
                continue
            if attempt > 1 or queue in repeated:
                again.add(receipt)
            else:
                offsets.discard(receipt.offset)
        return again

    def _is_repeated(self, queue: _Queue, first: int, mark: int) -> bool:
        """Whether the last pop of the queue was of the same receive. Forgets the queue if it was set back."""
        before, before_mark = self._pops.pop(queue, (0, 0))
        if len(self._pops) >= _MOST_QUEUES:
            del self._pops[next(iter(self._pops))]
        self._pops[queue] = first, mark
        if first < before:
            self._finished.pop(queue, None)
        return mark != 0 and mark == before_mark


def _queue(topic: str, group: str, receipt: Receipt) -> _Queue:
    return topic, group, receipt.broker, receipt.topic_type, receipt.queue_id


def _delivery(topic: str, group: str, receipt: Receipt) -> int:
    """A delivery of an ordered group keeps its pop time when it is renewed."""
    return hash((*_queue(topic, group, receipt), receipt.offset, receipt.pop_ms))
