"""Encodes the properties of a row, except its id, and validates them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from popgate.errors import shown
from popgate.wire.messages.properties import (
    KEYS,
    LITE_TOPIC,
    PRIORITY,
    RESERVED,
    SHARDING_KEY,
    TAGS,
    TIMER_DELIVER_MS,
    TRACE_CONTEXT,
    TRANSIENT_PREFIX,
)

find_control: Final = re.compile("[\x00-\x1f\x7f-\x9f]").search
"""Characters that a block of properties cannot carry, and texts of messages must not have."""
_NOT_FOR_USERS: Final = RESERVED | {SHARDING_KEY, TRACE_CONTEXT}


class Wrong(Exception):
    """A row cannot be a message because of the value of a column."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(column, why)
        self.column, self.why = column, why


def block_of(
    tag: str | None,
    keys: str | Sequence[str | None] | None,
    group: str | None,
    properties: Sequence[tuple[str, str | None]] | None,
    due_ms: int | None,
    priority: int | None,
    lite: str | None,
) -> str:
    """The block without the id: user properties, then those of columns. Raises Wrong."""
    parts = [_of_user(name, value) for name, value in properties] if properties else []
    if tag:
        parts.append(tag_entry(tag))
    if keys:
        joined = keys if isinstance(keys, str) else _joined(keys)
        if joined.strip():
            parts.append(_entry(KEYS, joined, "keys"))
    if group:
        parts.append(_entry(SHARDING_KEY, group, "message_group"))
    if due_ms is not None:
        parts.append(f"{TIMER_DELIVER_MS}\x01{max(due_ms, 1)}\x02")
    if priority is not None:
        if priority < 0:
            raise Wrong("priority", f"is {priority}: it is at least 0")
        parts.append(f"{PRIORITY}\x01{priority}\x02")
    if lite:
        parts.append(_entry(LITE_TOPIC, lite, "lite_topic"))
    return "".join(parts)


def tag_entry(tag: str) -> str:
    """Of a tag that is not empty. Raises Wrong."""
    if "|" in tag or tag.isspace():
        raise Wrong("tag", f"is {shown(tag)}: a tag is not blank and has no |")
    return _entry(TAGS, tag, "tag")


def check_name(name: str) -> None:
    """Whether users may give a property this name. Raises Wrong."""
    if not name:
        raise Wrong("properties", "has a property without a name")
    if name in _NOT_FOR_USERS or name.startswith(TRANSIENT_PREFIX):
        raise Wrong("properties", f"has the name {shown(name)}, which belongs to the system")
    if find_control(name):
        raise Wrong("properties", f"has the name {shown(name)}: it holds a control character")


def _of_user(name: str, value: str | None) -> str:
    if name and not value:
        raise Wrong("properties", f"has no value for {shown(name)}: a message keeps no property without one")
    check_name(name)
    return _entry(name, value or "", "properties")


def _entry(name: str, value: str, column: str) -> str:
    if not value.isprintable() and find_control(value):
        raise Wrong(column, f"is {shown(value)}: it holds a control character")
    return f"{name}\x01{value}\x02"


def _joined(keys: Sequence[str | None]) -> str:
    for key in keys:
        if not key or any(map(str.isspace, key)):
            raise Wrong("keys", f"has {shown(str(key))}: a key is not empty and has no blanks")
    return " ".join(key for key in keys if key)
