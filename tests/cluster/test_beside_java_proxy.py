"""The comparison with RocketMQ's own proxy works, shortly; nothing is said of its figures."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.beside.results import Results
from benchmarks.beside.sides import TIERS
from popgate.testing.rocketmq import PATIENT, Missing
from proxy.supervision.cores import usable_cores
from tests.support.needed import missing

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bench.py"
MISSING = 3
PARTS = "send_32,receive_1,rate,memory,idle_connections,polls"
LONGEST_S = 1_500
"""On a machine with other things to do."""


@pytest.mark.timeout(LONGEST_S)
@pytest.mark.parametrize("tier", TIERS)
def test_both_do_every_work_in_turn_and_ours_without_an_error(tier: str, tmp_path: Path) -> None:
    if os.environ.get("TEST_CLUSTER") != "true":
        pytest.skip("starts Java proxies and a broker: sh tests/run.sh --long runs it")
    command = [sys.executable, SCRIPT, "--quick", "--tier", tier, "--only", PARTS, "--out", tmp_path]
    if tier == "own":
        command.append(f"--serve-options={shlex.join(PATIENT)}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S - 20)
    if done.returncode == MISSING:
        missing(Missing(done.stderr.strip()))
    said = [line for line in done.stderr.splitlines() if not line.startswith("WARNING: ")]
    assert (done.returncode, said) == (0, []), done.stdout
    told = Results.read(tmp_path / "beside-java-proxy.json")
    for part in ("send_32", "receive_1", "send_32.rate", "memory_loaded"):
        assert len(told.of(tier, part, "java")) == len(told.of(tier, part, "ours")) == 1, part
    part = "idle_connections" if tier == "own" else "polls"
    ours = told.of(tier, part, "ours")[0].figures
    assert ours["held"] > 0
    assert told.settings["workers"] == {tier: usable_cores() if tier == "own" else 1}
