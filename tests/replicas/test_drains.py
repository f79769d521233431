"""The short form of drains behind a balancer; `sh tests/run.sh --long drains` has thirty, twice."""

from __future__ import annotations

import pytest

from tests.replicas.drains import Report, run
from tests.rolls.excuses import Drain
from tests.support.folders import short_folder

LONGEST_S = 900
"""On a machine with other things to do; half a minute on a quiet one."""


@pytest.mark.parametrize(
    ("moments", "met", "failures"),
    [
        ([], 0, []),
        ([12.0], 1, []),
        ([12.0, 12.1], 1, []),
        ([9.9], 0, ["while nothing drained: send: CANCELLED"]),
        ([25.1], 0, ["while nothing drained: send: CANCELLED"]),
        ([12.0, 112.0], 2, ["calls failed at 2 of 7 drains"]),
    ],
)
def test_calls_that_met_a_goaway_are_excused_while_a_replica_drains_and_seldom(
    moments: list[float], met: int, failures: list[str]
) -> None:
    report = Report(crossed=[(at, "send: CANCELLED") for at in moments])
    report.drains = [Drain(10.0 + 100 * number, 25.0 + 100 * number) for number in range(7)]
    report.judge_crossed()
    assert report.failures == failures
    assert f"met the GOAWAY of {met} of 7 drains: {len(moments)} calls" in report.lines()


@pytest.mark.slow
@pytest.mark.counted
@pytest.mark.timeout(LONGEST_S)
async def test_clients_without_any_retry_see_nothing_of_a_replica_that_is_drained() -> None:
    with short_folder() as folder:
        # Many times what the balancer needs to learn it, also where the machine stands still for a while.
        settings = ("stopping.drain_s=16", "stopping.lame_duck_s=8")
        options = tuple(part for one in settings for part in ("--set", one))
        report = await run(folder, 1, learns_s=0.2, options=options)
    told = "\n".join(report.lines())
    print(told)
    assert report.failures == [], told
    assert report.errors == [], told
    # It was no test if nothing had happened.
    assert len(report.summaries) == 1, told
    for fact in ("send", "receive", "ack", "official push acked", "official simple acked"):
        assert report.counts[fact], told
