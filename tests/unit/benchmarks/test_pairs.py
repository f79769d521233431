"""benchmarks.pairs and benchmarks.before_after: figures of lines, the table, what is kept, wheels apart."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import before_after
from benchmarks.beside.amounts import chosen_from
from benchmarks.beside.results import Results, Run
from benchmarks.pairs.figures import figures_in, run_program
from benchmarks.pairs.wheels import CHECKOUT, WheelSide, full_commit, source_of
from popgate.testing.made import Missing

COMMITS = {"before": "a" * 40, "after": "b" * 40}
MACHINE = dict.fromkeys(before_after.OF_THE_MACHINE, "as it was")


def run(part: str, side: str, number: int, **figures: float) -> Run:
    return Run(before_after.TIER, part, side, number, {f"{name} s": value for name, value in figures.items()})


def test_figures_are_values_with_a_unit() -> None:
    lines = [
        "gateway.idle 55.6 MB",
        "grpc.send_1 1596 msgs/s 429.0 us/msg of server CPU",
        "waiting.woken 20 of 40 polls",
        "these words 3",
    ]
    assert figures_in(lines) == {
        "gateway.idle MB": 55.6,
        "grpc.send_1 msgs/s": 1596.0,
        "grpc.send_1 us/msg": 429.0,
    }


def test_a_program_that_fails_ends_the_run_with_its_code(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys; print('x 1 s'); sys.exit(3 if '--bad' in sys.argv else 0)")
    assert run_program(program) == {"x s": 1.0}
    with pytest.raises(SystemExit) as ended:
        run_program(program, "--bad")
    assert ended.value.code == 3


def test_the_table_has_medians_and_the_ratios_of_the_pairs() -> None:
    results = Results({}, COMMITS)
    for number, (before, after) in enumerate([(1.0, 2.0), (2.0, 2.0), (4.0, 2.0)]):
        results.runs += [
            run("x", "before", number, a=before, gone=1.0),
            run("x", "after", number, a=after, new=1.0),
        ]
    assert list(before_after.table(results))[2:] == ["| a | 2 s | 2 s | 1.00 (0.50 to 2.00, 3 pairs) |"]


def test_parts_of_the_same_commits_are_kept_and_measured_parts_replaced(tmp_path: Path) -> None:
    file = tmp_path / "before-after.json"
    assert before_after.kept(file, MACHINE, COMMITS, ["x"]) == ([], [])
    stays = run("y", "before", 0, b=1.0)
    Results(
        MACHINE, COMMITS, [run("x", "before", 0, a=1.0), stays], ["x: old", "y: changed"], file=file
    ).write()
    assert before_after.kept(file, MACHINE, COMMITS, ["x"]) == ([stays], ["y: changed"])
    assert before_after.kept(file, {**MACHINE, "cores": 64}, COMMITS, ["x"]) == ([], [])
    assert before_after.kept(file, MACHINE, {**COMMITS, "after": "c" * 40}, ["x"]) == ([], [])


def test_figures_of_a_checkout_are_not_kept_beside_later_ones(tmp_path: Path) -> None:
    file = tmp_path / "before-after.json"
    commits = {**COMMITS, "after": CHECKOUT}
    Results(MACHINE, commits, [run("y", "before", 0, b=1.0)], file=file).write()
    assert before_after.kept(file, MACHINE, commits, ["x"]) == ([], [])


def test_each_goes_first_in_turn_and_what_is_not_comparable_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [WheelSide(name, tmp_path / name) for name in ("before", "after")]
    for side in sides:
        (side.folder / "benchmarks").mkdir(parents=True)
        (side.folder / "benchmarks" / "processor.py").write_text(side.name)
    (sides[1].folder / "benchmarks" / "door.py").touch()
    ran = []

    def program(path: Path, *how: str, environment: dict[str, str]) -> dict[str, float]:
        ran.append(path.parts[-3])
        assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(path.parents[1])
        return {"x s": 1.0}

    monkeypatch.setattr(before_after, "run_program", program)
    results = Results({}, COMMITS)
    before_after.measure(results, sides, ["processor", "door"], 3)
    assert ran == ["before", "after", "after", "before", "before", "after"]
    assert results.notes == [
        "processor: the benchmark was changed in between, and may measure something else",
        "door: left out, it is not there before",
    ]


def test_fewer_than_seven_pairs_and_unknown_parts_are_refused() -> None:
    assert before_after.pairs_number("9") == 9
    for few in ("6", "-7", "many"):
        with pytest.raises(argparse.ArgumentTypeError, match="at least 7 pairs"):
            before_after.pairs_number(few)
    with pytest.raises(argparse.ArgumentTypeError, match="nowhere: there are processor"):
        chosen_from(before_after.PARTS)("door,nowhere")


def test_a_commit_is_unpacked_as_it_was(git: Callable[..., str], tmp_path: Path) -> None:
    commit = git("rev-parse", "HEAD")
    (tmp_path / "product.py").write_text("changed\n")
    assert full_commit("HEAD") == commit
    assert (source_of(commit, tmp_path / "before") / "product.py").read_text() == "as it was\n"


def test_a_commit_that_is_not_there_is_told(git: Callable[..., str]) -> None:
    for name in ("no-such-commit", "--all"):
        with pytest.raises(Missing, match=f"no commit {name} is here"):
            full_commit(name)
    assert full_commit(CHECKOUT) == CHECKOUT


def test_a_side_that_python_would_take_from_elsewhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPGATE_LIMITS__MAX_WAIT_S", "1")
    side = WheelSide("before", tmp_path)
    assert not [name for name in side.environment() if name.startswith("POPGATE_")]
    with pytest.raises(RuntimeError, match=r"before would be measured with .*, which is not of its wheel"):
        side.check()
    for room in ("popgate", "popgate/_app/brokers", "popgate/_app/processors"):
        (tmp_path / room).mkdir(parents=True)
        (tmp_path / room / "__init__.py").touch()
    with pytest.raises(RuntimeError, match="protocols"):
        side.check()
    for room in ("protocols", "proxy"):
        (tmp_path / "popgate/_app" / room).mkdir()
        (tmp_path / "popgate/_app" / room / "__init__.py").touch()
    side.check()
