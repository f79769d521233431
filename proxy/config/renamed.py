"""Former names of settings. They work for one release, with a warning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

Path = tuple[str, ...]

REMOVED_IN: Final = "0.3"
"""The release that refuses the former names."""
FORMER_NAMES: Final[Mapping[Path, Path]] = {
    ("embedded", "keep_free_bytes"): ("embedded", "min_free_disk_bytes"),
    ("embedded", "repeat_window_s"): ("embedded", "dedup_window_s"),
    ("embedded", "max_known_sends"): ("embedded", "dedup_max_ids"),
    ("shared", "start_patience_s"): ("shared", "startup_timeout_s"),
}
"""From a former name to the present one; both are in the same table."""


def with_present_names(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Path], list[Path]]:
    """The values of a layer under their present names, and the former names that it uses.

    Last, the former names of settings that the layer gives under both names: which of the two values counts
    is not obvious. The values have the one under the present name.
    """
    renamed: dict[str, Any] = dict(values)
    used: list[Path] = []
    doubled: list[Path] = []
    for former, present in FORMER_NAMES.items():
        table, name = former
        given = renamed.get(table)
        if not isinstance(given, Mapping) or name not in given:
            continue
        if present[1] in given:
            renamed[table] = {key: value for key, value in given.items() if key != name}
            doubled.append(former)
            continue
        renamed[table] = {present[1] if key == name else key: value for key, value in given.items()}
        used.append(former)
    return renamed, used, doubled


def names_of(path: Path) -> Iterator[Path]:
    """The name of a setting, then its former ones."""
    yield path
    yield from (former for former, present in FORMER_NAMES.items() if present == path)


def doubled_sentence(former: Path, layer: str) -> str:
    """The sentence about a setting given under both names in one layer."""
    return (
        f"{'.'.join(former)} {layer} is the former name of {'.'.join(FORMER_NAMES[former])}, and both are"
        " set: remove the former"
    )


def warning(former: Path, layer: str) -> str:
    """The sentence about a former name; `layer` says where it was found."""
    return (
        f"{'.'.join(former)} {layer} is now named {'.'.join(FORMER_NAMES[former])};"
        f" release {REMOVED_IN} will refuse the former name"
    )
