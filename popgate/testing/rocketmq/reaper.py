"""Ends processes when their owner is gone, however it went; a program of its own that imports nothing else.

Read from standard input, line by line: `+123` is a process to end, `-123` one that has ended, and `/path` a
folder to remove. At the end of the input, which comes when the owner closes it or dies, all that is done.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from typing import Final

_GRACE_S: Final = 5.0


def watch(lines: Iterable[str]) -> None:
    """Follow the lines to their end, then end and remove what they left."""
    pids: set[int] = set()
    folders: list[str] = []
    for line in map(str.strip, lines):
        if line.startswith("+"):
            pids.add(int(line))
        elif line.startswith("-"):
            pids.discard(-int(line))
        elif line:
            folders.append(line)
    for pid in pids:
        _signal(pid, signal.SIGTERM)
    end = time.monotonic() + _GRACE_S
    while any(_signal(pid, 0) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    for pid in pids:
        _signal(pid, signal.SIGKILL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _signal(pid: int, number: int) -> bool:
    """Whether the process was there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch(sys.stdin)
