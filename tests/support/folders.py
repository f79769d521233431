"""Temporary folders: with short paths, and in memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from popgate.sockets.unix_sockets import LONGEST_PATH

_FOR_NAMES = 45
"""Bytes for the folder's own name and for that of a socket in it, or in a folder below."""
MEMORY = Path("/dev/shm")
LEAST_FREE = 8 << 30
"""Bytes: several times what a tier leaves behind."""
_PREFIX = "pt-"


@contextlib.contextmanager
def folder_in_memory(environment: Mapping[str, str], memory: Path = MEMORY) -> Iterator[Path | None]:
    """A folder for temporary files in memory, removed at the end: to open a store takes half the time there.

    None where `TMPDIR` says another place, where little memory is free, or nothing may be executed.
    """
    if "TMPDIR" in environment or not _is_fit(memory):
        yield None
        return
    for left in memory.glob(f"{_PREFIX}*"):  # by a run that was killed: it would lie in memory for good
        if not Path("/proc", left.name.split("-")[1]).exists():
            shutil.rmtree(left, ignore_errors=True)
    prefix = f"{_PREFIX}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=memory, ignore_cleanup_errors=True) as made:
        yield Path(made)


def _is_fit(memory: Path) -> bool:
    if not os.access(memory, os.W_OK) or os.statvfs(memory).f_flag & os.ST_NOEXEC:
        return False
    told = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(told["MemAvailable"].split()[0]) * 1024
    return min(available, shutil.disk_usage(memory).free) >= LEAST_FREE


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A folder for unix sockets, removed at the end; pytest's own paths are often too long for them.

    It is in /tmp where the path of the folder for temporary files leaves too little room.
    """
    usual = tempfile.gettempdir()
    short = usual if len(usual.encode()) <= LONGEST_PATH - _FOR_NAMES else "/tmp"
    with tempfile.TemporaryDirectory(prefix="popgate-", dir=short) as folder:
        yield Path(folder)
