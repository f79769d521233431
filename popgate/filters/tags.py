"""Filters by tag: `*`, or a list of tags between `||`. Source: protocol facts 2.3."""

from __future__ import annotations

from popgate.errors import IllegalFilter
from popgate.ids.hashes import java_hash as java_hash
from popgate.model import FilterKind
from popgate.wire.messages.properties import find_property

ALL = "*"
LONGEST = 32 * 1024
"""Characters of an expression: as long as any tag that can be stored, since all properties of a message
together have at most 32,767 bytes."""


def tag_code(text: str) -> int:
    """The number by which RocketMQ's brokers look up a tag."""
    return java_hash(text)


class TagFilter:
    """Passes messages that have one of the tags; compares the tags themselves, not their codes."""

    __slots__ = ("_wanted", "everything", "expression", "kind", "tags")

    def __init__(self, expression: str) -> None:
        """Raises IllegalFilter when the list names no tag."""
        self.kind = FilterKind.TAG
        self.expression = expression
        trimmed = expression.strip()
        self.everything = trimmed in ("", ALL)
        parts = () if self.everything else (part.strip() for part in expression.split("||"))
        self.tags = frozenset(part for part in parts if part)
        self._wanted = frozenset(tag.encode("utf-8", "replace") for tag in self.tags)
        if not self.everything and not self.tags:
            raise IllegalFilter(expression, "it names no tag")

    def matches(self, properties: bytes) -> bool:
        return self.everything or find_property(properties, b"TAGS") in self._wanted

    def __repr__(self) -> str:
        return f"<TagFilter {self.expression!r}>"
