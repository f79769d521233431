"""The short form of drains behind a balancer; `sh tests/run.sh --long drains` has thirty, twice."""

from __future__ import annotations

import pytest

from tests.replicas.drains import run
from tests.support.folders import short_folder

LONGEST_S = 900
"""On a machine with other things to do; half a minute on a quiet one."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(LONGEST_S)]


async def test_clients_without_any_retry_see_nothing_of_a_replica_that_is_drained() -> None:
    with short_folder() as folder:
        # Many times what the balancer needs to learn it, also where the machine stands still for a while.
        settings = ("stopping.drain_s=16", "stopping.lame_duck_s=8")
        options = tuple(part for one in settings for part in ("--set", one))
        report = await run(folder, 1, learns_s=0.2, options=options)
    told = "\n".join(report.lines())
    assert report.failures == [], told
    assert report.errors == [], told
    # It was no test if nothing had happened.
    assert len(report.summaries) == 1, told
    for fact in ("send", "receive", "ack", "official push acked", "official simple acked"):
        assert report.counts[fact], told
