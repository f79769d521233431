"""Names of options, and values of the types that source and sink share.

Names are case-insensitive, as in Spark. An unknown option is refused with the nearest known name; an option
of the other side, and a planned one that is not implemented, are refused as such: no option is ignored.
All functions raise SparkSourceError.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Final

from popgate.errors import IllegalTopic, shown
from popgate.naming import TOPIC_LONGEST, check_topic, with_namespace
from popgate.spark.errors import Code, SparkSourceError, illegal_option

NAMESPACE: Final = "rocketmq.client.namespace"
_LONGEST_NAMESPACE: Final = TOPIC_LONGEST - 2
_SIZES: Final = frozenset({"arrowBatchBytes", "sendBatchBytes", "maxBytesPerTrigger"})
"""Numbers of bytes, which may have a unit, as 4m."""
_UNITS: Final = {"k": 10, "m": 20, "g": 30}
_DURATIONS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def named(
    given: Mapping[str, str],
    known: Collection[str],
    *,
    others: Collection[str],
    side: str,
    not_yet: Collection[str],
) -> dict[str, str]:
    """By their own names, with blanks around the values taken away; `others` are of the other side."""
    spelled = {name.lower(): name for name in known}
    foreign = {name.lower(): name for name in others}
    planned = {name.lower(): name for name in not_yet}
    by_name = {}
    for name, value in given.items():
        lower = name.lower()
        if lower in spelled:
            by_name[spelled[lower]] = value.strip()
        elif lower in foreign:
            raise illegal_option(foreign[lower], value, f"it is an option of the {side}, leave it out")
        elif lower in planned:
            raise SparkSourceError(
                Code.UNSUPPORTED_OPTION, f"option {planned[lower]} is not supported yet, leave it out"
            )
        else:
            near = get_close_matches(lower, spelled, n=1, cutoff=0.6)
            hint = f"did you mean {spelled[near[0]]}?" if near else f"there are {', '.join(sorted(known))}"
            raise SparkSourceError(Code.UNKNOWN_OPTION, f"option {shown(name)} is not known: {hint}")
    return by_name


def at_most_one(options: Mapping[str, str], names: tuple[str, ...]) -> None:
    given = [name for name in names if name in options]
    if len(given) > 1:
        raise illegal_option(given[1], options[given[1]], f"{given[0]} is given too, leave one of them out")


def namespace_of(options: Mapping[str, str]) -> str:
    """Of all topics and groups that users name; empty: none."""
    if NAMESPACE not in options:
        return ""
    text = options[NAMESPACE]
    if not re.fullmatch(r"[|a-zA-Z0-9_-]+", text) or len(text) > _LONGEST_NAMESPACE:
        why = f"it has 1 to {_LONGEST_NAMESPACE} letters, digits and | - _, and no %"
        raise illegal_option(NAMESPACE, text, why)
    return text


def topic_of(options: Mapping[str, str], name: str, topic: str) -> str:
    """A topic that the option `name` names, with its namespace."""
    try:
        return check_topic(with_namespace(namespace_of(options), topic))
    except IllegalTopic as error:
        raise illegal_option(name, options[name], error.sentence) from error


def number(options: Mapping[str, str], name: str, least: int, most: int, default: int | None) -> int | None:
    text = options.get(name)
    if text is None:
        return default
    if (
        name in _SIZES
        and text[-1:].lower() in _UNITS
        and text[:-1].isdigit()
        and text.isascii()
        and len(text) <= 10
    ):
        text = str(int(text[:-1]) << _UNITS[text[-1:].lower()])
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= most):
        unit = " of bytes, or one with k, m or g" if name in _SIZES else ""
        raise illegal_option(name, options[name], f"it is a whole number from {least} to {most}{unit}")
    return int(text)


def duration_s(options: Mapping[str, str], name: str, default: str) -> float:
    """A time as 500ms, 30s, 15m, 1h or 1d, in seconds."""
    text = options.get(name, default)
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = _DURATIONS.get(text[len(digits) :])
    if unit is None or not (digits.isascii() and digits.isdigit() and len(digits) <= 9):
        raise illegal_option(name, text, f"it is a time as {default}: {', '.join(_DURATIONS)} are the units")
    return int(digits) * unit


def truth(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise illegal_option(name, options[name], "it is true or false")
    return text == "true"


def one_of(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """The first one is the default."""
    text = options.get(name, allowed[0]).lower()
    if text not in allowed:
        raise illegal_option(name, options[name], f"it is one of {', '.join(sorted(set(allowed)))}")
    return text
