"""Transaction ids over a cluster: all that is needed to end one, and a proof that a replica issued it.

Any replica ends any transaction, so the id contains the place of the half message: its broker, its
offset in the commit log and in the half topic's queue (RocketMQ calls it tran state table offset),
its time of birth, its topic and its producer group. The proof in it is computed with a key that the
replicas share; a second key may be accepted beside it, while keys are changed. Sources:
any-replica section 2, protocol facts 3.2 and 7.4.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from popgate.errors import IllegalTransactionId, PeerWireError, PropertiesTooLarge, shown
from popgate.ids.message_id import decode_offset_message_id
from popgate.ids.transaction_ids import seal, unseal
from popgate.model import EndTransaction, Message
from popgate.wire.messages.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    LONGEST_BLOCK,
    PGROUP,
    TRAN_MSG,
    find_property,
    set_property,
)

_HEAD = struct.Struct(">BQQQI")
_CHECKED = 1
"""Bit of the first byte: the id was given out with a check."""

CHECK_MARGIN_S = 5
"""The broker writes down that a half message ended up to 3 s later (its `transactionOpBatchInterval`), and
asks about one that it did not write down. So it may ask only so long after the last end it is told of."""

LONGEST_OPEN_S = 300
"""A broker counts each look at a half message that may not be asked about yet, one every 30 s, and gives it
up after 15 looks without asking anybody (seen on 5.5.0). So nobody is waited for longer than this."""


@dataclass(slots=True, frozen=True)
class Half:
    """Where a half message is. `born_ms`: the `bornTimestamp` it was sent with, on the gateway's clock.

    0: not known, because a classic producer names it; the broker itself refuses late commits then.
    `open_s`: so long after its birth the producer may end it unasked. A check stores the half message
    again: at new offsets, with `checked`, and then it can be ended at any time.
    """

    broker: str
    topic: str
    producer_group: str
    message_id: str
    commit_offset: int
    queue_offset: int
    born_ms: int
    open_s: int = 0
    checked: bool = False

    @property
    def open_until_ms(self) -> int:
        return self.born_ms + self.open_s * 1000


def make_transaction_id(secret: bytes, half: Half) -> str:
    """What the producer is given."""
    kind = _CHECKED if half.checked else 0
    head = _HEAD.pack(kind, half.commit_offset, half.queue_offset, half.born_ms, half.open_s)
    # Over gRPC the producer group is the topic: it is not said twice (protocol facts 9.3, 39).
    group = "" if half.producer_group == half.topic else half.producer_group
    texts = "\0".join((half.broker, half.topic, group)).encode("utf-8", "surrogatepass")
    place = base64.urlsafe_b64encode(head + texts).decode().rstrip("=")
    return seal(secret, place, half.message_id)


def read_transaction_id(secrets: Sequence[bytes], end: EndTransaction) -> Half:
    """The half message that `end` is about.

    Raises IllegalTransactionId: made with none of these keys, or of another message or topic.
    """
    place, message_id = unseal(secrets, end)
    try:
        packed = base64.urlsafe_b64decode(place + "=" * (-len(place) % 4))
        kind, commit_offset, queue_offset, born_ms, open_s = _HEAD.unpack_from(packed)
        broker, topic, group = packed[_HEAD.size :].decode("utf-8", "surrogatepass").split("\0")
    except (binascii.Error, struct.error, ValueError) as error:
        # Authentic, and yet no place: the key is used for something else too, or by another version.
        raise IllegalTransactionId(
            f"{shown(end.transaction_id)} is of a kind that this version does not know"
        ) from error
    if end.topic and end.topic != topic:
        raise IllegalTransactionId(f"it belongs to topic {topic}, not to {shown(end.topic)}")
    return Half(
        broker,
        topic,
        group or topic,
        message_id,
        commit_offset,
        queue_offset,
        born_ms,
        open_s,
        bool(kind & _CHECKED),
    )


def half_at(end: EndTransaction) -> Half | None:
    """The half message that a classic producer names by its offsets; None when the id says which one."""
    place = end.place
    if place is None:
        return None
    return Half(
        place.broker,
        end.topic,
        place.producer_group,
        end.message_id,
        place.commit_offset,
        place.queue_offset,
        born_ms=0,
        checked=end.from_check,
    )


def sent_half(
    message: Message,
    *,
    broker: str,
    offset_message_id: str,
    queue_offset: int,
    born_ms: int,
    check_after_s: int,
) -> Half:
    """Where a half message came to be, by the broker's answer to its send (`msgId`, `queueOffset`).

    `born_ms` is the `bornTimestamp` that it was sent with: the gateway's time, because a broker counts
    from it when commits are late. Raises PeerWireError for an answer that names no place.
    """
    try:
        _, commit_offset = decode_offset_message_id(offset_message_id)
    except ValueError as error:
        raise PeerWireError(f"a send was answered with the id {shown(offset_message_id)}") from error
    if min(commit_offset, queue_offset) < 0:
        raise PeerWireError(f"a send was answered with the offsets {commit_offset} and {queue_offset}")
    group = producer_group_of(message)
    open_s = _open_s(message, check_after_s)
    return Half(
        broker, message.topic, group, message.message_id, commit_offset, queue_offset, born_ms, open_s
    )


def producer_group_of(message: Message) -> str:
    """Who is asked what became of the message; the topic where nothing else is said."""
    if message.producer_group:
        return message.producer_group
    group = find_property(message.properties, PGROUP.encode())
    return group.decode("utf-8", "replace") if group else message.topic


def half_properties(message: Message, check_after_s: int) -> bytes:
    """The properties block that a half message is sent with.

    Every one gets CHECK_IMMUNITY_TIME_IN_SECONDS, the client's time (rounded up) or `check_after_s`, and
    a margin: the broker does not ask before, and refuses a later commit, because it could be a second
    one (protocol facts 3.9, 7.8). Raises PropertiesTooLarge when there is no room for that.
    """
    block = message.properties
    for name, value in (
        (TRAN_MSG, b"true"),
        (PGROUP, producer_group_of(message).encode("utf-8", "replace")),
        (CHECK_IMMUNITY_TIME_IN_SECONDS, b"%d" % (_open_s(message, check_after_s) + CHECK_MARGIN_S)),
    ):
        block = set_property(block, name.encode(), value)
    if len(block) > LONGEST_BLOCK:
        raise PropertiesTooLarge(len(block), LONGEST_BLOCK, "bytes of properties")
    return block


def _open_s(message: Message, check_after_s: int) -> int:
    """How long the producer may end it unasked."""
    return min(max(-(-message.recovery_ms // 1000), 0) or max(check_after_s, 1), LONGEST_OPEN_S)
