"""Benchmarks before a real RocketMQ, shortly: that they run, also beside a Java proxy. No figure is judged.

It is the one that other tests share, so the broker's own cost is not told; `tests/cluster` starts one.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.beside.driving import build
from benchmarks.beside.results import Results
from benchmarks.beside.sides import JAVA, OURS
from popgate.testing.rocketmq import PATIENT, Missing, SharedRocketMQ
from popgate.testing.rocketmq.requests import ask
from popgate.wire.frames.codes import RequestCode
from popgate.wire.json_syntax.fastjson import loads
from proxy.supervision.cores import usable_cores
from tests.support.needed import missing, needed_rocketmq

FOLDER = Path(__file__).parents[2] / "benchmarks"
LONGEST_S = 900
MISSING = 3
"""The exit code where a tool is not there."""
SMALL = "-Xms64m -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""A Java proxy that starts soon and takes little: others run beside it."""


@pytest.fixture(scope="module")
def rocketmq() -> Iterator[SharedRocketMQ]:
    try:
        build()
    except Missing as what:
        missing(what)
    with needed_rocketmq() as cluster:
        yield cluster


def run(script: str, rocketmq: SharedRocketMQ, *options: str) -> str:
    """Run a benchmark to its good end; what it printed."""
    command = [sys.executable, FOLDER / script, "--quick", "--broker", rocketmq.url]
    command += [f"--serve-options={shlex.join(PATIENT)}", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S)
    if done.returncode == MISSING:
        missing(Missing(done.stderr.strip()))
    said = [line for line in done.stderr.splitlines() if not line.startswith("WARNING: ")]
    assert (done.returncode, said) == (0, []), done.stdout + done.stderr
    return done.stdout


def topics(rocketmq: SharedRocketMQ) -> set[str]:
    told = loads(ask(rocketmq.name_server, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body)
    return set(told["topicList"])


@pytest.mark.timeout(LONGEST_S + 100)
def test_both_proxies_do_their_works_before_one_broker_and_leave_nothing(
    rocketmq: SharedRocketMQ, tmp_path: Path
) -> None:
    run(
        "bench.py",
        rocketmq,
        *("--only", "send_32,receive_1,rate", "--out", str(tmp_path), f"--java-options={SMALL}"),
    )
    told = Results.read(tmp_path / "beside-java-proxy.json")
    for part in ("send_32", "receive_1", "send_32.rate", "receive_1.rate", "memory_loaded"):
        for side in (JAVA, OURS):
            assert len(told.of("own", part, side)) == 1, (part, side)
    assert {run.errors for run in told.runs if run.side == OURS} == {0}
    assert told.settings["workers"] == {"own": usable_cores()}
    names = {f"{word}-{side}-" for word in ("sent", "taken", "group") for side in (JAVA, OURS)}
    assert not [topic for topic in topics(rocketmq) if any(name in topic for name in names)]


@pytest.mark.timeout(LONGEST_S + 100)
def test_the_stages_of_a_gateway_before_a_broker_are_told(rocketmq: SharedRocketMQ, tmp_path: Path) -> None:
    out = tmp_path / "stages.json"
    run("stages.py", rocketmq, "--work", "send_32", "--out", str(out))
    (tier,) = (told := json.loads(out.read_text())["runs"])
    assert tier == "own"
    assert told[tier]["send_32"]["errors"] == 0
