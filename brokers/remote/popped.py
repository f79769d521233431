"""The messages of a pop answer as the domain has them, each with its receipt. Source: protocol facts 4.1."""

from __future__ import annotations

from brokers.remote.clocks import BrokerClocks
from brokers.remote.incoming import born_host
from popgate.errors import IllegalReceipt, PeerWireError
from popgate.model import StoredMessage
from popgate.naming import DEAD_LETTER_PREFIX, RETRY_PREFIX
from popgate.receipt import OF_RETRY_V1, OF_RETRY_V2, OF_TOPIC, Receipt, parse_receipt
from popgate.wire.handles import PopInfo, parse_pop_info
from popgate.wire.hosts import host_text
from popgate.wire.properties import POP_CK, drop_properties, find_property
from popgate.wire.records import Record, decode_records
from popgate.wire.remoting import Command

_POP_CK = POP_CK.encode()
_LARGEST = 1 << 62
_OF_REDELIVERIES = (_POP_CK, b"ORIGIN_GROUP")
"""What a broker adds to a message that it stores again for a group, and a dead letter brings along."""


def read_popped(
    answer: Command, broker: str, topic: str, clocks: BrokerClocks
) -> tuple[PopInfo, list[StoredMessage]]:
    """Raises PeerWireError for an answer that cannot be read."""
    info = parse_pop_info(answer.fields)
    until_ms = clocks.ours_ms(broker, info.pop_ms + info.invisible_ms)
    messages = []
    _check(info, broker)
    dead = topic.startswith(DEAD_LETTER_PREFIX)
    seen: set[tuple[int, int, int]] = set()
    for record in decode_records(answer.body):
        receipt = _receipt_of(record, broker, info, seen)
        properties = record.properties
        if dead or receipt.topic_type != OF_TOPIC:
            properties = drop_properties(properties, _OF_REDELIVERIES)
        before = record.reconsume_times
        if dead:
            # It brings along the count of the group that gave it up; of its own nothing more is known
            # than whether it was stored again for a reader.
            before = 0 if receipt.topic_type == OF_TOPIC else 1
        if receipt.ordered:
            before += info.consumed(receipt.topic_type, receipt.queue_id, receipt.offset)
        messages.append(
            StoredMessage(
                topic=topic,
                broker=broker,
                queue_id=record.queue_id,
                offset=record.offset,
                commit_offset=record.commit_offset,
                sys_flag=record.sys_flag,
                flag=record.flag,
                born_ms=record.born_ms,
                born_host=born_host(record),
                store_ms=record.store_ms,
                store_host=host_text(record.store_host),
                body=record.body,
                properties=properties,
                attempt=max(before, 0) + 1,
                receipt=receipt.encode(),
                invisible_until_ms=until_ms,
            )
        )
    return info, messages


def _check(info: PopInfo, broker: str) -> None:
    """Raises PeerWireError where handles made of this could be used by nobody."""
    if not (0 < info.pop_ms < _LARGEST and 0 <= info.invisible_ms < _LARGEST and info.revive_queue >= 0):
        raise PeerWireError(
            f"it was popped at {info.pop_ms} for {info.invisible_ms} ms, told to queue {info.revive_queue}"
        )
    if " " in broker or any(not 0 <= start < _LARGEST for start in info.starts.values()):
        raise PeerWireError("its check points begin nowhere")


def _receipt_of(record: Record, broker: str, info: PopInfo, seen: set[tuple[int, int, int]]) -> Receipt:
    """The handle of a message: a redelivery brings it along, of others the header tells the parts.

    Properties come from producers, too: one that does not fit this very pop is not the broker's.
    """
    kind = _kind(record.topic)
    text = find_property(record.properties, _POP_CK)
    if text is not None:
        try:
            brought = parse_receipt(text.decode("utf-8", "replace"))
        except IllegalReceipt:
            brought = None
        if (
            brought is not None
            and brought.pop_ms == info.pop_ms
            and brought.revive_queue == info.revive_queue
            and (brought.broker, brought.queue_id, brought.offset) == (broker, record.queue_id, record.offset)
        ):
            return _with_place(brought, record.commit_offset)
    place = record.queue_id, record.offset
    if kind == OF_TOPIC and not _told(info, kind, place, seen):
        kind = next((k for k in (OF_RETRY_V1, OF_RETRY_V2) if _told(info, k, place, seen)), kind)
    seen.add((kind, *place))
    start = info.starts.get((kind, record.queue_id), record.offset)
    return Receipt(
        start,
        info.pop_ms,
        info.invisible_ms,
        info.revive_queue,
        kind,
        broker,
        record.queue_id,
        record.offset,
        record.commit_offset,
    )


def _told(info: PopInfo, kind: int, place: tuple[int, int], seen: set[tuple[int, int, int]]) -> bool:
    """Whether the header names this place, for a message that was not read yet."""
    queue_id, offset = place
    return (kind, *place) not in seen and offset in info.offsets.get((kind, queue_id), ())


def _with_place(receipt: Receipt, commit_offset: int) -> Receipt:
    return Receipt(
        receipt.start_offset,
        receipt.pop_ms,
        receipt.invisible_ms,
        receipt.revive_queue,
        receipt.topic_type,
        receipt.broker,
        receipt.queue_id,
        receipt.offset,
        commit_offset,
    )


def _kind(topic: str) -> int:
    if not topic.startswith(RETRY_PREFIX):
        return OF_TOPIC
    return OF_RETRY_V2 if "+" in topic else OF_RETRY_V1
