from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1000)  # for when the machine stands still
SCRIPT = Path(__file__).parents[3] / "benchmarks" / "grpc_end_to_end.py"


def test_every_figure_is_one_comparable_line() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        "grpc.send_1",
        "grpc.receive_and_ack_1",
        "grpc.send_32",
        "grpc.receive_and_ack_32",
    ]
    form = re.compile(r"grpc\.\w+ \d+ msgs/s \d+\.\d us/msg of server CPU")
    assert [line for line in lines if not form.fullmatch(line)] == []
