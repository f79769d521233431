"""What a result depends on besides the programs: the machine, and the versions of what ran there."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import popgate
from popgate.testing.rocketmq.downloads import NEWEST

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ("refs/remotes/origin/main", "refs/heads/main")
"""What is called the history, the first of them that is there; without them all that is checked out."""
MUCH_READ_AHEAD_KB = 1024
"""Linux's own is 128."""

Facts = dict[str, str | int | float]


def _git(*words: str) -> str | None:
    """What git prints about this checkout; None: it refuses, or there is none."""
    if shutil.which("git") is None:
        return None
    told = subprocess.run(["git", *words], capture_output=True, text=True, check=False, cwd=ROOT)
    return told.stdout.strip() if told.returncode == 0 else None


def _first_line(*command: str) -> str:
    """What a program says of itself; empty when it is not there."""
    if shutil.which(command[0]) is None:
        return ""
    told = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return (told.stdout or told.stderr).strip().partition("\n")[0]


def _found(path: str, pattern: str) -> str:
    found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    return found[1].strip() if found else ""


def facts() -> Facts:
    """No names of hosts and no paths: this is committed.

    `revision` is the commit, with a "+" where files of it are changed; empty where there is no git. What is
    in docs changes nothing that is measured, and may be results that are being written.
    """
    commit = _git("rev-parse", "HEAD") or ""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)docs")
    return {
        "processor": _found("/proc/cpuinfo", r"^model name\s*:(.*)$") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(int(_found("/proc/meminfo", r"^MemTotal:\s*(\d+)")) / (1 << 20), 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "read_ahead_kb": _read_ahead_kb(),
        "python": f"{platform.python_implementation()} {sys.version.split()[0]} ({_build_of_python()})",
        "java": _found_version(_first_line("java", "-version")),
        "go": _first_line("go", "env", "GOVERSION"),
        "rocketmq": NEWEST,
        "popgate": popgate.__version__,
        "revision": commit + ("+" if changed else ""),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _read_ahead_kb() -> int:
    """Of the disk where brokers keep their files; 0: not to be learned."""
    device = os.stat(tempfile.gettempdir()).st_dev
    try:
        return int(Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb").read_text())
    except OSError:  # a file system in memory, or of a container
        return 0


def _build_of_python() -> str:
    """One that was built without optimizations by profile is slower at everything."""
    if sys.base_prefix == "/usr":
        return "of the distribution"
    options = str(sysconfig.get_config_var("CONFIG_ARGS"))
    return "optimized" if "--enable-optimizations" in options else "not optimized"


def sentence(machine: Facts) -> str:
    """The machine and the versions in one line, without its end."""
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, "
        f"{machine['kernel']}; {machine['python']}, Java {machine['java']}, "
        f"RocketMQ {machine['rocketmq']}; popgate {short(machine)}"
    )


def short(machine: Facts) -> str:
    """The commit as people write it."""
    commit, changed, _ = str(machine["revision"]).partition("+")
    return f"{commit[:12]}{changed}" or "without a commit"


def slow_disk(machine: Facts) -> str:
    """What such a disk does to latencies before a RocketMQ; empty where it does not."""
    ahead = int(machine["read_ahead_kb"])
    if ahead < MUCH_READ_AHEAD_KB:
        return ""
    return (
        f"The disk reads {ahead} KB ahead: a RocketMQ broker stands still for some 20 ms with each such "
        "piece of its commit log, through whichever gateway messages are sent."
    )


def doubts(machine: Facts) -> list[str]:
    """Why nobody may be able to measure the same again, a sentence each; of figures of any time."""
    commit, changed, _ = str(machine["revision"]).partition("+")
    if not commit:
        return ["These figures belong to no commit: there was no git where they were measured."]
    found = []
    if changed:
        found.append(f"These figures belong to no commit: files were changed since {commit[:12]}.")
    history = next((name for name in PUBLISHED if _git("rev-parse", "--verify", name) is not None), "HEAD")
    if _git("merge-base", "--is-ancestor", commit, history) is None:
        name = "what is checked out" if history == "HEAD" else history.partition("/")[2].partition("/")[2]
        found.append(f"The commit {commit[:12]} that was measured is not in the history of {name}.")
    return found


def _found_version(line: str) -> str:
    found = re.search(r'"([^"]+)"', line)
    return found[1] if found else line
