"""Notices that files were replaced, without a thread: they are looked at when they are needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

_LOOK_S: Final = 1.0
"""No more often than that."""

_Stamp = tuple[int, int, int]


class WatchedFiles:
    """Files, of which None are left out. `now`: a monotonic clock, in seconds."""

    def __init__(self, files: Iterable[Path | None], now: Callable[[], float] = time.monotonic) -> None:
        self._files = tuple(file for file in files if file is not None)
        self._now = now
        self._looked = now()
        self._seen = self._stamps()

    def __repr__(self) -> str:
        return f"<WatchedFiles {' '.join(map(str, self._files))}>"

    def is_due(self) -> bool:
        """Whether a second has passed since this last returned True."""
        now = self._now()
        if now - self._looked < _LOOK_S:
            return False
        self._looked = now
        return True

    def changed(self) -> bool:
        """Whether a file differs from the last look at it; of a file that is absent that is known, too."""
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        self._seen = stamps
        return True

    def _stamps(self) -> tuple[_Stamp | None, ...]:
        return tuple(_stamp(file) for file in self._files)


def _stamp(file: Path) -> _Stamp | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
