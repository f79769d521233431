"""What concerns a whole run: which tests stay together, and what the contract found of brokers.

`TEST_HYPOTHESIS` says how hard Hypothesis tries: nothing is a few seconds per test, `ci` the same examples
in every run, `long` minutes to hours of looking. `TEST_STAGE` is for `tests/run.sh`: `alone` runs nothing but
the tests that need the machine for themselves, `together` all others. `TEST_FAILURES` names a file for what
failed, in short.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.isolation import process_kept

# No test asserts a time, and Hypothesis would: 200 ms for each example, a second for making the first ones.
_TIMELESS: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", derandomize=True, database=None, **_TIMELESS)
settings.register_profile("long", max_examples=3_000, **_TIMELESS)
settings.register_profile("some", **_TIMELESS)
settings.load_profile(os.environ.get("TEST_HYPOTHESIS") or "some")

_ALONE = "tests/spark/"
"""A JVM beside other tests is slow, and Spark gives its processes ten seconds to start."""
_TOLD_OF_A_FAILURE = 1_200
"""Characters of a failure's text that are told once more at the end of a run."""
_TOLD_FAILURES = 6


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Findings())


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    """Every test meets the process as the first one did."""
    with process_kept():
        yield


# -- which tests run, and which stay together -----------------------------------------------------


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the stage that is asked for."""
    stage = os.environ.get("TEST_STAGE")
    if stage is None:
        return
    mine, others = [], []
    for item in items:
        (mine if item.nodeid.startswith(_ALONE) == (stage == "alone") else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = mine


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `tests/scheduling.py` puts tests together."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.scheduling import Scheduling  # xdist is there

    return Scheduling(config, log)


# -- what differs between brokers ---------------------------------------------------------------


class Findings:
    """What the contract's tests told about brokers: outcomes, traits, and tests replaced by others."""

    def __init__(self) -> None:
        self.passed: dict[str, set[str]] = defaultdict(set)
        """Names of the tests that passed, by site."""
        self.seen: set[str] = set()
        self.traits: dict[str, dict[str, str]] = {}
        self.replaced: dict[str, dict[str, dict[str, set[str]]]] = defaultdict(lambda: defaultdict(dict))
        """By site and reason: tests that do not hold there, each with those that are there instead."""
        self.failed: list[tuple[str, str]] = []
        """Tests that failed, each with what it printed last of the failure."""
        self.skipped: Counter[str] = Counter()
        """Why tests were skipped that no other test replaces."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = dict(report.user_properties)
        if report.failed:
            self.failed.append(
                (f"{report.nodeid} ({report.when})", report.longreprtext[-_TOLD_OF_A_FAILURE:])
            )
        elif report.skipped and "difference" not in told:
            self.skipped[_reason(report)] += 1
        self.traits.update(told.get("traits", {}))
        site = told.get("site")
        if site is None:
            return
        name = report.nodeid.rpartition("::")[2].partition("[")[0]
        self.seen.add(name)
        if report.when == "call" and report.passed:
            self.passed[site].add(name)
        if "difference" in told:
            why, instead = told["difference"]
            self.replaced[site][why].setdefault(name, set()).update(instead)

    def problems(self) -> list[str]:
        """Tests that were to replace others where they did not run, though they ran elsewhere."""
        return sorted(
            f"{site}: {name} is replaced by {other}, which did not pass there"
            for site, reasons in self.replaced.items()
            for tests in reasons.values()
            for name, instead in tests.items()
            for other in instead
            if other in self.seen and other not in self.passed[site]
        )

    def declared(self) -> list[str]:
        """The traits in which brokers differ, each with the sites that have a value."""
        sites = sorted(self.traits)
        lines = []
        for trait in self.traits[sites[0]] if len(sites) > 1 else ():
            values: dict[str, list[str]] = {}
            for site in sites:
                values.setdefault(self.traits[site].get(trait, ""), []).append(site)
            if len(values) > 1:
                told = [f"{', '.join(those)} {value}" for value, those in values.items()]
                lines.append(f"{trait}: {'; '.join(told)}")
        return lines

    def replacing(self) -> list[str]:
        """Which tests hold instead of others, and why."""
        return [
            f"{site}: {why}: {_listed(tests)}"
            for site, reasons in sorted(self.replaced.items())
            for why, tests in sorted(reasons.items())
        ]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.problems() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        verbose = terminalreporter.verbosity > 0
        lines = [*self.declared(), *(self.replacing() if verbose else ())]
        if lines:
            terminalreporter.section("differences between brokers")
        for line in lines:
            terminalreporter.line(line)
        for why, count in sorted(self.skipped.items()):
            terminalreporter.line(f"skipped {count}: {why}")
        replaced = sum(len(tests) for reasons in self.replaced.values() for tests in reasons.values())
        if replaced and not verbose:
            terminalreporter.line(
                f"{replaced} tests do not hold for every broker, others hold instead: -v lists them"
            )
        # Last, and short: of a long output often only the end is kept.
        short = [line for failure in self.failed[:_TOLD_FAILURES] for line in failure]
        problems = [f"FAILED {problem}" for problem in self.problems()]
        if short:
            terminalreporter.section("failures in short")
        for line in short + problems:
            terminalreporter.line(line, red=line in problems or line in short[::2])
        if (kept := os.environ.get("TEST_FAILURES")) and short + problems:
            Path(kept).write_text("\n".join([*short, *problems, ""]))


def _reason(report: pytest.TestReport) -> str:
    """Why a test was skipped, without the place."""
    why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return why.removeprefix("Skipped: ")


def _listed(tests: dict[str, set[str]]) -> str:
    instead = sorted(set().union(*tests.values()))
    return f"{len(tests)} replaced by {', '.join(instead)}"
