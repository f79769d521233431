"""Writes the pages that are generated from `proxy.config.settings`: the reference and the sample file.

`python -m proxy.pages.reference` in a checkout rewrites them; a test proves that they are current.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from proxy.config import remote_table, shared_table, tables, tls_table
from proxy.config import settings as top
from proxy.config.loader import environment_name, group_of
from proxy.config.renamed import FORMER_NAMES, REMOVED_IN
from proxy.config.settings import Settings
from proxy.config.units import duration_text, size_text
from proxy.reload.effects import effect_of

CONFIGURATION_PAGE = Path("docs/configuration.md")
SAMPLE_FILE = Path("deploy/popgate.toml")

_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


@dataclass(slots=True, frozen=True)
class Entry:
    """One setting as the reference shows it."""

    path: tuple[str, ...]
    default: Any
    meaning: str
    bounds: str

    @property
    def name(self) -> str:
        return ".".join(self.path)


def entries() -> Iterator[tuple[str, str, list[Entry]]]:
    """(group, what it is about, its settings), the settings outside of groups first under ''."""
    words = _docstrings()
    plain = [
        _entry((name,), field, words["Settings"][name])
        for name, field in Settings.model_fields.items()
        if group_of(field) is None
    ]
    yield "", "", plain
    for name, field in Settings.model_fields.items():
        model = group_of(field)
        if model is not None:
            inner = [
                _entry((name, key), field, words[model.__name__][key])
                for key, field in model.model_fields.items()
            ]
            yield name, _one_line(model.__doc__ or ""), inner


def configuration_page() -> str:
    """docs/configuration.md."""
    renamed = ", ".join(
        f"`{'.'.join(former)}` is now `{'.'.join(present)}`" for former, present in FORMER_NAMES.items()
    )
    parts = [_HEAD.format(removed_in=REMOVED_IN, renamed=renamed)]
    for group, about, settings in entries():
        parts.append(f"\n## {f'`[{group}]`' if group else 'At the top'}\n")
        if about:
            parts.append(f"\n{about}\n")
        parts.append(
            "\n| setting | default | what it does | changes | environment |\n"
            "| --- | --- | --- | --- | --- |\n"
        )
        for setting in settings:
            meaning = (setting.meaning + (f" ({setting.bounds})" if setting.bounds else "")).replace(
                "|", "\\|"
            )
            default = toml_value(setting.default, setting.path[-1])
            environment = environment_name(setting.path)
            effect = effect_of(setting.name).value
            parts.append(f"| `{setting.path[-1]}` | `{default}` | {meaning} | {effect} | `{environment}` |\n")
    return "".join(parts)


def sample_file(values: Settings | None = None) -> str:
    """A TOML file of every setting: the sample, all commented out, or the effective `values`."""
    parts = [] if values else [_SAMPLE_HEAD]
    shown = values.model_dump(mode="json") if values else {}
    mark = "" if values else "# "
    for group, about, settings in entries():
        if group:
            comment = [] if values else [f"# {line}\n" for line in _wrapped(about)]
            parts += ["\n", *comment, f"[{group}]\n"]
        for setting in settings:
            value = setting.default if values is None else _value_at(values, setting.path)
            if shown and isinstance(value, str):
                value = reduce(getitem, setting.path, shown)
            if values is None:
                parts.extend(f"# {line}\n" for line in _wrapped(setting.meaning))
            parts.append(f"{mark}{setting.path[-1]} = {toml_value(value, setting.path[-1])}\n")
    return "".join(parts).lstrip("\n")


def toml_value(value: Any, name: str) -> str:
    """A value as TOML; durations and sizes as people write them."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(toml_value(element, '') for element in value)}]"
    if isinstance(value, (str, Path)):
        text = str(value)
        if isinstance(value, Path) and not value.is_absolute():
            text = f"./{text}"
        return f'"{"".join(_toml_character(character) for character in text)}"'
    if name.endswith("_s") and value:
        return f'"{duration_text(value)}"'
    if name.endswith("_bytes") and value and value % 1024 == 0:
        return f'"{size_text(value)}"'
    return str(value)


def _toml_character(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08X}"


def _value_at(values: BaseModel, path: tuple[str, ...]) -> Any:
    here: Any = values
    for key in path:
        here = getattr(here, key)
    return here


def _entry(path: tuple[str, ...], field: FieldInfo, meaning: str) -> Entry:
    return Entry(
        path,
        field.get_default(call_default_factory=True),
        _one_line(meaning),
        _bounds(field, path[-1]),
    )


def _bounds(field: FieldInfo, name: str) -> str:
    annotation = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "one of " + ", ".join(f"`{choice.value}`" for choice in annotation)
    limits = []
    for rule in field.metadata:
        for attribute, words in _BOUNDS.items():
            bound = getattr(rule, attribute, None)
            if bound is not None and not (attribute == "ge" and bound == 0):
                limits.append(f"{words} {toml_value(bound, name).strip(chr(34))}")
    return ", ".join(limits)


def _docstrings() -> dict[str, dict[str, str]]:
    """The text beneath each setting, by class; read from the source, so that no start pays for it."""
    by_class: dict[str, dict[str, str]] = {}
    modules = (tables, tls_table, remote_table, shared_table, top)
    for node in [part for module in modules for part in ast.parse(inspect.getsource(module)).body]:
        if isinstance(node, ast.ClassDef):
            texts = by_class.setdefault(node.name, {})
            for statement, after in zip(node.body, node.body[1:], strict=False):
                if (
                    isinstance(statement, ast.AnnAssign)
                    and isinstance(statement.target, ast.Name)
                    and isinstance(after, ast.Expr)
                    and isinstance(after.value, ast.Constant)
                ):
                    texts[statement.target.id] = str(after.value.value)
    return by_class


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _wrapped(text: str, width: int = 98) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


_HEAD = """# Configuration

<!-- Generated from proxy/config/settings.py by `python -m proxy.pages.reference`; a test compares them. -->

Every setting has a default that works: `popgate serve` needs no file. A later layer wins over an earlier one:

1. the defaults below,
2. a TOML file: `popgate serve --config popgate.toml` or `POPGATE_CONFIG=popgate.toml`
   ([a sample](../deploy/popgate.toml) has every setting),
3. environment variables, `POPGATE_` and the name, two underscores between group and setting,
4. flags: `--data`, `--listen`, `--admin`, `--broker`, `--durability`, `--log-level`, `--log-format`, and
   for everything else `--set limits.max_body_bytes=8MiB`.

An unknown name is an error that suggests the nearest known one, in the file and in the environment alike
(variables that Kubernetes creates for a service called popgate are ignored). A plain number is in the unit
of the setting's name: `_s` seconds, `_bytes` bytes; a string may have its own unit: `"500ms"`, `"1h30m"`,
`"3d"`, `"64KiB"`, `"10GiB"`. A list may be one string with commas. `popgate settings` prints the effective
configuration, and `/api/settings` on the admin port returns that of a running gateway. `popgate config check`
reports every mistake with the line of the file.

Some settings were renamed. Their former names work in release 0.2, with a warning, and are refused from
release {removed_in}: {renamed}.

The column *changes* says when a new value takes effect in a gateway that
[reloads](operations.md#new-settings-for-a-running-gateway) its configuration: `live`, at once; `listeners`,
at once, by reopening the listeners; `restart`, after a restart. A gateway with several processes is
[renewed](workers.md) instead, with all settings but `share_broker`.
"""

_SAMPLE_HEAD = """# Every setting of popgate with its default. Uncomment those you change.
# Generated from proxy/config/settings.py by `python -m proxy.pages.reference`; a test proves it current.

"""


def main() -> None:
    root = Path(__file__).resolve().parents[2]
    (root / CONFIGURATION_PAGE).write_text(configuration_page())
    (root / SAMPLE_FILE).write_text(sample_file())


if __name__ == "__main__":
    main()
