"""The master of a RocketMQ dies while the gateways before it are killed and drained."""

from __future__ import annotations

import os

import pytest

from popgate.testing.rocketmq import Missing
from tests.replicas.run import HAPPENED, run
from tests.replicas.town import ROCKETMQ
from tests.support.folders import short_folder
from tests.support.needed import missing

pytestmark = [pytest.mark.slow, pytest.mark.counted, pytest.mark.timeout(1_800)]

MASTERS = 2


async def test_scenario_11_a_master_dies_while_gateways_are_killed_and_drained() -> None:
    if os.environ.get("TEST_CLUSTER") != "true":
        pytest.skip("starts whole clusters of brokers: sh tests/run.sh --long runs it")
    with short_folder() as folder:
        try:
            report = await run(ROCKETMQ, folder, seed=11, kills=8, longest=3.0, masters=MASTERS)
        except Missing as why:
            missing(why)
            raise
    told = "\n".join(report.lines())
    print(told)
    assert report.complaints == [], told
    assert len(report.ledger.faults) == MASTERS
    assert set(report.town.ends) == {"killed", "drained"}, told
    for fact in HAPPENED:
        assert report.ledger.counts[fact], told
