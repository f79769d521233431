"""Converts settings of topics and groups between RocketMQ's form and the domain's.

A setting that a cluster cannot keep is refused with Unsupported and a sentence, never dropped: attributes
that its brokers do not know, several message types of one topic, retention per topic, broadcast
groups. Consume timeouts are rounded up to whole minutes. Source: protocol facts 6.4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from popgate.answers import error_of
from popgate.errors import BadRequest, GatewayError, IllegalGroup, IllegalTopic, Unsupported, shown
from popgate.model import (
    CustomizedRetry,
    ExponentialRetry,
    GroupConfig,
    MessageType,
    Permission,
    StartFrom,
    TopicConfig,
)
from popgate.naming import GROUP_LONGEST, TOPIC_LONGEST
from popgate.wire.bodies.routes import MOST_QUEUES
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.json_syntax import parts
from popgate.wire.json_syntax.fastjson import dumps

MESSAGE_TYPE = "message.type"
_TYPES = {kind.value: kind for kind in MessageType}
_LADDER_FIRST_STEP = 2
"""RocketMQ reads its ladder from the third rung on."""
_MINUTE_MS = 60_000
_LARGEST_INT = (1 << 31) - 1
_MOST_RUNGS = 1_024
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
_PERM = int(Permission.READ_WRITE)
_unknown_attribute = re.compile(r"unsupported key: ([^\s,]+)").search
_known_values = re.compile(r"value is not in set: \[([^\]]*)\]").search
_declared_type = re.compile(rf"\+{re.escape(MESSAGE_TYPE)}=([^,]+)").search


# -- topics -----------------------------------------------------------------------------------------


def topic_in(body: Mapping[str, Any]) -> TopicConfig:
    """A TopicConfig of a broker. Raises PeerWireError for a body of another form.

    A topic without a declared type, or of one that the gateway does not know, takes every type.
    """
    attributes = parts.text_table(body, "attributes")
    kind = _TYPES.get(attributes.get(MESSAGE_TYPE, ""))
    if kind is not None:
        del attributes[MESSAGE_TYPE]
    return TopicConfig(
        parts.text(body, "topicName"),
        () if kind is None else (kind,),
        _queue_count(body, "readQueueNums"),
        _queue_count(body, "writeQueueNums"),
        Permission(parts.number(body, "perm", _PERM, least=0, most=_LARGEST_INT) & _PERM),
        attributes=attributes,
    )


def _queue_count(body: Mapping[str, Any], name: str) -> int:
    """Brokers store any number: one invalid topic must not spoil the list of all."""
    return min(max(parts.number(body, name, 16), 0), MOST_QUEUES)


def topic_fields(config: TopicConfig, before: Mapping[str, Any] | None) -> dict[str, str]:
    """The header fields that change a broker's topic to these settings, or create it.

    Settings that the domain does not have are kept. Raises IllegalTopic, BadRequest, Unsupported.
    """
    check_topic_settings(config)
    before = before or {}
    attributes = dict(config.attributes)
    if config.message_types:
        attributes[MESSAGE_TYPE] = config.message_types[0].value
    fields = {
        "topic": config.name,
        "defaultTopic": "TBW102",
        "readQueueNums": str(config.read_queues),
        "writeQueueNums": str(config.write_queues),
        "perm": str(int(config.permission) | parts.number(before, "perm") & ~_PERM),
        "topicFilterType": parts.text(before, "topicFilterType", "SINGLE_TAG"),
        "topicSysFlag": str(parts.number(before, "topicSysFlag")),
        "order": "true" if parts.truth(before, "order") else "false",
    }
    changes = attribute_changes(attributes, parts.text_table(before, "attributes"))
    for key, value in changes.items():
        if "," in key + value or "=" in key + value:
            raise BadRequest(f"the attribute {shown(key[1:])} has a comma or an equals sign in it")
    if changes:
        fields["attributes"] = ",".join(
            f"{key}={value}" if key.startswith("+") else key for key, value in changes.items()
        )
    return fields


def check_topic_settings(config: TopicConfig) -> None:
    """Raises IllegalTopic, BadRequest for what is wrong, Unsupported for what no RocketMQ broker can keep."""
    if not _LEGAL.match(config.name):
        raise IllegalTopic(config.name, "only letters, digits and % | - _ are allowed")
    if len(config.name) > TOPIC_LONGEST:
        raise IllegalTopic(config.name, f"it has {len(config.name)} characters, the limit is {TOPIC_LONGEST}")
    for count in (config.read_queues, config.write_queues):
        if not 0 <= count <= MOST_QUEUES:
            raise BadRequest(f"a topic has at most {MOST_QUEUES} queues on each broker, not {count}")
    if config.queues < 1:
        raise BadRequest("a topic has at least one queue")
    if config.retention_ms is not None or config.retention_bytes is not None:
        raise Unsupported(
            "retention of its own for a topic of a RocketMQ cluster",
            "it is the setting fileReservedTime (hours) of its brokers, for all topics",
        )
    if len(config.message_types) > 1:
        raise Unsupported(
            "a topic of several message types in a RocketMQ cluster",
            "declare one, or none: then it takes every type",
        )
    if config.message_types and MESSAGE_TYPE in config.attributes:
        raise BadRequest(f"the attribute {MESSAGE_TYPE} says what the message types say already")


# -- groups -----------------------------------------------------------------------------------------


def group_in(body: Mapping[str, Any]) -> GroupConfig:
    """A SubscriptionGroupConfig of a broker. Raises PeerWireError for a body of another form."""
    return GroupConfig(
        parts.text(body, "groupName"),
        ordered=parts.truth(body, "consumeMessageOrderly"),
        max_attempts=max(parts.number(body, "retryMaxTimes", 16, most=_LARGEST_INT), 0) + 1,
        retry=_retry_in(parts.table(body, "groupRetryPolicy")),
        consume_timeout_ms=parts.number(body, "consumeTimeoutMinute", 15, least=0, most=_LARGEST_INT)
        * _MINUTE_MS,
        start_from=StartFrom.FIRST if parts.truth(body, "consumeFromMinEnable", True) else StartFrom.LAST,
        consume_enabled=parts.truth(body, "consumeEnable", True),
        attributes=parts.text_table(body, "attributes"),
    )


def group_body(config: GroupConfig, before: Mapping[str, Any] | None) -> bytes:
    """The body that changes a broker's group to these settings, or creates it.

    Settings that the domain does not have are kept. Raises IllegalGroup, BadRequest, Unsupported.
    """
    check_group_settings(config)
    body = dict(before or {})
    body.update(
        groupName=config.name,
        consumeMessageOrderly=config.ordered,
        retryMaxTimes=config.max_attempts - 1,
        groupRetryPolicy=_retry_out(config.retry),
        consumeTimeoutMinute=-(-config.consume_timeout_ms // _MINUTE_MS),
        consumeFromMinEnable=config.start_from is StartFrom.FIRST,
        consumeEnable=config.consume_enabled,
        attributes=attribute_changes(config.attributes, parts.text_table(before or {}, "attributes")),
    )
    return dumps(body)


def check_group_settings(config: GroupConfig) -> None:
    """Raises IllegalGroup, BadRequest for what is wrong, Unsupported for what no RocketMQ broker can keep."""
    if not _LEGAL.match(config.name):
        raise IllegalGroup(config.name, "only letters, digits and % | - _ are allowed")
    if len(config.name) > GROUP_LONGEST:
        raise IllegalGroup(config.name, f"it has {len(config.name)} characters, the limit is {GROUP_LONGEST}")
    if not 1 <= config.max_attempts <= _LARGEST_INT:
        raise BadRequest(f"a message has 1 to {_LARGEST_INT} attempts, not {config.max_attempts}")
    if not 0 <= config.consume_timeout_ms <= _LARGEST_INT * _MINUTE_MS:
        raise BadRequest(f"a consume timeout of {config.consume_timeout_ms} ms is out of range")
    if config.broadcast:
        raise Unsupported(
            "a broadcast group in a RocketMQ cluster",
            "its brokers keep no such setting; give each client a group of its own that starts at the last"
            " message",
        )
    _retry_out(config.retry)


def _retry_in(policy_body: Mapping[str, Any]) -> CustomizedRetry | ExponentialRetry:
    if parts.text(policy_body, "type") == "EXPONENTIAL":
        policy = parts.table(policy_body, "exponentialRetryPolicy")
        return ExponentialRetry(
            parts.number(policy, "initial", 5_000, least=0),
            parts.number(policy, "max", 7_200_000, least=0),
            parts.real(policy, "multiplier", 2.0),
        )
    ladder = parts.items(parts.table(policy_body, "customizedRetryPolicy"), "next")[:_MOST_RUNGS]
    if not ladder:
        return CustomizedRetry()
    rungs = [parts.number({"next": rung}, "next", least=0) for rung in ladder]
    return CustomizedRetry(tuple(rungs), _LADDER_FIRST_STEP)


def _retry_out(retry: CustomizedRetry | ExponentialRetry) -> dict[str, Any]:
    """Rests are the same after every attempt; a ladder that starts elsewhere gets other rungs in front."""
    if isinstance(retry, ExponentialRetry):
        if not float(retry.multiplier).is_integer():
            raise Unsupported(f"the multiplier {retry.multiplier:g} (RocketMQ has whole ones)")
        policy = {"initial": retry.initial_ms, "max": retry.max_ms, "multiplier": int(retry.multiplier)}
        return {"type": "EXPONENTIAL", "exponentialRetryPolicy": policy}
    if retry == CustomizedRetry():
        return {"type": "CUSTOMIZED"}
    if not retry.delays_ms or len(retry.delays_ms) > _MOST_RUNGS:
        raise BadRequest(f"a ladder of rests has 1 to {_MOST_RUNGS} of them, not {len(retry.delays_ms)}")
    ladder = retry.delays_ms[min(retry.first_step, len(retry.delays_ms) - 1) :]
    below = retry.delays_ms[: retry.first_step][-_LADDER_FIRST_STEP:]
    fill = (retry.delays_ms[0],) * (_LADDER_FIRST_STEP - len(below))
    return {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [*fill, *below, *ladder]}}


# -- attributes -------------------------------------------------------------------------------------


def attribute_changes(wanted: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str]:
    """In RocketMQ's form: `+key` is set, `-key` is removed.

    Raises BadRequest for names that RocketMQ refuses with a sentence about something else.
    """
    changes = {}
    for key, value in wanted.items():
        if not key or "+" in key or "-" in key:
            raise BadRequest(f"the attribute {shown(key)} has no name, or one with + or - in it")
        if there.get(key) != value:
            changes["+" + key] = value
    for key in there:
        if key not in wanted:
            changes["-" + key] = ""
    return changes


def refusal(answer: Command, broker: str, attributes: str = "") -> GatewayError:
    """Why a broker did not make or change a topic or group: SYSTEM_ERROR is how its checks fail.

    `attributes`: as it was told them. Of a message type that it does not know it names the known ones alone.
    """
    if answer.code == ResponseCode.SYSTEM_ERROR:
        unknown = _unknown_attribute(answer.remark)
        if unknown is not None:
            return Unsupported(f"the attribute {shown(unknown[1])}, which broker {broker} does not know,")
        known, declared = _known_values(answer.remark), _declared_type(attributes)
        if known is not None and declared is not None:
            values = sorted(known[1].split(", "))
            if MessageType.NORMAL.value in values and declared[1] not in values:
                return Unsupported(
                    f"a topic of type {shown(declared[1])} at broker {broker}",
                    f"its RocketMQ knows only {shown(', '.join(values), 240)}",
                )
        return BadRequest(f"broker {broker} refuses these settings: {shown(answer.remark, 240)}")
    return error_of(answer, broker=broker)
