"""What tests that count something printed, at the end of a run, also of those that pass.

pytest shows what a test prints only when it fails. What a test with the marker `counted` prints are its
counts: how often its judges excused something, and how near to its limits it came. Without them nobody sees
that a test has come to excuse more from week to week.
"""

from __future__ import annotations

from typing import Any

import pytest

COUNTED = "counted"


class Counts:
    """A plugin of pytest: collects the output of tests that pass, and prints it at the end."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        """Names of tests, each with what it and its fixtures printed."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        passed = report.when == "call" and report.passed and COUNTED in report.keywords
        if passed and (text := report.capstdout.strip("\n")):
            self.told.append((report.nodeid, text))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.told:
            terminalreporter.section("counts of what passed")
        for nodeid, text in self.told:
            terminalreporter.line(nodeid)
            for line in text.splitlines():
                terminalreporter.line(f"  {line}")
