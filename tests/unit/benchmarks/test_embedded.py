import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1000)  # for when the machine stands still
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "embedded.py"


def test_every_figure_is_one_comparable_line() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert all(re.fullmatch(r"embedded\.interval\.[a-z0-9_]+ \d+\.\d\d us/message", line) for line in lines)
    names = [line.split()[0].removeprefix("embedded.interval.") for line in lines]
    assert len(set(names)) == len(names)
    assert {"send_32", "pop_ack_32", "send_1", "pop_ack_1", "ordered_pop_ack_32"} <= set(names)
