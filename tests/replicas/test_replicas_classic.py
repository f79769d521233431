"""Short runs with classic clients before several replicas, with a seed; `run_classic.py` the long ones."""

from __future__ import annotations

import os

import pytest

from popgate.testing.made import Missing
from tests.replicas.run_classic import run
from tests.replicas.town import EMBEDDED
from tests.support.folders import short_folder
from tests.support.needed import missing

LONGEST_S = 1_800
pytestmark = [pytest.mark.slow, pytest.mark.counted, pytest.mark.timeout(LONGEST_S)]


@pytest.mark.parametrize("mapped", [False, True], ids=["pulled", "mapped"])
async def test_classic_consumers_lose_nothing_and_no_order_when_replicas_end(
    mapped: bool,
) -> None:
    if os.environ.get("TEST_CLASSIC_ALL") != "true":
        pytest.skip("minutes: sh tests/run.sh --long classic runs it")
    with short_folder() as folder:
        try:
            report = await run(EMBEDDED, folder, seed=3, kills=3, longest=1.5, mapped=mapped)
        except Missing as why:
            missing(why)
            raise
    told = "\n".join(report.lines())
    print(told)
    assert report.complaints == [], told
    # It was no test if nothing had happened.
    counts = report.ledger.counts
    assert "killed" in report.town.ends, told
    for fact in ("concurrent done", "concurrent failed", "orderly done", "orderly confirmed"):
        assert counts[fact], told
    assert bool(counts["concurrent mapped"]) is mapped, told
    assert not counts["orderly mapped"], told
