"""Looks at the whole tree before any test runs, everything side by side: each part uses one core by itself.

    python -m tests.support.checks             # style, types, import rules
    python -m tests.support.checks everything  # and all that tests need: builds, their own modules compiled

What is wrong is printed, and the exit code is 1.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

_PYTHON = (sys.executable, "-m")
_COLLECT = (*_PYTHON, "pytest", "--collect-only", "-qq", "-n", "0")
CHECKS: dict[str, tuple[str, ...]] = {
    "mypy": (*_PYTHON, "mypy", "--no-error-summary"),
    "lint-imports": ("lint-imports", "--no-cache"),
    "ruff": (*_PYTHON, "ruff", "check", "--quiet", "."),
    "ruff format": (*_PYTHON, "ruff", "format", "--quiet", "--check", "."),
}
NEEDED: dict[str, tuple[str, ...]] = {
    # Built before the tests, which have no time for it; what is missing is told again by those that need it.
    "builds": (*_PYTHON, "tests.builds"),
    # pytest compiles a test's module where it first meets it, and each worker meets all those of its tier.
    # In halves: it takes longer than all else here.
    "unit tests": (*_COLLECT, "tests/unit"),
    "other tests": (*_COLLECT, "--ignore", "tests/unit", "tests"),
}
_TOLD_AT_ONCE = ("builds",)
"""They take minutes on a new machine, and say what they are at."""


def look(parts: dict[str, Sequence[str]]) -> list[str]:
    """Run commands side by side; returns the names of those that failed, in the order of `parts`."""

    def one(name: str) -> bool:
        began, told = time.monotonic(), name in _TOLD_AT_ONCE
        ran = subprocess.run(
            parts[name],
            stdin=subprocess.DEVNULL,
            stdout=None if told else subprocess.PIPE,
            stderr=None if told else subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if ran.returncode:
            print(f"{name}: exit code {ran.returncode}\n{ran.stdout or ''}", flush=True)
        else:
            print(f"{name}: passed ({time.monotonic() - began:.0f} s)", flush=True)
        return ran.returncode == 0

    with ThreadPoolExecutor(len(parts)) as pool:
        passed = list(pool.map(one, parts))
    return [name for name, well in zip(parts, passed, strict=True) if not well]


if __name__ == "__main__":
    everything = sys.argv[1:] == ["everything"]
    wrong = look({**CHECKS, **(NEEDED if everything else {})})
    if wrong:
        print(f"FAILED {', '.join(wrong)}")
    sys.exit(1 if wrong else 0)
