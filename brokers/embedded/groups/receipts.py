"""Finds the delivery that a receipt names."""

from __future__ import annotations

from brokers.embedded.catalog.catalog import Topic
from brokers.embedded.groups.entries import Entry
from brokers.embedded.groups.group_topic import GroupTopic
from brokers.embedded.groups.ledger import Ledger
from brokers.embedded.storage.keys import OFFSET_BITS, QUEUE_BITS, commit_offset
from popgate.errors import IllegalReceipt, ReceiptExpired
from popgate.ids.receipt import NO_BROKER, OF_TOPIC, ORDERED, Receipt, parse_receipt

_LOW_OFFSET = (1 << OFFSET_BITS) - 1
_FINISHED = "the message is finished already"
MOVED = "its message was moved to another topic since"


def find_delivery(
    share: GroupTopic | None, topic: Topic, broker: str, handle: str, now_ms: int
) -> tuple[Ledger, int, Entry] | None:
    """The ledger, the offset and the entry of the delivery; None if the message is finished.

    A receipt of the group's retry topic refers to `share.retries`. Raises IllegalReceipt for
    a receipt that this group never got, ReceiptExpired for an old one.
    """
    fields = handle.split(" ")
    if share is not None and len(fields) == 9 and len(handle) < 256 and fields[5] == broker:
        try:
            queue_id, offset = int(fields[6]), int(fields[7])
            ledger = share.ledgers[queue_id]
            entry = ledger.entries[offset]
            place = (topic.id << QUEUE_BITS | queue_id) << OFFSET_BITS | (offset & _LOW_OFFSET)
            if (
                entry.pop_ms == int(fields[1])
                and entry.held
                and now_ms < entry.due_ms
                and int(fields[8]) == place
            ):
                return ledger, offset, entry
        except (ValueError, KeyError):
            pass  # told properly below
    return _find_carefully(share, topic, broker, handle, now_ms)


def find_undelivered(
    share: GroupTopic | None, topic: Topic, broker: str, handle: str
) -> tuple[Ledger, int, Entry] | None:
    """The same for a delivery that reached no consumer and may have expired; None if there is none."""
    try:
        ledger, receipt = _ledger_of(share, topic, broker, handle)
    except IllegalReceipt:
        return None
    entry = ledger.entries.get(receipt.offset)
    if entry is None or entry.pop_ms != receipt.pop_ms or not entry.held:
        return None
    return ledger, receipt.offset, entry


def encode_handle(ledger: Ledger, offset: int, entry: Entry, broker: str) -> str:
    """The current receipt of a delivery."""
    queue = ledger.queue
    return Receipt(
        offset,
        entry.pop_ms,
        max(entry.due_ms - entry.pop_ms, 0),
        ORDERED if ledger.ordered else 0,
        ledger.share.topic_type,
        broker,
        queue.queue_id,
        offset,
        commit_offset(queue.topic.id, queue.queue_id, offset),
    ).encode()


def expired(handle: str) -> ReceiptExpired:
    """The error for an operation on a finished message."""
    return ReceiptExpired(handle, _FINISHED)


def _find_carefully(
    share: GroupTopic | None, topic: Topic, broker: str, handle: str, now_ms: int
) -> tuple[Ledger, int, Entry] | None:
    ledger, receipt = _ledger_of(share, topic, broker, handle)
    offset = receipt.offset
    entry = ledger.entries.get(offset)
    if entry is None and offset < ledger.frontier:
        if ledger.was_moved(offset, receipt.pop_ms):
            raise ReceiptExpired(handle, MOVED)
        return None
    if entry is None or entry.pop_ms == 0:
        raise IllegalReceipt(handle, "the message was not delivered to this group")
    if entry.pop_ms != receipt.pop_ms:
        raise ReceiptExpired(handle, "the message was delivered again since")
    if not entry.held:
        raise ReceiptExpired(handle, "the message was given back")
    if now_ms >= entry.due_ms:
        raise ReceiptExpired(handle)
    return ledger, offset, entry


def _ledger_of(share: GroupTopic | None, topic: Topic, broker: str, handle: str) -> tuple[Ledger, Receipt]:
    receipt = parse_receipt(handle)
    if receipt.broker != broker:
        raise IllegalReceipt(handle, "it was given out by another broker", NO_BROKER)
    if receipt.topic_type != OF_TOPIC:
        share = share.retries if share is not None else None
        if share is not None:
            topic = share.topic
    ledger = share.ledgers.get(receipt.queue_id) if share is not None else None
    if ledger is None:
        raise IllegalReceipt(handle, "this group was given nothing from that queue")
    place = commit_offset(topic.id, receipt.queue_id, receipt.offset)
    if receipt.commit_offset not in (-1, place):
        raise IllegalReceipt(handle, "it is for a message of another topic")
    return ledger, receipt
