"""What concerns a whole run: which tests stay together, and what the contract found of brokers."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

LIVE_SITE = "remote"
_CONTRACT = "tests/contract/"
_CLUSTER = "tests/cluster/"
_LIVE_SCENARIOS = "tests/scenarios/test_live_"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Findings())


# -- which tests stay together ------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of a file stay together, and so do those before a real RocketMQ that run side by side."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(_LIVE_SCENARIOS):
                return _LIVE_SCENARIOS
            if nodeid.startswith(_CLUSTER):
                return _CLUSTER
            live = nodeid.startswith(_CONTRACT) and LIVE_SITE in parameters(nodeid)
            return f"{_CONTRACT}[{LIVE_SITE}]" if live else super()._split_scope(nodeid)

    return Scheduling(config, log)


def parameters(nodeid: str) -> list[str]:
    """The parts of what stands in brackets behind a test's name."""
    _, bracket, inside = nodeid.rpartition("[") if nodeid.endswith("]") else ("", "", "")
    return inside[:-1].split("-") if bracket else []


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

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = dict(report.user_properties)
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

    def lines(self) -> list[str]:
        """For the end of a run."""
        sites = sorted(self.traits)
        lines = []
        for trait in self.traits[sites[0]] if len(sites) > 1 else ():
            values = [self.traits[site].get(trait, "") for site in sites]
            if len(set(values)) > 1:
                lines.append(f"{trait}: {', '.join(f'{s} {v}' for s, v in zip(sites, values, strict=True))}")
        for site, reasons in sorted(self.replaced.items()):
            lines += [f"{site}: {why}: {_listed(tests)}" for why, tests in sorted(reasons.items())]
        return lines

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.problems() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.lines():
            terminalreporter.section("differences between brokers")
        for line in self.lines():
            terminalreporter.line(line)
        for problem in self.problems():
            terminalreporter.line(f"FAILED {problem}", red=True)


def _listed(tests: dict[str, set[str]]) -> str:
    instead = sorted(set().union(*tests.values()))
    return f"{len(tests)} replaced by {', '.join(instead)}"
