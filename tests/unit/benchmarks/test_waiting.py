import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1000)  # for when the machine stands still
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "waiting.py"


def test_every_figure_is_one_comparable_line() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    *figures, woken, after = done.stdout.splitlines()
    names = ["idle", "stored_1000", "polls_40"]
    assert [re.fullmatch(r"waiting\.(\w+) \d+\.\d MB", line)[1] for line in figures] == names  # type: ignore[index]
    assert woken == "waiting.woken 20 of 40 polls"
    assert re.fullmatch(r"waiting\.after \d+\.\d MB", after)
