from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1000)  # for when the machine stands still
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "door.py"


def test_every_figure_is_one_comparable_line() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert all(re.fullmatch(r"door\.[a-z0-9_]+ \d+\.\d\d us/message", line) for line in lines)
    assert [line.split()[0] for line in lines] == [
        "door.send_32",
        "door.receive_32",
        "door.send_1",
        "door.receive_1",
    ]
