"""benchmarks.marks: a mark is missed by one figure above it, and by a figure that is not there."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from benchmarks import marks
from benchmarks.marks import MARKS, Mark, judged

KEPT = {
    "starting.py": {"gateway.ready s": 9.0, "gateway.idle MB": 80.0},
    "opening.py": {"opening.in_flight_100000 s": 9.0, "opening.in_flight_100000_best s": 2.0},
    "lite_topics.py": {
        "lite.idle MB": 300.0,
        "lite.topics_100000 MB": 200.0,
        "lite.idle_cpu_100000 %": 1.0,
        "lite.repeating_cpu_100000 %": 2.0,
    },
    "waiting.py": {"waiting.stored_1000000 MB": 300.0, "waiting.polls_10000 MB": 250.0},
}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, float]]:
    """What each program prints, instead of running it."""
    told = {program: dict(its) for program, its in KEPT.items()}

    def run(script: object, *options: str) -> Mapping[str, float]:
        return told[str(script).rpartition("/")[2]]

    monkeypatch.setattr(marks, "run_program", run)
    return told


def test_marks_that_are_reached_are_kept(
    figures: dict[str, dict[str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert marks.main([]) == 0
    assert "waiting.polls_10000 250.0 MB, at most 250: kept" in capsys.readouterr().out


@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: mark.name)
def test_each_mark_is_missed_alone(figures: dict[str, dict[str, float]], mark: Mark) -> None:
    its = figures[mark.program]
    found = mark.found_in(its)
    assert found is not None
    its[f"{found[0]} {mark.unit}"] += 0.1
    assert marks.main([]) == 1
    assert marks.main(["--quick"]) == 0


def test_a_figure_that_is_not_there_fails_in_the_short_form_too(
    figures: dict[str, dict[str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    del figures["opening.py"]["opening.in_flight_100000_best s"]
    assert marks.main(["--quick"]) == 1
    assert "opening.in_flight_N_best: NOT MEASURED" in capsys.readouterr().out


def test_a_figure_of_another_unit_is_another_one() -> None:
    [(line, kept)] = judged([Mark("x.py", "x.idle", 80, "MB")], {"x.idle s": 1.0})
    assert not kept
    assert "NOT MEASURED" in line
