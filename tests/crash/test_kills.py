"""The crash run of `sh tests/run.sh --long crash`; `run.py` does others, with other seeds and sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.run import FACTS, TOPICS, run

KILLS = 20


@pytest.mark.slow
@pytest.mark.counted
async def test_nothing_is_lost_and_nothing_comes_twice_over_kills(tmp_path: Path) -> None:
    report = await run(tmp_path, seed=7, kills=KILLS, seconds=120.0, official=True)
    print(*report.lines(), sep="\n")
    assert report.complaints == []
    # It was no test if nothing had happened.
    assert len(report.ends) >= KILLS
    records = report.records
    assert {send.topic for send in records.sends.values()} == {*TOPICS, "official"}
    for fact in FACTS:
        assert records.counts[fact], fact
