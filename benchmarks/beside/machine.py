"""What a result depends on besides the programs: the machine, and the versions of what ran there."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import popgate
from popgate.testing.rocketmq.fetching import NEWEST

ROOT = Path(__file__).resolve().parents[2]


def _first_line(*command: str) -> str:
    """What a program says of itself; empty when it is not there."""
    if shutil.which(command[0]) is None:
        return ""
    told = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return (told.stdout or told.stderr).strip().partition("\n")[0]


def _found(path: str, pattern: str) -> str:
    found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    return found[1].strip() if found else ""


def facts() -> dict[str, str | int | float]:
    """No names of hosts and no paths: this is committed."""
    changed = _first_line("git", "status", "--porcelain", "--untracked-files=no")
    return {
        "processor": _found("/proc/cpuinfo", r"^model name\s*:(.*)$") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(int(_found("/proc/meminfo", r"^MemTotal:\s*(\d+)")) / (1 << 20), 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {sys.version.split()[0]}",
        "java": _found_version(_first_line("java", "-version")),
        "go": _first_line("go", "env", "GOVERSION"),
        "rocketmq": NEWEST,
        "popgate": popgate.__version__,
        "revision": _first_line("git", "rev-parse", "--short", "HEAD") + ("+" if changed else ""),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _found_version(line: str) -> str:
    found = re.search(r'"([^"]+)"', line)
    return found[1] if found else line
