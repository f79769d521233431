"""Checks a message, determines its type, and builds the properties block with which it is stored.

The order of the checks is that of the Java proxy, so that a message with two faults is answered
with the same code. Source: protocol facts 2.2, 3.1 and 3.5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from popgate.errors import (
    BadRequest,
    BodyTooLarge,
    DelayTooLong,
    Fault,
    PropertiesTooLarge,
    PropertyConflict,
    shown,
)
from popgate.model import Message, MessageType
from popgate.naming import check_lite_topic, check_topic, is_system_topic
from popgate.wire.messages.properties import (
    BORN_HOST,
    BORN_TIMESTAMP,
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    KEYS,
    LITE_TOPIC,
    LONGEST_BLOCK,
    PGROUP,
    PRIORITY,
    RECONSUME_TIME,
    RESERVED,
    SHARDING_KEY,
    TAGS,
    TIMER_DELIVER_MS,
    TRACE_CONTEXT,
    TRAN_MSG,
    TRANSIENT_PREFIX,
    UNIQ_KEY,
)
from processors.limits import Limits

_HIGHEST_PRIORITY = (1 << 31) - 1
_TRANSACTION_PREPARED = 0x4
"""The bit of `sys_flag` that marks a half message. Source: protocol facts 3.8."""

_IS = "\x01"
_ENDS = "\x02"
_control = re.compile("[\x00-\x1f\x7f-\x9f]").search
"""ISO control characters, which the properties block cannot carry."""


def topic_of(messages: Sequence[Message], limits: Limits, *, system: bool = False) -> str:
    """The one topic of a send; `system`: it may belong to the system.

    Raises MESSAGE_CORRUPTED for none or several, IllegalTopic, BadRequest.
    """
    if not messages:
        raise BadRequest("a send needs at least one message", Fault.MESSAGE_CORRUPTED, "no message to send")
    topic = messages[0].topic
    if not (system and is_system_topic(topic)):
        check_topic(topic)
    if len(messages) > 1:
        for message in messages:
            if message.topic != topic:
                raise BadRequest(
                    f"the messages of one send go to one topic, these go to {topic}"
                    f" and {shown(message.topic)}",
                    Fault.MESSAGE_CORRUPTED,
                    "topic in message is not same",
                )
        check_count(len(messages), limits)
    return topic


def check_count(count: int, limits: Limits) -> None:
    """Raises BadRequest for more messages than one send may have."""
    if count > limits.max_messages_per_send:
        raise BadRequest(f"the send has {count} messages, the limit is {limits.max_messages_per_send}")


def check_message(message: Message, limits: Limits, *, now_ms: int, max_delay_ms: int) -> None:
    """Raises a BadRequest that names the first fault and its limit.

    Of a message whose block of properties was made by its door, only what does not come from
    the block is checked: the door has read it, and its protocol has its own rules.
    """
    size = len(message.body)
    if not size and limits.refuse_empty_bodies:
        raise BadRequest(
            "the message body is empty, it needs at least 1 byte",
            Fault.BODY_EMPTY,
            "message body cannot be empty",
        )
    if size > limits.max_body_bytes > 0:
        raise BodyTooLarge(size, limits.max_body_bytes)
    if not message.properties:
        if not _are_plain(message, limits):
            _check_texts(message, limits)
            _check_message_id(message.message_id, limits)
        if not message.message_group and message.user_properties:
            # Not a reserved name: a user may give the message group in this way, too.
            message.message_group = message.user_properties.get(SHARDING_KEY, "")
    if message.recovery_ms > limits.max_recovery_ms and message.type is MessageType.TRANSACTION:
        raise BadRequest(
            f"the transaction recovery time is {message.recovery_ms // 1000} s,"
            f" the limit is {limits.max_recovery_ms // 1000} s",
            known_as="the max transaction recovery time of message is too large, max is"
            f" {limits.max_recovery_ms // 1000}",
        )
    if message.deliver_at_ms > now_ms + max_delay_ms:
        raise DelayTooLong(message.deliver_at_ms - now_ms, max_delay_ms)
    if message.message_group:
        _check_message_group(message.message_group, limits.max_message_group_bytes)
    if message.priority is not None or message.lite_topic:
        _check_alone(message, limits)
    message.type = type_of(message)


def type_of(message: Message) -> MessageType:
    """The type that its fields give a message; what it says of itself counts for transactions only."""
    if message.type is MessageType.TRANSACTION:
        return MessageType.TRANSACTION
    if message.deliver_at_ms:
        return MessageType.DELAY
    if message.message_group:
        return MessageType.FIFO
    if message.priority is not None:
        return MessageType.PRIORITY
    if message.lite_topic:
        return MessageType.LITE
    return MessageType.NORMAL


def finish_message(message: Message) -> None:
    """Make the block that is stored, unless the door gave it. The message has been checked.

    Raises PropertiesTooLarge when the block, with what the system adds, cannot be stored.
    """
    if message.type is MessageType.TRANSACTION:
        message.sys_flag |= _TRANSACTION_PREPARED
    if not message.properties:
        message.properties = _block(message)
    if len(message.properties) > LONGEST_BLOCK:
        raise PropertiesTooLarge(
            len(message.properties), LONGEST_BLOCK, "bytes of user and system properties"
        )


def _block(message: Message) -> bytes:
    # Written out instead of made from a dictionary: this is done for every message. Values were
    # checked for the separators; the texts that no check covers are cleaned of them here.
    # Of two entries with one name the last counts: what the system says comes after the user's.
    user = "".join(
        [
            f"{key}\x01{value}\x02"
            for key, value in message.user_properties.items()
            if value and (key[:1] != "_" or not key.startswith(TRANSIENT_PREFIX))
        ]
    )
    tag, keys, group = message.tag, message.keys, message.message_group
    named = " ".join([key for key in keys if key]) if keys else ""
    host, sender = message.born_host, message.producer_group
    if message.type is MessageType.NORMAL or message.type is MessageType.FIFO:
        special = ""
        if message.attempt > 0 or message.trace_context:
            special = _special(message)
    else:
        special = _special(message)
    return (
        f"{user}{UNIQ_KEY}\x01{message.message_id}\x02"
        f"{PGROUP}\x01{_clean(sender) or message.topic}\x02"
        f"{f'{TAGS}{_IS}{tag}{_ENDS}' if tag else ''}"
        f"{f'{KEYS}{_IS}{named}{_ENDS}' if named else ''}"
        f"{f'{SHARDING_KEY}{_IS}{group}{_ENDS}' if group else ''}"
        f"{special}"
        f"{f'{BORN_HOST}{_IS}{_clean(host)}{_ENDS}' if host else ''}"
        f"{BORN_TIMESTAMP}\x01{message.born_ms}\x02"
    ).encode("utf-8", "replace")


def _special(message: Message) -> str:
    """What few messages have."""
    parts = []
    if message.priority is not None:
        parts.append(f"{PRIORITY}\x01{message.priority}\x02")
    if message.lite_topic:
        parts.append(f"{LITE_TOPIC}\x01{message.lite_topic}\x02")
    if message.type is MessageType.TRANSACTION:
        parts.append(f"{TRAN_MSG}\x01true\x02")
        if message.recovery_ms > 0:
            parts.append(f"{CHECK_IMMUNITY_TIME_IN_SECONDS}\x01{message.recovery_ms // 1000}\x02")
    if message.deliver_at_ms:
        parts.append(f"{TIMER_DELIVER_MS}\x01{max(message.deliver_at_ms, 1)}\x02")
    if message.attempt > 0:
        parts.append(f"{RECONSUME_TIME}\x01{message.attempt}\x02")
    if message.trace_context:
        parts.append(f"{TRACE_CONTEXT}\x01{_clean(message.trace_context)}\x02")
    return "".join(parts)


def _are_plain(message: Message, limits: Limits) -> bool:
    """Whether nothing can be wrong with the texts of a message, at the price of one look at all of them."""
    properties, tag, keys, message_id = message.user_properties, message.tag, message.keys, message.message_id
    text = "".join((*properties, *properties.values(), tag, *keys))
    return (
        text.isascii()
        and text.isprintable()
        and len(text) <= limits.max_properties_bytes
        and message_id.isascii()
        and message_id.isprintable()
        and 0 < len(message_id) <= limits.max_message_id_bytes
        and " " not in message_id
        and " " not in tag
        and "|" not in tag
        and (not properties or _are_lawful(properties, limits))
        and not any(map(str.isspace, keys))
    )


def _are_lawful(properties: Mapping[str, str], limits: Limits) -> bool:
    return (
        len(properties) <= limits.max_properties and RESERVED.isdisjoint(properties) and "" not in properties
    )


def _check_texts(message: Message, limits: Limits) -> None:
    properties = message.user_properties
    count = len(properties)
    if count > limits.max_properties:
        raise PropertiesTooLarge(count, limits.max_properties, "user properties")
    size = 0
    if properties:
        text = "".join(properties) + "".join(properties.values())
        if not RESERVED.isdisjoint(properties) or "" in properties or _control(text):
            _find_bad_property(message)
        size = _length(text)
    tag = message.tag
    if tag:
        _check_tag(tag)
        size += _length(tag)
    for key in message.keys:
        if key:
            if key.isspace():
                raise BadRequest(
                    "a message key must not be blank",
                    Fault.ILLEGAL_KEY,
                    "key cannot be the char sequence of whitespace",
                )
            if _control(key):
                raise BadRequest(
                    f"the message key {shown(key)} holds a control character",
                    Fault.ILLEGAL_KEY,
                    "key cannot contain control character",
                )
            size += _length(key)
    if size > limits.max_properties_bytes:
        raise PropertiesTooLarge(
            size, limits.max_properties_bytes, "bytes of user properties, tag and keys together"
        )


def _find_bad_property(message: Message) -> None:
    for key in message.user_properties:
        if not key:
            raise BadRequest("a user property needs a name, this one is empty", Fault.ILLEGAL_PROPERTY_KEY)
        if key in RESERVED:
            raise BadRequest(
                f"the user property {shown(key)} has a name that belongs to the system",
                Fault.ILLEGAL_PROPERTY_KEY,
                f"property is used by system: {key}",
            )
    for key, value in message.user_properties.items():
        where = "name" if _control(key) else "value" if _control(value) else ""
        if where:
            raise BadRequest(
                f"the user property {shown(key)} holds a control character in its {where}",
                Fault.ILLEGAL_PROPERTY_KEY,
                f"the {'key' if where == 'name' else where} of property cannot contain control character",
            )


def _check_tag(tag: str) -> None:
    if tag.isspace():
        raise BadRequest(
            "the message tag must not be blank",
            Fault.ILLEGAL_TAG,
            "tag cannot be the char sequence of whitespace",
        )
    if "|" in tag:
        raise BadRequest(
            f"the message tag {shown(tag)} holds the character |", Fault.ILLEGAL_TAG, "tag cannot contain '|'"
        )
    if _control(tag):
        raise BadRequest(
            f"the message tag {shown(tag)} holds a control character",
            Fault.ILLEGAL_TAG,
            "tag cannot contain control character",
        )


def _check_message_id(message_id: str, limits: Limits) -> None:
    if not message_id or message_id.isspace():
        raise BadRequest(
            "the message id must not be blank", Fault.ILLEGAL_MESSAGE_ID, "message id cannot be empty"
        )
    if _control(message_id):
        raise BadRequest(
            f"the message id {shown(message_id)} holds a control character", Fault.ILLEGAL_MESSAGE_ID
        )
    if len(message_id) > limits.max_message_id_bytes or _length(message_id) > limits.max_message_id_bytes:
        raise BadRequest(
            f"the message id has {_length(message_id)} bytes, the limit is {limits.max_message_id_bytes}",
            Fault.ILLEGAL_MESSAGE_ID,
        )


def _check_message_group(message_group: str, longest: int) -> None:
    if message_group.isspace():
        raise BadRequest(
            "the message group must not be blank",
            Fault.ILLEGAL_MESSAGE_GROUP,
            "message group cannot be the char sequence of whitespace",
        )
    size = _length(message_group)
    if size > longest > 0:
        raise BadRequest(
            f"the message group has {size} bytes, the limit is {longest}",
            Fault.ILLEGAL_MESSAGE_GROUP,
            # RocketMQ's size is the first that is too long.
            f"message group exceed the max size {longest + 1}",
        )
    if _control(message_group):
        raise BadRequest(
            f"the message group {shown(message_group)} holds a control character",
            Fault.ILLEGAL_MESSAGE_GROUP,
            "message group cannot contain control character",
        )


def _check_alone(message: Message, limits: Limits) -> None:
    """A priority, or a lite topic, goes with nothing else that decides the way of a message."""
    priority = message.priority
    if priority is not None and not 0 <= priority <= _HIGHEST_PRIORITY:
        raise BadRequest(f"the priority is {priority}, it must be at least 0 and at most {_HIGHEST_PRIORITY}")
    if message.lite_topic:
        check_lite_topic(message.lite_topic, limits.max_lite_topic_bytes)
        if priority is not None:
            raise PropertyConflict("a lite topic", "a priority")
    first = "a priority" if priority is not None else "a lite topic"
    for other, present in (
        ("a message group", message.message_group),
        ("a delivery time", message.deliver_at_ms),
        ("a transaction", message.type is MessageType.TRANSACTION),
    ):
        if present:
            raise PropertyConflict(first, other)


def _length(text: str) -> int:
    """Bytes in UTF-8; half a surrogate pair counts as the three bytes it would be."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _clean(text: str) -> str:
    if text.isprintable():
        return text
    return text.replace("\x01", "").replace("\x02", "")
