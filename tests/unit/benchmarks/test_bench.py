import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.beside.amounts import PARTS, QUICK, WORKS, Amounts, seconds_of
from benchmarks.beside.processes import cpu_s, family, memory_mb
from benchmarks.beside.results import Results, Run
from benchmarks.beside.sides import TIERS
from benchmarks.beside.table import Table
from popgate.testing.made import Missing

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "bench.py"
MISSING = 3


def results(*runs: Run, quick: bool = False) -> Results:
    machine = dict.fromkeys(
        ("processor", "cores", "memory_gb", "kernel", "python", "java", "rocketmq", "revision"), "x"
    )
    settings = {"quick": quick, "serve_options": "", "amounts": {"stored": 1_000_000}}
    return Results({**machine}, settings, list(runs))


def runs_of(side: str, *values: float, part: str = "send_1", figure: str = "cpu_us") -> list[Run]:
    return [Run("own", part, side, turn, {figure: value}) for turn, value in enumerate(values)]


def row(table: str, name: str) -> list[str]:
    line = next(line for line in table.splitlines() if line.startswith(f"| {name}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.timeout(1000)
def test_a_short_run_of_ours_alone_does_every_part_without_an_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--quick", "--without-java", "--out", tmp_path],
        capture_output=True,
        text=True,
        timeout=900,
    )
    if done.returncode == MISSING:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    told = Results.read(tmp_path / "beside-java-proxy.json")
    parts = {run.part.partition(".")[0] for run in told.runs if run.part not in ("stock", "warm_up")}
    memory = {"memory_idle", "memory_loaded"}
    assert parts | {"nghttpd"} == {*WORKS, *memory, "idle_connections", "polls", "ready", "nghttpd"}
    assert {run.errors for run in told.runs} == {0}
    idle = told.of("embedded", "idle_connections", "ours")[0].figures
    assert idle["held"] == QUICK.connections
    polls = told.of("embedded", "polls", "ours")[0].figures
    assert polls["held"] == QUICK.poll_connections * QUICK.polls_each
    assert polls["woken"] == QUICK.poll_topics
    table = (tmp_path / "beside-java-proxy.md").read_text()
    assert Table(told).write() == table
    assert "no figure of it means anything" in table


def test_a_part_that_nobody_knows_is_refused() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--only", "send_7"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "send_7: there are send_1, " in done.stderr


def test_a_whole_run_takes_half_an_hour_at_most() -> None:
    assert seconds_of(Amounts(), PARTS, TIERS) <= 30 * 60


def test_the_ratio_is_the_median_of_those_of_the_rounds() -> None:
    table = Table(results(*runs_of("java", 10, 100, 1), *runs_of("ours", 4, 90, 0.7))).write()
    assert row(table, "send, one per call: CPU of the gateway") == [
        "send, one per call: CPU of the gateway per message",
        "10.0 µs",
        "4.00 µs",
        "0.70 (0.40-0.90)",
        "must ≤ 0.5: **no**",
    ]
    assert "Reached: 0 of 1 musts." in table


def test_an_aim_says_whether_it_is_met_unless_the_run_was_short() -> None:
    met = [*runs_of("java", 1_000, figure="per_core"), *runs_of("ours", 2_000, figure="per_core")]
    name = "send, one per call: messages per second and core"
    assert row(Table(results(*met)).write(), name)[-1] == "aim ≥ 2: yes"
    assert row(Table(results(*met, quick=True)).write(), name)[-1] == ""


def test_a_run_with_errors_and_one_that_was_too_slow_are_marked() -> None:
    failed = Run("own", "send_1", "ours", 0, {"cpu_us": 4.0}, 2, ["SendMessage: 40402 no such topic"])
    paced = {"wanted": 500.0, "rate": 100.0, "p99_ms": 9.0}
    slow = Run("own", "send_32.rate", "ours", 0, paced, kept_up=False)
    java = Run("own", "send_32.rate", "java", 0, {"wanted": 500.0, "rate": 500.0, "p99_ms": 9.0})
    written = results(*runs_of("java", 8), failed, java, slow)
    table = Table(written).write()
    assert written.failed == [failed]
    assert row(table, "send, one per call: CPU")[0].endswith("†")
    assert "- own, send_1, ours, round 1: 2, SendMessage: 40402 no such topic" in table
    assert row(table, "send, 32 per call, at 500 messages per second: p99")[0].endswith("‡")
    assert "- own, send_32.rate, ours, round 1: 100 of 500 messages per second" in table


def test_an_idle_connection_is_judged_by_the_live_heap_of_the_other_and_by_itself() -> None:
    java = {"held": 10_000, "pss_kib_each": 9.0, "heap_kib_each": 4.0}
    ours = {"held": 10_000, "pss_kib_each": 6.0}
    table = Table(
        results(
            Run("own", "idle_connections", "java", 0, java), Run("own", "idle_connections", "ours", 0, ours)
        )
    ).write()
    words = "memory of each of 10,000 idle connections"
    assert row(table, f"{words}: live heap")[1:] == ["4.00 KiB", "6.00 KiB", "1.50", "aim ≤ 1: **no**"]
    assert row(table, f"{words}: PSS")[3] == "0.67"
    assert row(table, f"{words}, PSS")[-1] == "must ≤ 8 KiB: yes"


def test_a_part_that_breaks_loses_nothing_else(tmp_path: Path) -> None:
    written = results(*runs_of("java", 8))
    written.file = tmp_path / "told.json"
    with written.trying("own, send_1, java"):
        written.add(Run("own", "send_1", "ours", 0, {"cpu_us": 4.0}))
        raise SystemExit("the load told nothing")
    assert Results.read(written.file) == written
    with written.trying("own, ready"):
        written.add(Run("own", "ready", "ours", 0, {"ready_s": 0.5}))
    kept = Results.read(written.file)
    assert kept.broken == ["own, send_1, java: SystemExit: the load told nothing"]
    assert [run.part for run in kept.runs] == ["send_1", "send_1", "ready"]
    assert f"- {kept.broken[0]}" in Table(kept).write()
    with pytest.raises(Missing), written.trying("own"):
        raise Missing("Go is not there")


def test_results_are_read_as_they_were_written() -> None:
    written = results(
        *runs_of("java", 8), Run("own", "send_1", "ours", 0, {"cpu_us": 4.0}, 1, ["why"], False)
    )
    assert Results.parse(written.encode()) == written
    assert json.loads(written.encode())["runs"][0]["side"] == "java"


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
