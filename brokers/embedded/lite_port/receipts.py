"""Finds the delivery of a lite topic's message that a receipt names."""

from __future__ import annotations

from brokers.embedded.catalog.catalog import Group, Topic
from brokers.embedded.groups.receipts import MOVED, expired
from brokers.embedded.lite.cursor import LITE_QUEUE, Cursor
from brokers.embedded.lite.engine import LiteEngine
from popgate.errors import IllegalReceipt, ReceiptExpired
from popgate.ids.receipt import NO_BROKER, Receipt, parse_receipt


def find_delivery(
    lites: LiteEngine, topic: Topic, group: Group, broker: str, handle: str, now_ms: int
) -> tuple[Cursor, int] | None:
    """The place and the offset; None if the message is finished. Raises IllegalReceipt, ReceiptExpired."""
    place, receipt = _place_of(lites, topic, group, broker, handle)
    offset = receipt.offset
    entry = place.entries.get(offset)
    if entry is None:
        if offset < place.frontier:
            if place.was_moved(offset, receipt.pop_ms):
                raise ReceiptExpired(handle, MOVED)
            return None
        raise IllegalReceipt(handle, "the message was not delivered to this group")
    if entry.pop_ms != receipt.pop_ms:
        raise ReceiptExpired(handle, "the message was delivered again since")
    if not entry.held:
        raise ReceiptExpired(handle, "the message was given back")
    if now_ms >= entry.due_ms:
        raise ReceiptExpired(handle)
    return place, offset


def find_held(
    lites: LiteEngine, topic: Topic, group: Group, broker: str, handle: str, now_ms: int
) -> tuple[Cursor, int]:
    """The same for what cannot be done with a message that is finished."""
    delivery = find_delivery(lites, topic, group, broker, handle, now_ms)
    if delivery is None:
        raise expired(handle)
    return delivery


def find_undelivered(
    lites: LiteEngine, topic: Topic, group: Group, broker: str, handle: str
) -> tuple[Cursor, int] | None:
    """The same for a delivery that reached no consumer and may have expired; None if there is none."""
    try:
        place, receipt = _place_of(lites, topic, group, broker, handle)
    except IllegalReceipt:
        return None
    entry = place.entries.get(receipt.offset)
    if entry is None or entry.pop_ms != receipt.pop_ms or not entry.held:
        return None
    return place, receipt.offset


def _place_of(
    lites: LiteEngine, topic: Topic, group: Group, broker: str, handle: str
) -> tuple[Cursor, Receipt]:
    receipt = parse_receipt(handle)
    if receipt.broker != broker:
        raise IllegalReceipt(handle, "it was given out by another broker", NO_BROKER)
    if receipt.queue_id != LITE_QUEUE:
        raise IllegalReceipt(handle, "it is for no message of a lite topic")
    place = lites.find_place(group, topic, max(receipt.commit_offset, 0))
    if place is None:
        raise IllegalReceipt(
            handle, "the lite topic of its message is gone, or this group was given nothing from it"
        )
    return place, receipt
