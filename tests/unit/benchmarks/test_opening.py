import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1000)  # for when the machine stands still
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "opening.py"


def test_every_figure_is_one_comparable_line() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, "")
    stored, in_flight = done.stdout.splitlines()
    assert re.fullmatch(r"opening\.stored_500 \d+\.\d\d s", stored)
    assert re.fullmatch(r"opening\.in_flight_500 \d+\.\d\d s", in_flight)
