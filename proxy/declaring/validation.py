"""Validates the values of a declaration for the admin port; errors name their line and key."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from popgate.errors import IllegalGroup, IllegalTopic, shown
from popgate.model import MessageType
from popgate.naming import check_group, check_topic
from proxy.config.units import parse_duration, parse_size
from proxy.declaring.sources import DeclarationWrong, Path, Source

DEFAULT = "default"
"""Stands for the gateway's default."""


@dataclass(slots=True)
class Declaration:
    """The desired state by name: the fields of the admin port's /api/apply."""

    source: Source
    topics: dict[str, dict[str, Any]]
    groups: dict[str, dict[str, Any]]

    def place(self, kind: str, name: str) -> str:
        return self.source.place((f"{kind}s", name))


Reader = Callable[[Any], Any]
"""Converts a value for the admin port. Raises ValueError with the allowed values."""


def check(source: Source) -> Declaration:
    """Raises DeclarationWrong with all that is wrong."""
    wrong: list[str] = []
    declaration = Declaration(source, {}, {})
    if source.values is None:
        source.values = {}
    if not isinstance(source.values, Mapping):
        raise DeclarationWrong(f"{source.name}: a declaration has the tables topics and groups")
    for key, value in source.values.items():
        if key not in ("topics", "groups"):
            wrong.append(_unknown(source, (str(key),), ("topics", "groups")))
        elif not isinstance(value, Mapping | None):
            wrong.append(f"{source.place((key,))}: {key} must be a table, with a table for each name")
        else:
            into, fields = (declaration.topics, _TOPIC) if key == "topics" else (declaration.groups, _GROUP)
            for name, thing in (value or {}).items():
                _read_thing(source, key, name, thing, fields, into, wrong)
    if wrong:
        raise DeclarationWrong(*wrong)
    return declaration


def _read_thing(
    source: Source,
    key: str,
    name: Any,
    thing: Any,
    fields: Mapping[str, tuple[str, Reader]],
    into: dict[str, dict[str, Any]],
    wrong: list[str],
) -> None:
    path = (key, str(name))
    try:
        if not isinstance(name, str):
            raise ValueError(f"the name {name!r} is no text: put it in quotes")
        (check_topic if key == "topics" else check_group)(name)
    except (ValueError, IllegalTopic, IllegalGroup) as error:
        wrong.append(f"{source.place(path)}: {error}")
    if thing is None:
        thing = {}
    if not isinstance(thing, Mapping):
        wrong.append(f"{source.place(path)}: {'.'.join(path)} must be a table, not {_told(thing)}")
        return
    checked: dict[str, Any] = {}
    for word, value in thing.items():
        here = (*path, str(word))
        if word not in fields:
            wrong.append(_unknown(source, here, tuple(fields)))
            continue
        target, read = fields[word]
        try:
            checked[target] = read(value)
        except ValueError as error:
            wrong.append(f"{source.place(here)}: {'.'.join(here)} is {_told(value)}: {error}")
    into[name] = checked


def _unknown(source: Source, path: Path, known: tuple[str, ...]) -> str:
    near = get_close_matches(path[-1], known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"{source.place(path)}: {'.'.join(path)} is not known; {hint}"


def _told(value: Any) -> str:
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return "true" if value is True else "false" if value is False else shown(str(value))[1:-1]


# -- one value each -------------------------------------------------------------------------------


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false is needed")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
        raise ValueError("a whole number from 1 on is needed")
    return value


def _one_of(*words: str) -> Reader:
    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"one of {', '.join(words)} is needed")
        return value

    return read


def _types(value: Any) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else value
    known = [kind.value for kind in MessageType]
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"a list is needed, of {', '.join(known)}")
    types = [part.strip().upper() for part in parts if part.strip()]
    for type_name in types:
        if type_name not in known:
            raise ValueError(f"{shown(type_name)} is none of {', '.join(known)}")
    return types


def _duration_ms(value: Any) -> int:
    if isinstance(value, str):
        return round(parse_duration(value) * 1000)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 40:
        raise ValueError("a duration like 3d, 1h30m or 500ms is needed, or seconds")
    return round(value * 1000)


def _bytes(value: Any) -> int:
    if isinstance(value, str):
        return parse_size(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a size like 10GiB is needed, or bytes")
    return value


def _or_default(read: Reader) -> Reader:
    return lambda value: None if value == DEFAULT else read(value)


def _attributes(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("a table of texts is needed")
    attributes = {}
    for key, attribute in value.items():
        if isinstance(attribute, bool):
            attribute = "true" if attribute else "false"
        if not isinstance(key, str) or not isinstance(attribute, str | int | float):
            raise ValueError("a table of texts is needed")
        attributes[key] = str(attribute)
    return attributes


def _retry(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        kind, _, rest = value.partition(":")
        if kind != "exponential":
            delays = [_duration_ms(part) for part in value.split(",") if part.strip()]
            return {"kind": "customized", "delays_ms": _some(delays), "first_step": 0}
        parts = [part.strip() for part in rest.split(":")] if rest else []
        if len(parts) > 3:
            raise ValueError("exponential takes first rest, longest rest and factor: exponential:5s:2h:2")
        return _exponential(*parts)
    if not isinstance(value, Mapping):
        raise ValueError("write rests like 1s,5s,1m, or exponential:5s:2h:2")
    kinds: dict[str, tuple[str, ...]] = {
        "customized": ("kind", "delays", "first_step"),
        "exponential": ("kind", "initial", "longest", "factor"),
    }
    chosen = value.get("kind")
    if chosen not in kinds:
        raise ValueError(f"its kind must be one of {', '.join(kinds)}")
    for word in value:
        if word not in kinds[chosen]:
            raise ValueError(f"{shown(str(word))} is not known; there are {', '.join(kinds[chosen])}")
    if chosen == "exponential":
        return _exponential(value.get("initial", ""), value.get("longest", ""), value.get("factor", ""))
    rests, step = value.get("delays"), value.get("first_step", 0)
    if not isinstance(rests, list):
        raise ValueError("its delays must be a list of durations")
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError("its first_step must be a whole number")
    return {
        "kind": "customized",
        "delays_ms": _some([_duration_ms(delay) for delay in rests]),
        "first_step": step,
    }


def _some(delays: list[int]) -> list[int]:
    if not delays:
        raise ValueError("at least one rest is needed, like 1s,5s,1m")
    return delays


def _exponential(initial: Any = "", longest: Any = "", factor: Any = "") -> dict[str, Any]:
    policy: dict[str, Any] = {"kind": "exponential"}
    if initial != "":
        policy["initial_ms"] = _duration_ms(initial)
    if longest != "":
        policy["max_ms"] = _duration_ms(longest)
    if factor != "":
        try:
            number = float(factor)
        except (TypeError, ValueError):
            raise ValueError(f"{_told(factor)} is no factor") from None
        if not math.isfinite(number):
            raise ValueError(f"{_told(factor)} is no factor")
        policy["multiplier"] = number
    return policy


_TOPIC: Mapping[str, tuple[str, Reader]] = {
    "types": ("types", _types),
    "queues": ("queues", _count),
    "permission": ("permission", _one_of("read-write", "read", "write", "none")),
    "retention": ("retention_ms", _or_default(_duration_ms)),
    "retention_bytes": ("retention_bytes", _or_default(_bytes)),
    "attributes": ("attributes", _attributes),
}
_GROUP: Mapping[str, tuple[str, Reader]] = {
    "ordered": ("ordered", _flag),
    "broadcast": ("broadcast", _flag),
    "max_attempts": ("max_attempts", _count),
    "start_from": ("start_from", _one_of("first", "last")),
    "retry": ("retry", _retry),
    "consume_timeout": ("consume_timeout_ms", _duration_ms),
    "consume_enabled": ("consume_enabled", _flag),
    "attributes": ("attributes", _attributes),
}
