"""A pytest plugin that writes down what failed, for `tests/support/run.py`.

`TEST_OUTCOMES` names the file: JSON with `failed`, the ids of tests that can be tried once more and what each
failed with, and `problems`, texts of what no second look can mend: others add to them through
`config.stash[PROBLEMS]`, and a process that ends in the middle of a test leaves its name there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

PROBLEMS = pytest.StashKey[list[str]]()
LONGEST_REASON = 300


def pytest_configure(config: pytest.Config) -> None:
    config.stash.setdefault(PROBLEMS, [])
    file = os.environ.get("TEST_OUTCOMES")
    if file and not hasattr(config, "workerinput"):  # in the controller of workers only
        config.pluginmanager.register(_Outcomes(config, Path(file)), "outcomes-of-a-run")


class _Outcomes:
    def __init__(self, config: pytest.Config, file: Path) -> None:
        self._config = config
        self._file = file
        self._failed: dict[str, str] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        # What is true if the process ends now: no second look says what became of the tests after this one.
        self._write(f"pytest ended in the middle of {nodeid}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.setdefault(report.nodeid, reason_of(report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._config.stash[PROBLEMS].append(f"{report.nodeid or 'tests'} could not be collected")

    def pytest_unconfigure(self) -> None:
        # After every hook of the session's end: those may still find problems.
        self._write()

    def _write(self, *others: str) -> None:
        problems = [*self._config.stash[PROBLEMS], *others]
        self._file.write_text(json.dumps({"failed": self._failed, "problems": problems}))


def reason_of(report: pytest.TestReport) -> str:
    """What a test failed with, on one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    return " ".join(text.split())[:LONGEST_REASON]
