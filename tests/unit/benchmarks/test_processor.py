from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1000)  # for when the machine stands still
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "processor.py"


def test_every_figure_is_one_comparable_line() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert all(re.fullmatch(r"processor\.[a-z0-9_]+ \d+\.\d\d us/op", line) for line in lines)
    names = [line.split()[0] for line in lines]
    assert len(set(names)) == len(names)
    assert {"processor.send_32", "processor.receive_32", "processor.ack_32"} <= set(names)
