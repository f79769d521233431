"""The chart's promises without Kubernetes, in short; `sh tests/run.sh --long rolls` has all clients."""

from __future__ import annotations

import asyncio

import pytest

from popgate.testing.made import Missing
from tests.rolls.run import CLASSIC, PYTHON, Report, run
from tests.support.folders import short_folder
from tests.support.needed import missing

LONGEST_S = 1_800
"""The first one compiles Helm; a minute where that is there and the machine is quiet."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.conformance,
    pytest.mark.counted,
    pytest.mark.timeout(LONGEST_S),
]

STOPPING = {"lameDuckSeconds": 5, "drainSeconds": 60}
"""An official client of each protocol is gone from a pod within seconds; a machine that stands still for a
while does not cut off its calls."""


@pytest.fixture(scope="module")
def report() -> Report:
    """What came of one run: 1 → 3 pods, all of them rolled, one evicted, one killed, 3 → 1."""
    with short_folder() as folder:
        try:
            made = asyncio.run(run(folder, clients=(PYTHON, CLASSIC[-1]), stopping=STOPPING))
        except Missing as what:
            missing(what)
    print(*made.lines(), sep="\n")
    return made


def test_scenario_07_a_roll_out_of_the_chart_is_felt_by_nobody(report: Report) -> None:
    """No error but for the kill, nothing lost, nothing twice without a cause, no pod out of its grace."""
    assert report.wrong == [], "\n".join(report.lines())


def test_clients_work_all_the_time(report: Report) -> None:
    """It would be no test if they did not."""
    for client, sent, received, acknowledged, *_ in (*report.drained, *report.killed):
        assert min(int(sent), int(received), int(acknowledged)) > 20, client


def test_the_pod_that_is_killed_is_in_use(report: Report) -> None:
    assert min(report.connections) > 0


def test_the_budget_lets_one_pod_go_at_a_time(report: Report) -> None:
    assert report.refused == ["2 pods are ready, and 2 have to be"]
