"""Topics and groups of the admin port in the form of a declaration, so that it can be applied again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from difflib import unified_diff
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms"))

Spec = dict[str, Any]


def topic_spec(topic: Mapping[str, Any]) -> Spec:
    """Its fields; those left out are the default."""
    spec: Spec = {"types": topic["types"]}
    if topic["read_queues"] == topic["write_queues"]:
        spec["queues"] = topic["queues"]
    spec["permission"] = topic["permission"]
    if topic["retention_ms"] is not None:
        spec["retention"] = exact_duration(topic["retention_ms"])
    if topic["retention_bytes"] is not None:
        spec["retention_bytes"] = topic["retention_bytes"]
    if topic["attributes"]:
        spec["attributes"] = dict(sorted(topic["attributes"].items()))
    return spec


def group_spec(group: Mapping[str, Any]) -> Spec:
    spec: Spec = {
        "ordered": group["ordered"],
        "broadcast": group["broadcast"],
        "max_attempts": group["max_attempts"],
        "start_from": group["start_from"],
        "retry": _retry(group["retry"]),
        "consume_timeout": exact_duration(group["consume_timeout_ms"]),
        "consume_enabled": group["consume_enabled"],
    }
    if group["attributes"]:
        spec["attributes"] = dict(sorted(group["attributes"].items()))
    return spec


def spec_of(kind: str, config: Mapping[str, Any]) -> Spec:
    return topic_spec(config) if kind == "topic" else group_spec(config)


def exact_duration(ms: int) -> str:
    """`1d2h500ms`: what `proxy.config.units.parse_duration` reads as the same milliseconds."""
    parts = []
    for size, unit in _UNITS:
        count, ms = divmod(ms, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def written(kind: str, topics: Mapping[str, Spec], groups: Mapping[str, Spec]) -> str:
    """A whole declaration as `toml`, `yaml` or `json`."""
    if kind == "toml":
        tables = [
            *(toml_lines("topic", name, spec) for name, spec in topics.items()),
            *(toml_lines("group", name, spec) for name, spec in groups.items()),
        ]
        return "\n".join("".join(f"{line}\n" for line in table) for table in tables)
    whole = {"topics": dict(topics), "groups": dict(groups)}
    if kind == "json":
        return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
    import yaml

    return str(yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=120))


def toml_lines(kind: str, name: str, spec: Mapping[str, Any]) -> list[str]:
    return [f"[{kind}s.{_key(name)}]", *(f"{_key(key)} = {_toml(value)}" for key, value in spec.items())]


def difference(
    kind: str, name: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, source: str
) -> Iterable[str]:
    """The lines of a unified diff of one topic or group, from the current to the declared state."""
    old = toml_lines(kind, name, spec_of(kind, before)) if before is not None else []
    new = toml_lines(kind, name, spec_of(kind, after)) if after is not None else []
    there = f"gateway/{kind}s/{name}" if before is not None else "/dev/null"
    here = f"{source}/{kind}s/{name}" if after is not None else "/dev/null"
    return unified_diff(old, new, there, here, n=20, lineterm="")


def _retry(retry: Mapping[str, Any]) -> object:
    if retry["kind"] == "exponential":
        first, longest = exact_duration(retry["initial_ms"]), exact_duration(retry["max_ms"])
        return f"exponential:{first}:{longest}:{retry['multiplier']!r}"
    delays = [exact_duration(ms) for ms in retry["delays_ms"]]
    if not retry["first_step"]:
        return ",".join(delays)
    return {"kind": "customized", "delays": delays, "first_step": retry["first_step"]}


def _key(key: str) -> str:
    return key if _BARE.match(key) else _text(key)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(element)}" for key, element in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(element) for element in value) + "]"
    return str(value)
