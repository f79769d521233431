"""Notices that files were replaced, without a thread: they are looked at when they are needed."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

_LOOK_S: Final = 1.0
"""No more often than that."""
_RETRY_S: Final = 10.0

_Stamp = tuple[int, int, int]


class Unreadable(ValueError):
    """A file that could not be read: that may pass without a change of the file."""


class WatchedFiles:
    """Files, of which None are left out. `now`: a monotonic clock, in seconds."""

    def __init__(self, files: Iterable[Path | None], now: Callable[[], float] = time.monotonic) -> None:
        self._files = tuple(file for file in files if file is not None)
        self._now = now
        self._looked = now()
        self._retry_at: float | None = None
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
        if stamps == self._seen and (self._retry_at is None or self._now() < self._retry_at):
            return False
        self._seen, self._retry_at = stamps, None
        return True

    def retry(self) -> None:
        """Have `changed` return True again in 10 s: what failed may work then, with the same files."""
        self._retry_at = self._now() + _RETRY_S

    def _stamps(self) -> tuple[_Stamp | None, ...]:
        return tuple(_stamp(file) for file in self._files)


def _stamp(file: Path) -> _Stamp | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def contents_of(file: Path, words: str, *, most: int = -1) -> bytes:
    """At most `most` bytes of a file. Raises Unreadable; `words` begin its sentence."""
    try:
        with file.open("rb") as opened:
            return opened.read(most)
    except OSError as error:
        raise Unreadable(f"{words} cannot be read: {reason_of(error)}") from None


def reason_of(error: OSError) -> str:
    """What the system says, to end a sentence."""
    return (error.strerror or str(error)).lower()


@contextlib.contextmanager
def as_file(data: bytes) -> Iterator[str]:
    """The name of a file with these contents, so that what was checked is used. Raises OSError.

    OpenSSL reads certificates, keys and lists from files only.
    """
    # In memory: folders for temporary files may be read-only. A container may have no /proc.
    in_memory = sys.platform == "linux" and os.path.isdir("/proc/self/fd")
    with os.fdopen(os.memfd_create("popgate"), "w+b") if in_memory else tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}" if in_memory else file.name
