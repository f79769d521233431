"""A copy of a folder as a crash would leave it, made while it is in use."""

from __future__ import annotations

import shutil
from pathlib import Path

_MOST_TRIES = 1_000


def copy_as_after_a_crash(source: Path, target: Path) -> None:
    """Copy the files of a folder as they are at one moment; `target` is made, and must not be there.

    A database tidies its files in threads of its own: a copy during which any file came, went or
    changed is made again. Raises TimeoutError when there was never a quiet moment.
    """
    for _ in range(_MOST_TRIES):
        before = _standing(source)
        try:
            shutil.copytree(source, target)
        except (shutil.Error, FileNotFoundError):
            before = {}
        if before and _standing(source) == before:
            return
        shutil.rmtree(target, ignore_errors=True)
    raise TimeoutError(f"the files in {source} were never at rest")


def _standing(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file; nothing when one went while they were looked at."""
    try:
        path_stats = ((path, path.stat()) for path in folder.rglob("*"))
        return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in path_stats}
    except FileNotFoundError:
        return {}
