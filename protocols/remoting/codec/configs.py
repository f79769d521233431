"""Converts settings of topics and groups between RocketMQ's names and the domain.

Sources: protocol facts 5.5 (17, 200), 6.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from popgate.errors import BadRequest, shown
from popgate.model import (
    CustomizedRetry,
    ExponentialRetry,
    GroupConfig,
    MessageType,
    Permission,
    StartFrom,
    TopicConfig,
)
from popgate.wire.bodies import configs as wire
from popgate.wire.bodies.configs import CUSTOMIZED, EXPONENTIAL, MESSAGE_TYPE
from protocols.remoting.codec.fields import number, text

_TYPES: Final = {kind.value: kind for kind in MessageType}
_MIXED: Final = "MIXED"
_MOST_ATTRIBUTES: Final = 64
_LONGEST_ATTRIBUTES: Final = 16 * 1024
_MINUTE_MS: Final = 60_000


def topic_in(fields: Mapping[str, str], there: TopicConfig | None) -> TopicConfig:
    """What UPDATE_AND_CREATE_TOPIC wants a topic to be; `there`: what it is. Raises BadRequest.

    A new topic without a type takes messages of all types.
    """
    config = there or TopicConfig(text(fields, "topic"))
    types, attributes = config.message_types, dict(config.attributes)
    for sign, name, value in _changes(fields.get("attributes", "")):
        if name == MESSAGE_TYPE:
            types = () if sign == "-" or value == _MIXED else (_type_of(value),)
        if name != MESSAGE_TYPE or value == _MIXED:
            attributes.pop(name, None)
            if sign == "+":
                attributes[name] = value
        else:
            attributes.pop(name, None)
    return replace(
        config,
        message_types=types,
        read_queues=number(fields, "readQueueNums", config.read_queues),
        write_queues=number(fields, "writeQueueNums", config.write_queues),
        permission=Permission(number(fields, "perm", int(config.permission)) & Permission.READ_WRITE),
        attributes=attributes,
    )


def fields_of(config: wire.TopicConfig) -> dict[str, str]:
    """A topic out of a list of them, as the fields of a request to make it."""
    return {
        "topic": config.topic,
        "readQueueNums": str(config.read_queues),
        "writeQueueNums": str(config.write_queues),
        "perm": str(config.perm),
        "attributes": ",".join(
            key if key.startswith("-") else f"+{key.lstrip('+')}={value}"
            for key, value in config.attributes.items()
        ),
    }


def topic_out(config: TopicConfig) -> wire.TopicConfig:
    attributes = dict(config.attributes)
    if len(config.message_types) == 1:
        attributes[MESSAGE_TYPE] = config.message_types[0].value
    elif config.message_types:
        attributes[MESSAGE_TYPE] = _MIXED
    return wire.TopicConfig(
        config.name,
        config.read_queues,
        config.write_queues,
        int(config.permission),
        attributes=attributes,
    )


def group_in(given: wire.SubscriptionGroupConfig, there: GroupConfig | None) -> GroupConfig:
    """What UPDATE_AND_CREATE_SUBSCRIPTIONGROUP wants a group to be. Raises BadRequest."""
    config = there or GroupConfig(given.group)
    attributes = dict(config.attributes)
    for key, value in given.attributes.items():
        # Tools mark what they set and take away; what another broker told has plain names.
        name = key.lstrip("+-")
        attributes.pop(name, None)
        if not key.startswith("-"):
            attributes[name] = value
    if len(attributes) > _MOST_ATTRIBUTES:
        raise BadRequest(f"a group has at most {_MOST_ATTRIBUTES} attributes")
    return replace(
        config,
        ordered=given.ordered,
        max_attempts=max(given.most_retries, 0) + 1,
        retry=_retry_in(given.retry_policy),
        consume_timeout_ms=given.consume_timeout_minutes * _MINUTE_MS,
        start_from=StartFrom.FIRST if given.consume_from_minimum else StartFrom.LAST,
        consume_enabled=given.consume_enabled,
        attributes=attributes,
    )


def group_out(config: GroupConfig) -> wire.SubscriptionGroupConfig:
    return wire.SubscriptionGroupConfig(
        config.name,
        consume_enabled=config.consume_enabled,
        consume_from_minimum=config.start_from is StartFrom.FIRST,
        ordered=config.ordered,
        most_retries=config.max_attempts - 1,
        retry_policy=_retry_out(config.retry),
        consume_timeout_minutes=-(-config.consume_timeout_ms // _MINUTE_MS),
        attributes=config.attributes,
    )


def _type_of(value: str) -> MessageType:
    kind = _TYPES.get(value)
    if kind is None:
        known = ", ".join((*_TYPES, _MIXED))
        raise BadRequest(f"there is no message type {shown(value)}: it is one of {known}")
    return kind


def _changes(attributes: str) -> list[tuple[str, str, str]]:
    """Sign, name and value of each entry of "+message.type=FIFO,-other". Raises BadRequest."""
    if len(attributes) > _LONGEST_ATTRIBUTES:
        raise BadRequest(
            f"the field attributes has {len(attributes)} characters, the limit is {_LONGEST_ATTRIBUTES}"
        )
    changes = []
    for entry in attributes.split(","):
        entry = entry.strip()
        if not entry:
            continue
        sign, (name, equals, value) = entry[0], entry[1:].partition("=")
        if sign not in "+-" or not name or (sign == "+") != bool(equals and value):
            raise BadRequest(f"the attribute {shown(entry)} is neither +name=value nor -name")
        changes.append((sign, name, value))
    if len(changes) > _MOST_ATTRIBUTES:
        raise BadRequest(f"a topic has at most {_MOST_ATTRIBUTES} attributes")
    return changes


def _retry_in(policy: wire.RetryPolicy) -> CustomizedRetry | ExponentialRetry:
    if policy.kind == EXPONENTIAL:
        return ExponentialRetry(policy.initial_ms, policy.most_ms, float(policy.multiplier))
    return CustomizedRetry(policy.delays_ms) if policy.delays_ms else CustomizedRetry()


def _retry_out(retry: CustomizedRetry | ExponentialRetry) -> wire.RetryPolicy:
    if isinstance(retry, ExponentialRetry):
        return wire.RetryPolicy(
            EXPONENTIAL, (), retry.initial_ms, retry.max_ms, max(round(retry.multiplier), 1)
        )
    return wire.RetryPolicy(CUSTOMIZED, () if retry == CustomizedRetry() else retry.delays_ms)
