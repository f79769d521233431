import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "soak.py"
MISSING = 3


@pytest.mark.timeout(1000)
def test_clients_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--quick", "--out", tmp_path / "soak.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode == MISSING:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    told = dict(re.findall(r"^soak\.(\w+) (\d+)", done.stdout, re.M))
    assert told.keys() == {"rate", "send", "receive", "rude", "left", "violations"}
    assert int(told.pop("left")) == 0
    assert all(int(count) > 0 for count in told.values())
    written = json.loads((tmp_path / "soak.json").read_text())
    assert (written["left"], written["wrong"]) == ([0], [])
    assert all(sample["pss_mb"] > 10 for sample in written["samples"])
