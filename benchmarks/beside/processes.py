"""What processes of a gateway cost: CPU and memory, summed over everything that they started.

And how they are kept from costing anything while another gateway is measured.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
_LOOK_S = 0.001


def family(pid: int) -> list[int]:
    """A process and those that it started, and so on; without those that ended meanwhile."""
    found = [pid]
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += family(int(child))
    return found


@contextlib.contextmanager
def standing_still(pids: Iterable[int]) -> Iterator[None]:
    """These families do nothing for as long as the block: they are stopped, and go on after it."""
    stopped: list[int] = []
    try:
        for pid in pids:
            for one in family(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGSTOP)
                    stopped.append(one)
        while any(_runs(one) for one in stopped):
            time.sleep(_LOOK_S)
        yield
    finally:
        for one in reversed(stopped):  # who looks after others finds them awake
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)


def _runs(pid: int) -> bool:
    """Whether it has not ended, and is not stopped: that takes until it is in no call of the system."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TZX"
    return False


def cpu_s(pid: int) -> float:
    """User and system time of the whole family, and of its members that have ended."""
    total = 0
    for one in family(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(number) for number in fields[11:15])
    return total / TICKS


def memory_mb(pid: int) -> dict[str, float]:
    """Proportional set size of the family; `files_mb` of it are pages of mapped files.

    A page that several processes map counts to each by its share, so what a family shares counts once.
    """
    told = {"Pss": 0, "Pss_File": 0}
    members = family(pid)
    for one in members:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
                name, _, rest = line.partition(":")
                if name in told:
                    told[name] += int(rest.split()[0])
    return {
        "pss_mb": told["Pss"] / 1024,
        "files_mb": told["Pss_File"] / 1024,
        "processes": len(members),
    }


def live_heap_mb(pid: int) -> float | None:
    """What is alive in the heap of a Java process after a full collection. None: there is no jcmd."""
    jcmd = shutil.which("jcmd")
    if jcmd is None:
        return None
    subprocess.run([jcmd, str(pid), "GC.run"], capture_output=True, check=True, timeout=120)
    # A histogram without -all collects once more and then counts what is left, to the byte.
    told = subprocess.run(
        [jcmd, str(pid), "GC.class_histogram"], capture_output=True, text=True, check=True, timeout=120
    )
    found = re.search(r"^Total\s+\d+\s+(\d+)", told.stdout, re.MULTILINE)
    return int(found[1]) / (1 << 20) if found else None
