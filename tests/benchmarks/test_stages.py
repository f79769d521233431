from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "stages.py"


def test_without_its_tool_it_says_what_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--quick"],
        capture_output=True,
        text=True,
        timeout=900,
        env={"PATH": "/nonexistent"},
    )
    assert (done.returncode, done.stdout) == (3, "py-spy is not there: pip install py-spy\n")
