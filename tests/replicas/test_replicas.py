"""Runs before several replicas, with a seed: a short one, and those of `--long replicas` before RocketMQ."""

from __future__ import annotations

import os
import re

import pytest

from popgate.testing.rocketmq import Missing
from tests.replicas.run import HAPPENED, TOPICS, Report, run
from tests.replicas.town import BROKERS, EMBEDDED, ROCKETMQ
from tests.rolls.excuses import GOAWAY_MET
from tests.support.folders import short_folder
from tests.support.needed import missing

KILLS = {EMBEDDED: 5, ROCKETMQ: 20}
LONGEST_S = 1_800
"""On a machine with other things to do; a minute on a quiet one."""
pytestmark = [pytest.mark.slow, pytest.mark.counted, pytest.mark.timeout(LONGEST_S)]


async def report_of(kind: str, seed: int, *, kills: int = 0, rolling: bool = False) -> Report:
    if kind == ROCKETMQ and os.environ.get("TEST_CLUSTER") != "true":
        pytest.skip("minutes before a real RocketMQ: sh tests/run.sh --long runs it")
    with short_folder() as folder:
        try:
            return await run(kind, folder, seed, kills=kills, longest=1.5, rolling=rolling)
        except Missing as why:
            missing(why)
            raise


@pytest.mark.parametrize("kind", BROKERS)
async def test_scenario_08_replicas_that_are_killed_and_drained_cost_no_message_and_no_order(
    kind: str,
) -> None:
    report = await report_of(kind, seed=5, kills=KILLS[kind])
    told = "\n".join(report.lines())
    print(told)
    assert report.complaints == [], told
    # It was no test if nothing had happened.
    assert set(report.town.ends) == {"killed", "drained"}, told
    assert {send.topic for send in report.ledger.sends.values()} == {report.town.named(one) for one in TOPICS}
    for fact in HAPPENED:
        assert report.ledger.counts[fact], told


@pytest.mark.parametrize("kind", BROKERS)
async def test_scenario_07_users_of_official_clients_see_nothing_of_a_rolling_restart(kind: str) -> None:
    """Three gateways, each drained and followed by its successor, one after the other."""
    report = await report_of(kind, seed=7, rolling=True)
    told = "\n".join(report.lines())
    print(told)
    assert report.complaints == [], told
    # One is the Python client's own, and no two are: it makes no call anew that met the GOAWAY.
    assert [one for one in report.failures if GOAWAY_MET not in one] == [], told
    assert len(report.failures) <= 1, told
    assert report.ledger.unsure == set(), told
    assert report.town.ends == ["drained"] * 3
    assert report.ledger.counts["told to move"], told
    for summary in report.town.summaries:
        figures = {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", summary)}
        assert figures["requests_cut_off"] == 0, told
        assert figures["connections"], told
