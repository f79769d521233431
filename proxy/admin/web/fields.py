"""Parses the JSON objects and queries of requests: typed, bounded, unknown fields refused by name."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from aiohttp import web

from popgate.errors import BadRequest, shown

_MOST_ITEMS = 65_536
_HIGHEST = (1 << 63) - 1


async def read_object(request: web.Request) -> Fields:
    """The JSON object of a request. Raises BadRequest; aiohttp refuses a body above the limit."""
    # Only `application/json`: a web page of somebody else cannot send that without asking first.
    if request.content_type != "application/json":
        raise BadRequest("the request must have the content type application/json")
    try:
        value = json.loads(await request.read())
    except (ValueError, RecursionError):
        raise BadRequest("the request's body is no JSON") from None
    return Fields(value, "the request")


class Fields:
    """One object: each field is read once, `end()` refuses the fields that were not read."""

    def __init__(self, value: object, name: str) -> None:
        if not isinstance(value, Mapping):
            raise BadRequest(f"{name} must be a JSON object")
        self._values: Mapping[str, Any] = value
        self._name = name
        self._asked: set[str] = set()

    def _get(self, name: str, kind: type | tuple[type, ...], words: str) -> Any:
        self._asked.add(name)
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise BadRequest(f"{name} in {self._name} must be {words}")
        return value

    def text(self, name: str, default: str = "") -> str:
        value = self._get(name, str, "a text")
        if value is None:
            return default
        return _encodable(value, name, self._name)

    def required(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise BadRequest(f"{name} is missing in {self._name}")
        return value

    def number(self, name: str) -> int | None:
        """A whole number that is not negative."""
        value = self._get(name, int, "a whole number")
        if value is not None and not 0 <= value <= _HIGHEST:
            raise BadRequest(f"{name} in {self._name} is out of range")
        return None if value is None else int(value)

    def factor(self, name: str) -> float | None:
        value = self._get(name, (int, float), "a number")
        try:
            return None if value is None else float(value)
        except OverflowError:
            raise BadRequest(f"{name} in {self._name} is out of range") from None

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, bool, "true or false")
        return default if value is None else bool(value)

    def texts(self, name: str) -> tuple[str, ...]:
        values = self.items(name)
        if not all(isinstance(text, str) for text in values):
            raise BadRequest(f"{name} in {self._name} must be a list of texts")
        return tuple(_encodable(text, name, self._name) for text in values)

    def numbers(self, name: str) -> tuple[int, ...]:
        values = self.items(name)
        if not all(
            isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= _HIGHEST
            for number in values
        ):
            raise BadRequest(f"{name} in {self._name} must be a list of whole numbers")
        return tuple(values)

    def items(self, name: str) -> list[Any]:
        values: list[Any] = self._get(name, list, "a list") or []
        if len(values) > _MOST_ITEMS:
            raise BadRequest(f"{name} in {self._name} has {len(values)} items, the limit is {_MOST_ITEMS}")
        return values

    def pairs(self, name: str) -> dict[str, str]:
        values = self._get(name, dict, "an object of texts") or {}
        if not all(isinstance(text, str) for text in values.values()):
            raise BadRequest(f"{name} in {self._name} must be an object of texts")
        return {
            _encodable(key, name, self._name): _encodable(text, name, self._name)
            for key, text in values.items()
        }

    def inner(self, name: str) -> Fields | None:
        value = self._get(name, dict, "an object")
        return None if value is None else Fields(value, name)

    def body(self) -> bytes:
        """`body`, a text, or `body_base64`: one of the two."""
        text, packed = self._get("body", str, "a text"), self._get("body_base64", str, "a text")
        if text is not None and packed is not None:
            raise BadRequest(f"{self._name} has body and body_base64: give one of them")
        if packed is None:
            return _encodable(text or "", "body", self._name).encode()
        try:
            return base64.b64decode(packed, validate=True)
        except (binascii.Error, ValueError):
            raise BadRequest(f"body_base64 in {self._name} is no base64") from None

    def has(self, name: str) -> bool:
        """Whether the field is there, be it null."""
        self._asked.add(name)
        return name in self._values

    def raw(self, name: str) -> object:
        self._asked.add(name)
        return self._values.get(name)

    def end(self) -> None:
        """Raises BadRequest for a field that has no meaning here, with the nearest that has."""
        for name in self._values:
            if name not in self._asked:
                near = get_close_matches(str(name), sorted(self._asked), n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise BadRequest(f"{shown(str(name))} is no field of {self._name}{hint}")


def query_number(request: web.Request, name: str) -> int | None:
    """A whole number of the query. Raises BadRequest."""
    text = request.query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise BadRequest(f"{name} in the query must be a whole number")
    return int(text)


def _encodable(text: str, name: str, place: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRequest(f"{name} in {place} is no Unicode text") from None
    return text
