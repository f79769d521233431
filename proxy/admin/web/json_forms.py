"""The domain as JSON for the admin port."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from popgate.errors import GatewayError
from popgate.model import (
    CustomizedRetry,
    ExponentialRetry,
    GroupConfig,
    Permission,
    Progress,
    Sent,
    StoredMessage,
    TopicConfig,
)
from popgate.wire.messages import properties as names
from processors.clients.client_registry import ClientHandle
from processors.requests import LastSettled

_SYSTEM_PROPERTIES = names.RESERVED | {
    names.SHARDING_KEY,
    names.TRACE_CONTEXT,
    names.TRANSACTION_ID,
    names.TRANSACTION_CHECK_TIMES,
    names.CHECK_IMMUNITY_TIME_IN_SECONDS,
    names.RETRY_TOPIC,
    names.INNER_NUM,
    names.INNER_BASE,
}

_PERMISSIONS = {
    Permission.NONE: "none",
    Permission.READ: "read",
    Permission.WRITE: "write",
    Permission.READ_WRITE: "read-write",
}


def topic_out(topic: TopicConfig) -> dict[str, Any]:
    return {
        "name": topic.name,
        "types": [message_type.value for message_type in topic.message_types],
        "queues": topic.queues,
        "read_queues": topic.read_queues,
        "write_queues": topic.write_queues,
        "permission": _PERMISSIONS[topic.permission],
        "retention_ms": topic.retention_ms,
        "retention_bytes": topic.retention_bytes,
        "attributes": dict(topic.attributes),
    }


def group_out(group: GroupConfig) -> dict[str, Any]:
    return {
        "name": group.name,
        "ordered": group.ordered,
        "max_attempts": group.max_attempts,
        "start_from": group.start_from.value,
        "retry": retry_out(group.retry),
        "consume_timeout_ms": group.consume_timeout_ms,
        "consume_enabled": group.consume_enabled,
        "broadcast": group.broadcast,
        "attributes": dict(group.attributes),
    }


def retry_out(retry: CustomizedRetry | ExponentialRetry) -> dict[str, Any]:
    if isinstance(retry, ExponentialRetry):
        return {
            "kind": "exponential",
            "initial_ms": retry.initial_ms,
            "max_ms": retry.max_ms,
            "multiplier": retry.multiplier,
        }
    return {"kind": "customized", "delays_ms": list(retry.delays_ms), "first_step": retry.first_step}


def progress_out(topic: str, queues: Sequence[Progress], *, whole: bool = True) -> dict[str, Any]:
    """`whole`: the broker reports held and resting messages; else those values are null."""
    return {
        "topic": topic,
        "lag": sum(queue.lag for queue in queues),
        "in_flight": sum(queue.in_flight for queue in queues) if whole else None,
        "waiting": sum(queue.waiting for queue in queues) if whole else None,
        "queues": [
            {
                "broker": queue.broker,
                "queue_id": queue.queue_id,
                "minimum": queue.bounds.minimum,
                "maximum": queue.bounds.maximum,
                "committed": queue.committed,
                "frontier": queue.frontier,
                "in_flight": queue.in_flight if whole else None,
                "waiting": queue.waiting if whole else None,
                "lag": queue.lag,
                "retry": queue.retry,
            }
            for queue in queues
        ],
    }


def sent_out(result: Sent | GatewayError) -> dict[str, Any]:
    if isinstance(result, GatewayError):
        return error_out(result)
    return {
        "message_id": result.message_id,
        "broker": result.broker,
        "queue_id": result.queue_id,
        "offset": result.offset,
        "recall_handle": result.recall_handle,
    }


def error_out(error: GatewayError) -> dict[str, Any]:
    return {"fault": error.fault.name, "message": error.sentence}


def message_out(message: StoredMessage, *, with_body: bool = True) -> dict[str, Any]:
    """A text body is `body`, another one `body_base64`; for a body that is left out there is only `size`."""
    properties = names.decode_properties(message.properties)
    form: dict[str, Any] = {
        "message_id": properties.get(names.UNIQ_KEY, ""),
        "topic": message.topic,
        "broker": message.broker,
        "queue_id": message.queue_id,
        "offset": message.offset,
        "tag": properties.get(names.TAGS, ""),
        "keys": properties.get(names.KEYS, "").split(),
        "message_group": properties.get(names.SHARDING_KEY, ""),
        "lite_topic": properties.get(names.LITE_TOPIC, ""),
        "priority": _number(properties.get(names.PRIORITY, "")),
        "properties": {name: value for name, value in properties.items() if name not in _SYSTEM_PROPERTIES},
        "born_ms": message.born_ms,
        "born_host": message.born_host,
        "stored_ms": message.store_ms,
        "attempt": message.attempt,
        "receipt": message.receipt,
        "invisible_until_ms": message.invisible_until_ms,
        "size": len(message.body),
    }
    if not with_body:
        return form
    try:
        form["body"] = message.body.decode()
    except UnicodeDecodeError:
        form["body_base64"] = base64.b64encode(message.body).decode()
    return form


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 11 else None


def client_out(
    client: ClientHandle, lite_topics: int = 0, settled: LastSettled | None = None
) -> dict[str, Any]:
    return {
        "client_id": client.client_id,
        "kind": client.kind.value,
        "language": client.language,
        "group": client.group,
        "topics": sorted(client.topics),
        "lite_topics": lite_topics,
        "connected": client.alive,
        "last_settled": None if settled is None else _settled_out(settled),
    }


def _settled_out(settled: LastSettled) -> dict[str, Any]:
    said = settled.said
    return {
        "what": settled.what,
        "topic": settled.topic,
        "group": settled.group,
        "message_id": said.message_id,
        "lite_topic": said.lite_topic,
        "attempt": said.attempt,
        "max_attempts": said.max_attempts,
        "answer": settled.answer,
        "at_ms": settled.at_ms,
    }
