"""Encodes and decodes the settings of topics and groups as JSON for the store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from popgate.model import (
    CustomizedRetry,
    ExponentialRetry,
    GroupConfig,
    MessageType,
    Permission,
    StartFrom,
    TopicConfig,
)


def topic_out(topic_id: int, config: TopicConfig) -> bytes:
    """Encodes the settings of a topic, with its id, for the store."""
    return json.dumps(
        {
            "id": topic_id,
            "name": config.name,
            "message_types": [kind.value for kind in config.message_types],
            "read_queues": config.read_queues,
            "write_queues": config.write_queues,
            "permission": int(config.permission),
            "retention_ms": config.retention_ms,
            "retention_bytes": config.retention_bytes,
            "attributes": dict(config.attributes),
        }
    ).encode()


def topic_in(stored: Mapping[str, Any]) -> TopicConfig:
    """Decodes the settings of a topic from the store."""
    return TopicConfig(
        stored["name"],
        tuple(MessageType(kind) for kind in stored["message_types"]),
        stored["read_queues"],
        stored["write_queues"],
        Permission(stored["permission"]),
        stored["retention_ms"],
        stored["retention_bytes"],
        stored["attributes"],
    )


def group_out(group_id: int, config: GroupConfig) -> bytes:
    """Encodes the settings of a consumer group, with its id, for the store."""
    retry: dict[str, object]
    if isinstance(config.retry, ExponentialRetry):
        retry = {
            "initial_ms": config.retry.initial_ms,
            "max_ms": config.retry.max_ms,
            "multiplier": config.retry.multiplier,
        }
    else:
        retry = {"delays_ms": list(config.retry.delays_ms), "first_step": config.retry.first_step}
    return json.dumps(
        {
            "id": group_id,
            "name": config.name,
            "ordered": config.ordered,
            "max_attempts": config.max_attempts,
            "retry": retry,
            "consume_timeout_ms": config.consume_timeout_ms,
            "start_from": config.start_from.value,
            "consume_enabled": config.consume_enabled,
            "attributes": dict(config.attributes),
            "broadcast": config.broadcast,
        }
    ).encode()


def group_in(stored: Mapping[str, Any]) -> GroupConfig:
    """Decodes the settings of a group from the store."""
    retry = stored["retry"]
    policy: CustomizedRetry | ExponentialRetry
    if "delays_ms" in retry:
        policy = CustomizedRetry(tuple(retry["delays_ms"]), retry["first_step"])
    else:
        policy = ExponentialRetry(retry["initial_ms"], retry["max_ms"], retry["multiplier"])
    return replace(
        GroupConfig(stored["name"]),
        ordered=stored["ordered"],
        max_attempts=stored["max_attempts"],
        retry=policy,
        consume_timeout_ms=stored["consume_timeout_ms"],
        start_from=StartFrom(stored["start_from"]),
        consume_enabled=stored["consume_enabled"],
        attributes=stored["attributes"],
        broadcast=stored.get("broadcast", False),
    )
