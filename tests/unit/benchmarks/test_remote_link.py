from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1000)  # for when the machine stands still
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "remote_link.py"


def test_every_figure_is_one_comparable_line() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        "remote_link.1_in_flight",
        "remote_link.32_in_flight",
        "remote_link.512_in_flight",
        "remote_link.512_in_flight_signed",
    ]
    form = re.compile(r"remote_link\.\w+ \d+ requests/s \d+\.\d us/request")
    assert [line for line in lines if not form.fullmatch(line)] == []
