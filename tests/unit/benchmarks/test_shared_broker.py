import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1000)  # for when the machine stands still
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "shared_broker.py"


def test_every_figure_of_both_ways_is_one_line_with_their_ratio() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert all(re.fullmatch(r"[a-z]+\.[a-z]+_\d+ \d+\.\d\d (us/message|x)", line) for line in lines)
    figures = {f"{what}_{batch}" for what in ("send", "pop", "ack") for batch in (1, 32)}
    assert {line.split()[0] for line in lines} == {
        f"{way}.{figure}" for way in ("direct", "shared", "ratio") for figure in figures
    }
