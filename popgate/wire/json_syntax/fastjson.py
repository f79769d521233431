"""JSON bodies as RocketMQ's servers write them with fastjson, which are not always valid JSON.

Numbers appear as keys without quotes (`{0:"10.0.0.1:10911"}`), objects appear as keys
(`{{"queueId":0}:7}`), and a repeated object may be written as a path only
(`{"$ref":"$.a[0]"}`). Everything is bounded: depth, number of parts, and the expanded size of references.
The output is standard JSON, which fastjson reads. Source: protocol facts 5.8 and 9.5 (58, 59).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from json import JSONDecoder
from typing import Any, Final

from popgate.errors import PeerWireError
from popgate.wire.json_syntax import jsontext
from popgate.wire.json_syntax.references import resolve_references

MOST_DEPTH: Final = 64
MOST_PARTS: Final = 1_000_000
"""Commas and opening brackets of a body. The objects for each take 50 bytes and more."""

ObjectKey = tuple[tuple[str, Any], ...]
"""A key that was an object: its fields sorted by name, so that `dict(key)` is the object again."""

dumps = jsontext.dumps

_skip_space = re.compile(r"[ \t\r\n]*").match
_match_bare_key = re.compile(r"-?[0-9A-Za-z_.$]+").match
_read_scalar = JSONDecoder(parse_constant=jsontext.refuse_constant, parse_float=jsontext.finite).raw_decode


def loads(data: bytes) -> Any:
    """Parse a text into dicts, lists, text, numbers, truth values and None.

    Keys of dicts are text, also those that were numbers without quotes; keys that were objects are
    ObjectKeys. Raises PeerWireError for invalid text or above the limits.
    """
    if len(data) > MOST_PARTS and data.count(b",") + data.count(b"{") + data.count(b"[") > MOST_PARTS:
        raise PeerWireError(f"a JSON body has more than {MOST_PARTS} parts")
    try:
        value = jsontext.loads(data)
    except PeerWireError:
        value = _read(data)
    else:
        _check_depth(value)
    return resolve_references(value) if b'"$ref"' in data else value


def object_key(table: Mapping[str, Any]) -> ObjectKey:
    """An object as a key for `dumps_keyed`; its values are text and numbers."""
    return tuple(sorted(table.items()))


def dumps_keyed(value: Any) -> bytes:
    """As `dumps`, also for dicts whose keys are ObjectKeys: those are written as fastjson does.

    Raises LocalWireError for values that cannot be written.
    """
    if isinstance(value, dict):
        return b"{%b}" % b",".join(
            dumps(dict(key) if isinstance(key, tuple) else key) + b":" + dumps_keyed(part)
            for key, part in value.items()
        )
    return dumps(value)


def _check_depth(value: Any) -> None:
    level = [value] if value.__class__ in (dict, list) else []
    for _ in range(MOST_DEPTH):
        level = [
            part
            for holder in level
            for part in (holder.values() if holder.__class__ is dict else holder)
            if part.__class__ is dict or part.__class__ is list
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> PeerWireError:
    return PeerWireError(f"a JSON body is nested more than {MOST_DEPTH} deep")


def _read(data: bytes) -> Any:
    try:
        text = data.decode()
        reader = _Reader(text)
        value = reader.value(0)
        if reader.next_character() != "":
            raise reader.bad()
    except (ValueError, IndexError) as error:
        raise PeerWireError(f"this is no JSON, also not as fastjson writes it: {error}") from error
    return value


class _Reader:
    """Reads the text from its beginning; `at` is the place where it stands."""

    __slots__ = ("_at", "_escapes", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._escapes = "\\u" in text

    def bad(self) -> ValueError:
        return ValueError(f"unexpected at character {self._at}")

    def next_character(self) -> str:
        """Skip spaces and return the next character; empty at the end."""
        space = _skip_space(self._text, self._at)
        if space is not None:
            self._at = space.end()
        return self._text[self._at : self._at + 1]

    def value(self, depth: int) -> Any:
        start = self.next_character()
        if start in ("{", "["):
            if depth == MOST_DEPTH:
                raise _too_deep()
            self._at += 1
            return self._object(depth + 1) if start == "{" else self._list(depth + 1)
        value, self._at = _read_scalar(self._text, self._at)
        if self._escapes and start == '"':
            value.encode()  # half of a surrogate pair is no text, and could be sent to nobody
        return value

    def _list(self, depth: int) -> list[Any]:
        items: list[Any] = []
        if self.next_character() == "]":
            self._at += 1
            return items
        while True:
            items.append(self.value(depth))
            if self._more("]"):
                return items

    def _object(self, depth: int) -> dict[Any, Any]:
        table: dict[Any, Any] = {}
        if self.next_character() == "}":
            self._at += 1
            return table
        while True:
            key = self._key(depth)
            if self.next_character() != ":":
                raise self.bad()
            self._at += 1
            table[key] = self.value(depth)
            if self._more("}"):
                return table

    def _more(self, end: str) -> bool:
        """Take a comma, or the end; True for the end."""
        character = self.next_character()
        if character not in (",", end) or not character:
            raise self.bad()
        self._at += 1
        return character == end

    def _key(self, depth: int) -> Any:
        start = self.next_character()
        if start in ('"', "{"):
            return _frozen(self.value(depth))
        bare = _match_bare_key(self._text, self._at)
        if bare is None:
            raise self.bad()
        self._at = bare.end()
        return bare.group()


def _frozen(value: Any) -> Any:
    """A value that can be a key. Its depth is bounded by how it was read."""
    if isinstance(value, dict):
        return tuple(sorted(((key, _frozen(part)) for key, part in value.items()), key=_name))
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _name(field: tuple[Any, Any]) -> str:
    return str(field[0])
