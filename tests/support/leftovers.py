"""Processes of a run that outlived it, known by a variable in their environment."""

from __future__ import annotations

import os
import signal
import time
import uuid
from pathlib import Path

MARK = "TEST_RUN"
"""The variable: every process that a run starts inherits it, however it was detached."""


def mark_this_run() -> None:
    """Give this process's children a value of `MARK` that no other run has."""
    os.environ[MARK] = uuid.uuid4().hex


def left_behind(within_s: float = 60.0) -> dict[int, str]:
    """Command lines, by process id, of marked processes that did not end within a time.

    What ends by itself is given that time: a JVM needs seconds for its exit, and a RocketMQ's large folder is
    removed when its last user has gone. This process does not count.
    Empty where there is no /proc.
    """
    deadline = time.monotonic() + within_s
    while (found := _marked()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def end(processes: dict[int, str]) -> None:
    """Kill what was left behind, so that it does not disturb what comes next."""
    for pid in processes:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _marked() -> dict[int, str]:
    wanted = f"{MARK}={os.environ[MARK]}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        try:
            if pid == os.getpid() or wanted not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            if (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                continue
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # it ended meanwhile, or is somebody else's
            continue
        found[pid] = line
    return found
