"""What concerns a whole run: which tests stay together, and what the contract found of brokers.

`TEST_HYPOTHESIS` says how hard Hypothesis tries: nothing is a few seconds per test, `ci` the same examples
in every run, `long` minutes to hours of looking. `tests/support/run.py` sets `TEST_TIER`, the tier whose
tests run, and `TEST_TRAITS`, a file that hands the traits of brokers from one tier to the next.
"""

from __future__ import annotations

import gc
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.isolation import process_kept
from tests.support.counts import Counts
from tests.support.folders import short_folder
from tests.support.outcomes import PROBLEMS
from tests.support.tiers import tier_of
from tests.support.timeouts import Timeouts

# No test asserts a time, and Hypothesis would: 200 ms for each example, a second for making the first ones.
_TIMELESS: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", derandomize=True, database=None, **_TIMELESS)
settings.register_profile("long", max_examples=3_000, **_TIMELESS)
settings.register_profile("some", **_TIMELESS)
settings.load_profile(os.environ.get("TEST_HYPOTHESIS") or "some")

_TOLD_OF_A_FAILURE = 1_200
"""Characters of a failure's text that are told once more at the end of a run."""
_TOLD_FAILURES = 6


def pytest_configure(config: pytest.Config) -> None:
    config.stash.setdefault(PROBLEMS, [])
    config.pluginmanager.register(Findings(os.environ.get("TEST_TRAITS", "")))
    config.pluginmanager.register(Timeouts())
    config.pluginmanager.register(Counts())


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    """Every test meets the process as the first one did."""
    with process_kept():
        yield


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder whose path is short enough for unix sockets."""
    with short_folder() as folder:
        yield folder


# -- which tests run, and which stay together -----------------------------------------------------


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests of the tier that is asked for."""
    tier = os.environ.get("TEST_TIER")
    if tier is None:
        return
    selected, others = [], []
    for item in items:
        (selected if tier_of(item.nodeid) == tier else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = selected


def pytest_collection_finish() -> None:
    """What is loaded by now stays to the end of the run, and is not looked at for cycles again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep together in one worker what `tests/support/tiers.py` says."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.support.scheduling import Scheduling  # imports xdist, which is there

    return Scheduling(config, log)


# -- what differs between brokers ---------------------------------------------------------------


class Findings:
    """What the contract's tests told about brokers: outcomes, traits, and tests replaced by others."""

    def __init__(self, traits_file: str = "") -> None:
        """`traits_file` has the traits that earlier tiers met, and gets those of this one."""
        self._traits_file = Path(traits_file) if traits_file else None
        self.passed: dict[str, set[str]] = defaultdict(set)
        """Names of the tests that passed, by site."""
        self.failed_names: dict[str, set[str]] = defaultdict(set)
        self.seen: set[str] = set()
        self.traits: dict[str, dict[str, str]] = {}
        if self._traits_file and self._traits_file.exists():
            self.traits.update(json.loads(self._traits_file.read_text()))
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
        if report.failed:
            self.failed_names[site].add(name)
        if report.when == "call" and report.passed:
            self.passed[site].add(name)
        if "difference" in told:
            why, instead = told["difference"]
            self.replaced[site][why].setdefault(name, set()).update(instead)

    def problems(self) -> list[str]:
        """Tests that were to replace others where they did not run, though they ran elsewhere.

        One that failed is no problem of its own: the run has failed with it, unless a second look passes.
        """
        return sorted(
            f"{site}: {name} is replaced by {other}, which did not pass there"
            for site, reasons in self.replaced.items()
            for tests in reasons.values()
            for name, instead in tests.items()
            for other in instead
            if other in self.seen and other not in self.passed[site] | self.failed_names[site]
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
        if self._traits_file and not hasattr(session.config, "workerinput"):
            self._traits_file.write_text(json.dumps(self.traits))
        if problems := self.problems():
            session.config.stash[PROBLEMS].extend(problems)
            if session.exitstatus == pytest.ExitCode.OK:
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


def _reason(report: pytest.TestReport) -> str:
    """Why a test was skipped, without the place."""
    why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return why.removeprefix("Skipped: ")


def _listed(tests: dict[str, set[str]]) -> str:
    instead = sorted(set().union(*tests.values()))
    return f"{len(tests)} replaced by {', '.join(instead)}"
