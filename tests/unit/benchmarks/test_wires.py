import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1000)  # for when the machine stands still
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "wires.py"


def test_every_figure_is_one_comparable_line() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert all(re.fullmatch(r"[a-z_]+\.[a-z0-9_]+ \d+\.\d\d us/op", line) for line in lines)
    names = [line.split()[0] for line in lines]
    assert len(set(names)) == len(names)
    assert {
        "records.encode",
        "records.decode",
        "properties.find_first",
        "filters.sql",
        "remoting.decode_json",
    } <= set(names)
