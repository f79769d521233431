"""Every figure that is published has a command that can be run again, and each long run its row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.tiers import SERIES

ROOT = Path(__file__).resolve().parents[3]
QUALIFICATION = "docs/qualification.md"
PERFORMANCE = "docs/performance.md"
COMMAND = re.compile(r"`([^`]*(?:--long \S|python |make |sh tests/)[^`]*)`")
RUN = re.compile(r"20\d\d-\d\d-\d\d.*(?:\b[0-9a-f]{7,12}\b|the commit of this row)")
"""A date, and a commit."""
SERIES_NAME = re.compile(r"--long ([a-z0-9-]+)")
PROGRAM = re.compile(r"\b(?:benchmarks|tests)/[\w/-]+\.py\b|\btests/[\w-]+(?=[ `]|\Z)")
MODULE = re.compile(r"python -m ((?:proxy|popgate|tests)[\w.]*)")
TARGET = re.compile(r"\bmake ([a-z-]+)")


def rows() -> list[list[str]]:
    """The cells of each row of the table."""
    lines = (ROOT / QUALIFICATION).read_text().splitlines()
    table = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return table[2:]


def commands(text: str) -> list[str]:
    # A command may go over the end of a line.
    return [" ".join(found.split()) for found in COMMAND.findall(text)]


def is_there(command: str) -> bool:
    """Whether all that a command names exists: series, files, modules, targets."""
    targets = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text())
    modules = [ROOT / name.replace(".", "/") for name in MODULE.findall(command)]
    return (
        all(name in SERIES for name in SERIES_NAME.findall(command))
        and all((ROOT / path).exists() for path in PROGRAM.findall(command))
        and all(path.is_dir() or path.with_suffix(".py").exists() for path in modules)
        and all(name in targets for name in TARGET.findall(command))
    )


def test_scenario_40_each_recorded_run_has_command_date_commit_and_figures() -> None:
    """And says what it shows, in a sentence that somebody understands who did not run it."""
    assert len(rows()) > 20
    for row in rows():
        assert len(row) == 4, row[0]
        command, shows, run, counted = row
        assert commands(command), command
        assert len(shows.split()) > 5, command
        assert RUN.search(run), command
        assert re.search(r"\d", counted), command


@pytest.mark.parametrize("page", [QUALIFICATION, PERFORMANCE])
def test_scenario_40_the_commands_of_published_figures_exist(page: str) -> None:
    found = commands((ROOT / page).read_text())
    assert len(found) > 20
    assert [command for command in found if not is_there(command)] == []


def test_each_long_series_is_on_the_page() -> None:
    """With a run of it or of a part of it, or among those that have none."""
    assert set(SERIES_NAME.findall((ROOT / QUALIFICATION).read_text())) == SERIES.keys()


def test_a_command_that_names_what_is_gone_is_found() -> None:
    assert is_there("python benchmarks/soak.py --minutes 30")
    assert not is_there("python benchmarks/gone.py")
    assert not is_there("sh tests/run.sh --long gone")
    assert not is_there("make gone")
    assert not is_there("python -m proxy.gone")
