import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1000)  # for when the machine stands still
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "retention.py"


def test_every_figure_is_one_comparable_line() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, "")
    removed, quiet, deleting, ratio = done.stdout.splitlines()
    found = re.fullmatch(r"retention\.removed (\d+) of 6000 messages", removed)
    assert found is not None
    assert int(found[1]) > 0
    assert re.fullmatch(r"retention\.send_p99_quiet \d+\.\d\d ms of \d+ sends", quiet)
    assert re.fullmatch(r"retention\.send_p99_deleting \d+\.\d\d ms of \d+ sends", deleting)
    assert re.fullmatch(r"retention\.ratio \d+\.\d\d", ratio)
