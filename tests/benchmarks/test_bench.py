from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.beside.amounts import AT_A_RATE, QUICK, WORKS
from benchmarks.beside.machine import doubts
from benchmarks.beside.processes import cpu_s, family, memory_mb
from benchmarks.beside.results import Results
from benchmarks.beside.table import Table

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bench.py"


def test_a_short_run_of_ours_alone_does_every_part_without_an_error(
    measured: Callable[..., list[str]], tmp_path: Path
) -> None:
    measured("bench.py", "--without-java", "--out", str(tmp_path))
    told = Results.read(tmp_path / "beside-java-proxy.json")
    parts = {run.part.partition(".")[0] for run in told.runs if run.part != "stock"}
    memory = {"memory_idle", "memory_loaded"}
    assert parts | {"nghttpd"} == {*WORKS, *memory, "idle_connections", "polls", "ready", "nghttpd"}
    assert {run.errors for run in told.runs} == {0}
    idle = told.of("embedded", "idle_connections", "ours")[0].figures
    assert idle["held"] == QUICK.connections
    polls = told.of("embedded", "polls", "ours")[0].figures
    assert polls["held"] == QUICK.poll_connections * QUICK.polls_each
    assert polls["woken"] == QUICK.poll_topics
    table = (tmp_path / "beside-java-proxy.md").read_text()
    assert Table(told, doubts(told.machine)).write() == table
    assert "no figure of it means anything" in table
    assert "`popgate serve`, 1 worker with the broker inside." in table
    assert table.count("CPU of the process per message") == len(WORKS) + len(AT_A_RATE)


def test_a_part_that_nobody_knows_is_refused() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--only", "send_7"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "send_7: there are send_1, " in done.stderr


PARENT = """
import subprocess, sys
busy = "print(sum(range(5_000_000)), flush=True); input()"
child = subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE)
input()
child.communicate(b"end")
print("ended", flush=True)
input()
"""


def test_a_family_has_the_cost_of_its_children_also_of_those_that_ended() -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline().strip().isdigit()
        assert len(family(process.pid)) == 2
        memory = memory_mb(process.pid)
        assert memory["processes"] == 2
        assert memory["pss_mb"] > memory["files_mb"]
        used = cpu_s(process.pid)
        assert used > 0
        process.stdin.write("end the child\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ended\n"
        assert family(process.pid) == [process.pid]
        assert cpu_s(process.pid) >= used
        process.kill()
