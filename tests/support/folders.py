"""Temporary folders with short paths."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from popgate.unix_sockets import LONGEST_PATH

_FOR_NAMES = 45
"""Bytes for the folder's own name and for that of a socket in it, or in a folder below."""


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A folder for unix sockets, removed at the end; pytest's own paths are often too long for them.

    It is in /tmp where the path of the folder for temporary files leaves too little room.
    """
    usual = tempfile.gettempdir()
    short = usual if len(usual.encode()) <= LONGEST_PATH - _FOR_NAMES else "/tmp"
    with tempfile.TemporaryDirectory(prefix="popgate-", dir=short) as folder:
        yield Path(folder)
