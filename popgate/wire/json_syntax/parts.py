"""Bounded, type-checked access to the parts of a JSON body from a peer.

A part that is missing or null has its default, as in Java. A part of the wrong type raises PeerWireError,
which names it. Numbers are those of Java: 64 bits at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from popgate.errors import PeerWireError, shown
from popgate.wire.json_syntax.fastjson import loads

Item = TypeVar("Item")

LARGEST_NUMBER: Final = (1 << 63) - 1


def load_object(body: bytes, subject: str) -> dict[str, Any]:
    """Parse a body that is an object; `subject` names the body in errors."""
    value = loads(body)
    if value.__class__ is not dict:
        raise PeerWireError(f"the body with {subject} is no JSON object")
    table: dict[str, Any] = value
    return table


def text(part: Mapping[str, Any], name: str, default: str = "") -> str:
    value = part.get(name)
    if value is None:
        return default
    if value.__class__ is not str:
        raise _wrong(name, "text")
    return str(value)


def number(
    part: Mapping[str, Any],
    name: str,
    default: int = 0,
    *,
    least: int = -LARGEST_NUMBER - 1,
    most: int = LARGEST_NUMBER,
) -> int:
    """A whole number; a number written as text is accepted, because Java's reader does so too."""
    value = part.get(name)
    return default if value is None else _number(value, name, least, most)


def numbers(part: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """A list of whole numbers, each as `number` takes it."""
    return tuple(_number(value, name, -LARGEST_NUMBER - 1, LARGEST_NUMBER) for value in items(part, name))


def _number(value: Any, name: str, least: int, most: int) -> int:
    if value.__class__ is str:
        value = whole(value, name)
    if value.__class__ is not int:
        raise _wrong(name, "a whole number")
    if not least <= value <= most:
        raise PeerWireError(f"{name} is {shown(str(value))}, not {least} to {most}")
    return int(value)


def real(part: Mapping[str, Any], name: str, default: float = 0.0) -> float:
    value = part.get(name)
    if value is None:
        return default
    if value.__class__ is not float and value.__class__ is not int:
        raise _wrong(name, "a number")
    try:
        return float(value)
    except OverflowError as error:
        raise _wrong(name, "a number") from error


def truth(part: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = part.get(name)
    if value is None:
        return default
    if value.__class__ is str and value.lower() in ("true", "false"):
        return bool(value.lower() == "true")
    if value.__class__ is not bool:
        raise _wrong(name, "true or false")
    return bool(value)


def table(part: Mapping[str, Any], name: str) -> dict[Any, Any]:
    """An object; empty when it is missing. Its keys are text, or ObjectKeys."""
    value = part.get(name)
    if value is None:
        return {}
    if value.__class__ is not dict:
        raise _wrong(name, "an object")
    fields: dict[Any, Any] = value
    return fields


def items(part: Mapping[str, Any], name: str) -> list[Any]:
    """A list; empty when it is missing."""
    value = part.get(name)
    if value is None:
        return []
    if value.__class__ is not list:
        raise _wrong(name, "a list")
    elements: list[Any] = value
    return elements


def each(part: Mapping[str, Any], name: str, read: Callable[[Mapping[str, Any]], Item]) -> tuple[Item, ...]:
    """A list of objects, each read by `read`."""
    return tuple(read(as_object(value, name)) for value in items(part, name))


def texts(part: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A list of text."""
    elements = items(part, name)
    if any(value.__class__ is not str for value in elements):
        raise _wrong(name, "a list of text")
    return tuple(elements)


def texts_of(part: Mapping[str, Any], name: str) -> dict[str, tuple[str, ...]]:
    """An object of lists of text by name."""
    fields = table(part, name)
    if any(key.__class__ is not str for key in fields):
        raise _wrong(name, "an object with names")
    return {key: texts(fields, key) for key in fields}


def text_table(part: Mapping[str, Any], name: str) -> dict[str, str]:
    """An object of text; its nulls are left out."""
    fields = {key: value for key, value in table(part, name).items() if value is not None}
    if any(key.__class__ is not str or value.__class__ is not str for key, value in fields.items()):
        raise _wrong(name, "an object of text")
    return fields


def each_of(part: Mapping[str, Any], name: str, read: Callable[[Mapping[str, Any]], Item]) -> dict[str, Item]:
    """An object of objects by name, each read by `read`."""
    fields = table(part, name)
    if any(key.__class__ is not str for key in fields):
        raise _wrong(name, "an object with names")
    return {key: read(as_object(value, name)) for key, value in fields.items()}


def as_object(value: Any, name: str) -> dict[str, Any]:
    if value.__class__ is not dict:
        raise _wrong(name, "an object, or made of them")
    fields: dict[str, Any] = value
    return fields


def whole(digits: object, name: str) -> int:
    """A number that is written as a key or a text."""
    if isinstance(digits, str) and len(digits) <= 20 and digits.isascii():
        plain = digits[1:] if digits.startswith("-") else digits
        if plain.isdigit() and -LARGEST_NUMBER - 1 <= int(digits) <= LARGEST_NUMBER:
            return int(digits)
    raise _wrong(name, "a whole number")


def _wrong(name: str, kind: str) -> PeerWireError:
    return PeerWireError(f"{name} of a JSON body is not {kind}")
