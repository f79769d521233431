"""Groups the messages of one send into requests to a broker. Source: protocol facts 5.7 and 7.8, rule 6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from brokers.batches import MOST_BYTES, MOST_MESSAGES
from popgate.model import Message, MessageType
from popgate.wire.messages.properties import (
    DELAY,
    LONGEST_IN_BATCH,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    WAIT,
    find_property,
)
from popgate.wire.messages.records import TRANSACTION_MASK

_AROUND: Final = 22
"""Bytes that a message of a batch has beside its body and its properties."""
_LONGEST_TOPIC: Final = 127
_ALONE: Final = tuple(
    f"{name}\x01".encode() for name in (DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS)
)
_WAIT: Final = WAIT.encode()


def may_batch(topic: str) -> bool:
    """Whether the messages of a topic may go together at all."""
    return not topic.startswith("%RETRY%") and len(topic.encode("utf-8", "replace")) <= _LONGEST_TOPIC


def goes_alone(message: Message) -> bool:
    """Whether a message is none that a batch may hold: held back, half, with a way of its own, or
    with so many properties that what a broker adds to those of a batch may be too much."""
    if (
        message.deliver_at_ms
        or message.type is MessageType.TRANSACTION
        or message.sys_flag & TRANSACTION_MASK
        or message.lite_topic
        or message.priority is not None
    ):
        return True
    properties = message.properties
    if len(properties) > LONGEST_IN_BATCH:
        return True
    # `find`, because `in` costs an exception within: CPython tries a number first.
    if (properties.find(b"TIMER_DEL") >= 0 or properties.find(b"DELAY\x01") >= 0) and any(
        name in properties for name in _ALONE
    ):
        return True
    # Every message of a Java client says that its broker is to wait for the disk, which is what brokers do.
    return properties.find(b"WAIT\x01") >= 0 and (find_property(properties, _WAIT) or b"").lower() != b"true"


def is_held_back(message: Message) -> bool:
    """Whether its place in its queue means nothing, so that it need not wait for those before it."""
    return bool(message.deliver_at_ms) or message.type is MessageType.TRANSACTION


def in_batches(messages: Sequence[Message], *, together: bool) -> list[list[Message]]:
    """Cut what goes to one queue, in its order, into requests: each a batch, or one message.

    What the header of a request says once must be the same for all of a batch: `sys_flag`, the
    producer group. The first message of a batch always fits.
    """
    if len(messages) == 1:
        return [list(messages)]
    batches: list[list[Message]] = []
    room = 0
    for message in messages:
        size = len(message.body) + len(message.properties) + _AROUND
        alone = not together or goes_alone(message)
        if not alone and batches and size <= room and len(batches[-1]) < MOST_MESSAGES:
            first = batches[-1][0]
            if message.sys_flag == first.sys_flag and message.producer_group == first.producer_group:
                batches[-1].append(message)
                room -= size
                continue
        batches.append([message])
        room = 0 if alone else MOST_BYTES - size
    return batches
