"""Where a setting was given: the line of the TOML file, the environment variable, or the flag."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from proxy.config.loader import ENVIRONMENT_LAYER, FILE_LAYER, FLAGS_LAYER, environment_name

_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?\Z")
_KEY = re.compile(r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*=")
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_FLAGS = {
    "data": "--data",
    "listen": "--listen",
    "admin": "--admin",
    "broker": "--broker",
    "share_broker": "--share-broker",
    "workers": "--workers",
    "durability": "--durability",
    "log.level": "--log-level",
    "log.format": "--log-format",
}


def place_of(path: Sequence[str], layer: str, sentence: str = "") -> str:
    """`popgate.toml:12`, `POPGATE_LIMITS__MAX_BODY_BYTES` or `--set limits.max_body_bytes`.

    `layer` is the name of a `proxy.config.loader.Layer`; `sentence` may have the line where a file is no
    TOML. Empty for a value that no layer gave.
    """
    name = ".".join(path)
    if layer == ENVIRONMENT_LAYER:
        return name if name.startswith("POPGATE_") else environment_name(tuple(path))
    if layer == FLAGS_LAYER:
        return _FLAGS.get(name, f"--set {name}")
    if layer.startswith(FILE_LAYER):
        file = layer.removeprefix(FILE_LAYER)
        if not path:
            matched = _AT_LINE.search(sentence)
            return f"{file}:{matched[1]}" if matched else file
        line = line_of(file_text(Path(file)), path)
        return f"{file}:{line}" if line else file
    return ""


def file_text(file: Path) -> str:
    """Its text; empty if it cannot be read, which is reported elsewhere."""
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def line_of(text: str, path: Sequence[str]) -> int:
    """The line, from 1, on which a TOML text gives this setting a value; 0: it is not found.

    A setting inside of an inline table is found by the line of the table.
    """
    table: list[str] = []
    nearest = 0
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _TABLE.match(line)) is not None:
            table = _parts(header[1])
            continue
        if (key := _KEY.match(line)) is None:
            continue
        here = [*table, *_parts(key[1])]
        if here == list(path):
            return number
        if here == list(path[: len(here)]):
            nearest = number
    return nearest


def _parts(dotted: str) -> list[str]:
    """`limits."max"` as its names; what is no TOML has none."""
    try:
        here = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return []
    parts = []
    while isinstance(here, dict):
        name, here = next(iter(here.items()))
        parts.append(name)
    return parts
