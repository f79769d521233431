"""Kills processes when their owner is gone for any reason; a program of its own that imports nothing else.

It reads lines from standard input: `+123` registers a process, `-123` removes one that has ended, and `/path`
registers a folder to remove. At the end of the input, when the owner closes it or dies, it cleans up.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

_GRACE_S: Final = 5.0


def watch(lines: Iterable[str]) -> None:
    """Read the lines to their end, then kill and remove the rest."""
    pids: dict[int, str] = {}
    folders: list[str] = []
    for line in map(str.strip, lines):
        if line.startswith("+"):
            pids[int(line)] = _start_of(int(line))
        elif line.startswith("-"):
            pids.pop(-int(line), None)
        elif line:
            folders.append(line)
    _signal(pids, signal.SIGTERM)
    end = time.monotonic() + _GRACE_S
    while _signal(pids, 0) and time.monotonic() < end:
        time.sleep(0.05)
    _signal(pids, signal.SIGKILL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _signal(pids: Mapping[int, str], number: int) -> bool:
    """Send a signal to those that are still the same processes; whether there were any."""
    signalled = False
    for pid, start in pids.items():
        if _start_of(pid) == start:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
                signalled = True
    return signalled


def _start_of(pid: int) -> str:
    """The start time of a process, if the system reports it: process ids are reused soon."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[18] if state != "Z" else "ended"


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch(sys.stdin)
