"""Decodes a pop response into messages of the domain, each with its receipt. Source: protocol facts 4.1."""

from __future__ import annotations

from typing import Final

from brokers.remote.read.origins import true_origin
from brokers.remote.settle.broker_clocks import BrokerClocks
from popgate.errors import IllegalReceipt, PeerWireError
from popgate.ids.receipt import OF_RETRY_V1, OF_RETRY_V2, OF_TOPIC, ORDERED, Receipt, parse_receipt
from popgate.model import StoredMessage
from popgate.naming import DEAD_LETTER_PREFIX, RETRY_PREFIX
from popgate.wire.bodies.pop_info import PopInfo, parse_pop_info
from popgate.wire.frames.remoting import Command
from popgate.wire.messages.hosts import host_text
from popgate.wire.messages.properties import POP_CK, drop_properties, find_property
from popgate.wire.messages.records import Record, decode_record, sender_host, sender_ms

_POP_CK: Final = POP_CK.encode()
_LARGEST: Final = 1 << 62
_OF_REDELIVERIES: Final = (_POP_CK, b"ORIGIN_GROUP")
"""What a broker adds to a message that it stores again for a group, and a dead letter brings along."""


def read_popped(
    answer: Command, broker: str, topic: str, clocks: BrokerClocks
) -> tuple[PopInfo, list[StoredMessage]]:
    """Raises PeerWireError for an answer that cannot be read."""
    info = parse_pop_info(answer.fields)
    until_ms = clocks.ours_ms(broker, info.pop_ms + info.invisible_ms)
    messages = []
    _check(info, broker)
    dead, retries = topic.startswith(DEAD_LETTER_PREFIX), topic.startswith(RETRY_PREFIX)
    # Nearly all answers are so: then the receipts of a queue begin alike, and nothing is looked for.
    plain = not dead and info.revive_queue != ORDERED and all(kind == OF_TOPIC for kind, _ in info.offsets)
    ends = f"{info.pop_ms} {info.invisible_ms} {info.revive_queue} {OF_TOPIC} {broker}"
    starts = info.starts
    seen: set[tuple[int, int, int]] = set()
    body, at = answer.body, 0
    while at < len(body):
        record = decode_record(body, at)
        # At once: by name each costs as much as all of them.
        (
            stored_topic,
            queue_id,
            offset,
            commit_offset,
            content,
            properties,
            sys_flag,
            flag,
            _,
            _,
            store_ms,
            store_host,
            before,
            _,
            _,
            size,
        ) = record
        at += size
        born_ms, born_host = sender_ms(record), sender_host(record)
        # `find`, because `in` costs an exception within: CPython tries a number first.
        if plain and stored_topic == topic and properties.find(_POP_CK) < 0:
            start = starts.get((OF_TOPIC, queue_id), offset)
            handle = f"{start} {ends} {queue_id} {offset} {commit_offset}"
        else:
            receipt = _receipt_of(record, broker, info, seen)
            kind = receipt.topic_type
            again = kind != OF_TOPIC
            if retries:
                # A broker takes the very topic that was asked for, and tells it as the retries of one.
                receipt = receipt._replace(topic_type=OF_TOPIC)
                properties = true_origin(topic, properties)
            handle = receipt.encode()
            if dead or again:
                properties = drop_properties(properties, _OF_REDELIVERIES)
            if dead:
                properties = true_origin(topic, properties)
                # It brings along the count of the group that gave it up; of its own nothing more is known
                # than whether it was stored again for a reader.
                before = 1 if again else 0
            if receipt.ordered:
                before += info.consumed(kind, queue_id, offset)
        messages.append(
            # By place: by name costs a third more.
            StoredMessage(
                topic,
                broker,
                queue_id,
                offset,
                commit_offset,
                sys_flag,
                flag,
                born_ms,
                born_host,
                store_ms,
                host_text(store_host),
                content,
                properties,
                before + 1 if before > 0 else 1,
                handle,
                until_ms,
            )
        )
    return info, messages


def receipts_told(answer: Command, broker: str, topic: str) -> list[Receipt]:
    """The handles of messages of which the body of the answer was not read. Raises PeerWireError."""
    info = parse_pop_info(answer.fields)
    _check(info, broker)
    retries = topic.startswith(RETRY_PREFIX)
    return [
        Receipt(
            info.starts.get((kind, queue_id), offset),
            info.pop_ms,
            info.invisible_ms,
            info.revive_queue,
            OF_TOPIC if retries else kind,
            broker,
            queue_id,
            offset,
        )
        for (kind, queue_id), offsets in info.offsets.items()
        for offset in offsets
    ]


def _check(info: PopInfo, broker: str) -> None:
    """Raises PeerWireError where handles made of this would be unusable."""
    if not (0 < info.pop_ms < _LARGEST and 0 <= info.invisible_ms < _LARGEST and info.revive_queue >= 0):
        raise PeerWireError(
            f"it was popped at {info.pop_ms} for {info.invisible_ms} ms, told to queue {info.revive_queue}"
        )
    if " " in broker or any(not 0 <= start < _LARGEST for start in info.starts.values()):
        raise PeerWireError("its check points begin nowhere")


def _receipt_of(record: Record, broker: str, info: PopInfo, seen: set[tuple[int, int, int]]) -> Receipt:
    """The handle of a message: a redelivery has it as a property, for others the header has the parts.

    Producers set properties, too: one that does not match this pop is not the broker's.
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
