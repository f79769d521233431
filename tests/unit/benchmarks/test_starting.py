import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1000)  # for when the machine stands still
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "starting.py"


def test_every_figure_is_one_comparable_line() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, "")
    ready, idle = done.stdout.splitlines()
    assert re.fullmatch(r"gateway\.ready \d+\.\d\d s", ready)
    assert re.fullmatch(r"gateway\.idle \d+\.\d MB", idle)
