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


def test_a_whole_run_takes_forty_minutes_at_most() -> None:
    assert seconds_of(Amounts(), PARTS, TIERS) <= 40 * 60


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


def test_what_a_message_costs_at_the_rate_stands_beside_what_it_costs_at_most() -> None:
    paced = [
        Run("own", "send_1.rate", side, 0, {"wanted": 500.0, "cpu_us": cost, "p99_ms": 9.0})
        for side, cost in (("java", 300.0), ("ours", 240.0))
    ]
    table = Table(results(*runs_of("java", 100), *runs_of("ours", 40), *paced)).write()
    lines = [line for line in table.splitlines() if "CPU of the gateway" in line]
    assert lines[0].startswith("| send, one per call: CPU of the gateway per message | 100 µs | 40.0 µs |")
    name = "send, one per call, at 500 messages per second: CPU of the gateway per message"
    assert lines[1:] == [f"| {name} | 300 µs | 240 µs | 0.80 |  |"]
    assert row(table, "send, one per call, at 500 messages per second: p99")[3] == "1.00"


def test_the_warm_up_shows_what_its_first_and_its_last_quarter_cost() -> None:
    part = "send_1.warm_up"
    table = Table(
        results(
            *runs_of("java", 900, 400, 130, 110, part=part), *runs_of("ours", 52, 51, 51, 51.5, part=part)
        )
    ).write()
    assert row(table, "warm-up, send, one per call")[1:3] == ["900, 110 µs", "52.0, 51.5 µs"]


def test_the_table_says_how_many_workers_there_were_and_which_commit_ran() -> None:
    written = results()
    written.machine["revision"] = "0123456789abcdef0123456789abcdef01234567+"
    written.settings["workers"] = {"own": 2, "embedded": 1}
    table = Table(written, ["These figures belong to no commit."]).write()
    assert (
        "; popgate 0123456789ab+; `popgate serve`, 2 workers on a tier of its own,"
        " 1 worker with the broker inside.\n" in table
    )
    assert "\n\n**These figures belong to no commit.**\n\n" in table


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
