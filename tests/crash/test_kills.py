"""The short form of a crash run: a few kills in every run of the tests; `run.py` is the long form."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.run import FACTS, TOPICS, run


@pytest.mark.slow
@pytest.mark.counted
async def test_nothing_is_lost_and_nothing_comes_twice_over_kills(tmp_path: Path) -> None:
    report = await run(tmp_path, seed=4, kills=4, seconds=4.0)
    print(*report.lines(), sep="\n")
    assert report.complaints == []
    # It was no test if nothing had happened.
    assert len(report.ends) >= 4
    records = report.records
    assert {send.topic for send in records.sends.values()} == set(TOPICS)
    for fact in FACTS:
        assert records.counts[fact], fact
