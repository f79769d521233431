"""Parses the three file formats of a declaration into plain values, with their line numbers.

The YAML parser is imported only when a YAML file is read.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Path = tuple[str, ...]

LARGEST = 32 << 20
_DEEPEST = 16
_MOST_NODES = 1_000_000
_TOML_LINE = re.compile(r"\s*(\[[^\]]+\]|[\w.\"'-]+\s*=)")
_TOML_KEY = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*([.=\]]|\Z)""")


class DeclarationWrong(Exception):
    """An invalid file, with a sentence for each fault."""

    def __init__(self, *sentences: str) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences


@dataclass(slots=True)
class Source:
    """The content of a file. `lines`: the line of each key, by its path, as far as known; from 1."""

    name: str
    values: Any
    lines: dict[Path, int] = field(default_factory=dict)

    def place(self, path: Path) -> str:
        """`FILE:12` for sentences, or the file alone; of the nearest key around when that is all."""
        for end in range(len(path), 0, -1):
            line = self.lines.get(path[:end])
            if line is not None:
                return f"{self.name}:{line}"
        return self.name


def read_source(text: str, kind: str, name: str) -> Source:
    """Read `toml`, `yaml` or `json`; an empty kind is found out. Raises DeclarationWrong."""
    if len(text) > LARGEST:
        raise DeclarationWrong(f"{name} has more than {LARGEST} characters")
    match kind or _sniffed(text):
        case "json":
            return _read_json(text, name)
        case "toml":
            return _read_toml(text, name)
        case _:
            return _read_yaml(text, name)


def _sniffed(text: str) -> str:
    """By the first line that says something: JSON's brace, TOML's table or key = value; else YAML."""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("{"):
            return "json"
        if stripped and not stripped.startswith("#"):
            return "toml" if _TOML_LINE.match(line) else "yaml"
    return "toml"


# -- JSON -----------------------------------------------------------------------------------------


def _read_json(text: str, name: str) -> Source:
    try:
        values = json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, name))
    except json.JSONDecodeError as error:
        raise DeclarationWrong(f"{name}:{error.lineno}: {error.msg.lower()} (column {error.colno})") from None
    except RecursionError:
        raise DeclarationWrong(f"{name} is nested too deeply") from None
    source = Source(name, values)
    _find_json_lines(text, values, source.lines)
    return source


def _once(pairs: list[tuple[str, Any]], name: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise DeclarationWrong(f"{name}: {key!r} is there twice")
        fields[key] = value
    return fields


def _find_json_lines(text: str, values: Any, lines: dict[Path, int]) -> None:
    """The keys in the order in which they stand: each is looked for behind the one before."""
    at, line = 0, 1
    for path in _keys(values):
        matched = re.compile(rf"{re.escape(json.dumps(path[-1]))}\s*:").search(text, at)
        if matched is None:
            continue  # it is written with other escapes
        line += text.count("\n", at, matched.start())
        at = matched.start()
        lines[path] = line


def _keys(values: Any, above: Path = ()) -> Iterator[Path]:
    if isinstance(values, dict) and len(above) < 3:
        for key, value in values.items():
            yield (*above, key)
            yield from _keys(value, (*above, key))


# -- TOML -----------------------------------------------------------------------------------------


def _read_toml(text: str, name: str) -> Source:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        matched = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        place = f"{name}:{matched[1]}" if matched else name
        raise DeclarationWrong(f"{place}: {str(error).partition(' (at ')[0].lower()}") from None
    except RecursionError:
        raise DeclarationWrong(f"{name} is nested too deeply") from None
    source = Source(name, values)
    table: Path = ()
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("["):
            table = _toml_path(stripped[1:])
            for end in range(1, len(table) + 1):
                source.lines.setdefault(table[:end], number)
        elif stripped and not stripped.startswith("#"):
            path = _toml_path(stripped)
            if path:
                source.lines.setdefault((*table, *path), number)
    return source


def _toml_path(text: str) -> Path:
    """The dotted key at the beginning of a line; empty when there is none."""
    path: list[str] = []
    at = 0
    while (matched := _TOML_KEY.match(text, at)) is not None:
        path.append(next(part for part in matched.groups()[:3] if part is not None))
        if matched[4] != ".":
            return tuple(path) if matched[4] in ("=", "]") else ()
        at = matched.end()
    return ()


# -- YAML -----------------------------------------------------------------------------------------


def _read_yaml(text: str, name: str) -> Source:
    try:
        import yaml
    except ImportError:
        raise DeclarationWrong(f"{name} is YAML, which needs the package PyYAML") from None
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    source = Source(name, None)
    try:
        reading = loader(text)
        try:
            node = reading.get_single_node()
            if node is not None:
                source.values = _Yaml(yaml, reading, source).value(node, ())
        finally:
            reading.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}" if mark is not None else name
        raise DeclarationWrong(f"{place}: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DeclarationWrong(f"{name}: {str(error).partition(chr(10))[0]}") from None
    return source


class _Yaml:
    """Nodes into values: each key once, and only so many nodes, however often an alias repeats them."""

    def __init__(self, yaml: Any, reading: Any, source: Source) -> None:
        self._yaml = yaml
        self._reading = reading
        self._source = source
        self._left = _MOST_NODES

    def value(self, node: Any, path: Path) -> Any:
        self._left -= 1
        if self._left < 0 or len(path) > _DEEPEST:
            raise DeclarationWrong(f"{self._source.name} is nested too deeply, or too large")
        if isinstance(node, self._yaml.MappingNode):
            mapping: dict[Any, Any] = {}
            for key_node, value_node in node.value:
                key = self._scalar(key_node)
                here = (*path, str(key))
                line = key_node.start_mark.line + 1
                if key in mapping:
                    raise DeclarationWrong(f"{self._source.name}:{line}: {key!r} is there twice")
                self._source.lines[here] = line
                mapping[key] = self.value(value_node, here)
            return mapping
        if isinstance(node, self._yaml.SequenceNode):
            return [self.value(child, (*path, str(at))) for at, child in enumerate(node.value)]
        return self._scalar(node)

    def _scalar(self, node: Any) -> Any:
        if not isinstance(node, self._yaml.ScalarNode):
            line = node.start_mark.line + 1
            raise DeclarationWrong(f"{self._source.name}:{line}: a key must be a text")
        return self._reading.construct_object(node)
