import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1000)  # for when the machine stands still
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "remoting_door.py"


def test_every_figure_is_one_comparable_line() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    form = r"remoting_door\.(\w+)\.ours per_s \d+\.\d gateway_us \d+\.\d"
    works = [re.fullmatch(form, line)[1] for line in done.stdout.splitlines()]  # type: ignore[index]
    assert works == ["send", "batch", "pull"]
