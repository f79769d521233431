import json
from pathlib import Path

import pytest

from benchmarks.beside.amounts import PARTS, Amounts, seconds_of
from benchmarks.beside.results import Results, Run
from benchmarks.beside.sides import TIERS
from benchmarks.beside.table import Table
from popgate.testing.made import Missing


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
