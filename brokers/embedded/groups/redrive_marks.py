"""Marks of dead letters that were redriven, with the time, so that none is redriven twice.

A redriven dead letter stays where it is until retention removes it: readers of the dead-letter topic
still find it, and offsets of a queue are never reused. Marks are read and written in the
store; memory holds none of them.
"""

from __future__ import annotations

from brokers.embedded.catalog.catalog import QueueState
from brokers.embedded.storage.keys import REDRIVEN, message_key
from brokers.embedded.storage.store import Store


def mark(store: Store, queue: QueueState, offset: int, now_ms: int) -> None:
    """Note in this turn's batch that the message was redriven now."""
    store.put(REDRIVEN, message_key(queue.topic.id, queue.queue_id, offset), now_ms.to_bytes(8, "big"))


def marked_ms(store: Store, queue: QueueState, offset: int) -> int:
    """When the message was redriven, 0 if it was not."""
    value = store.get(REDRIVEN, message_key(queue.topic.id, queue.queue_id, offset))
    return int.from_bytes(value, "big") if value else 0


def marks(store: Store, queue: QueueState, begin: int, end: int) -> dict[int, int]:
    """Offsets in [begin, end) that were redriven, and when."""
    place = queue.topic.id, queue.queue_id
    # Who asks may say any numbers; beyond the queue there are no keys.
    begin, end = max(begin, 0), min(end, queue.maximum)
    if begin >= end:
        return {}
    entries = store.scan(REDRIVEN, message_key(*place, begin), message_key(*place, end))
    return {int.from_bytes(key[6:], "big"): int.from_bytes(value, "big") for key, value in entries}


def forget_below(store: Store, queue: QueueState) -> None:
    """Retention removed messages: forget the marks below the queue's minimum, if there are any."""
    begin = message_key(queue.topic.id, queue.queue_id, 0)
    end = message_key(queue.topic.id, queue.queue_id, queue.minimum)
    if store.first(REDRIVEN, begin, end) is not None:
        store.delete_range(REDRIVEN, begin, end)
