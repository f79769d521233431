"""The benchmarks' short forms, as processes of their own: that they run, and the form of what they print.

No figure is judged here, and no warning of the interpreter or of a library on standard error.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
LONGEST_S = 900
"""For one that hangs; within the time that pytest allows below."""
MISSING = 3
"""The exit code where a tool that it needs is not there."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(LONGEST_S + 100))


@pytest.fixture
def measured() -> Callable[..., list[str]]:
    """Run a benchmark to its good end; the lines that it printed. Skips where a tool of its is missing."""

    def run(script: str, *options: str) -> list[str]:
        command = [sys.executable, str(FOLDER / script), "--quick", *options]
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONGEST_S
        )
        if ended.returncode == MISSING:
            pytest.skip(ended.stderr.strip())
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "Traceback" not in ended.stderr, ended.stderr
        return ended.stdout.splitlines()

    return run
