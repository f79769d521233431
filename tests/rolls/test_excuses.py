"""tests.rolls.excuses: a fault that shows at every drain is not excused."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from tests.rolls.excuses import WHILE_IT_DRAINS_S, Drain, drain_at, drains_in, too_many

FIRST, SECOND = Drain(10.0, 25.0), Drain(30.0, 45.0)


@pytest.mark.parametrize(
    ("at", "drain"), [(9.9, None), (10.0, FIRST), (12.0, FIRST), (12.1, None), (31.0, SECOND)]
)
def test_only_failures_at_the_beginning_of_a_drain_are_excused(at: float, drain: Drain | None) -> None:
    assert drain_at(at, [FIRST, SECOND]) == drain


@pytest.mark.parametrize(("at", "drain"), [(9.9, None), (24.9, FIRST), (25.1, None), (45.0, SECOND)])
def test_who_cannot_be_told_may_fail_while_it_drains(at: float, drain: Drain | None) -> None:
    assert drain_at(at, [FIRST, SECOND], WHILE_IT_DRAINS_S) == drain


@pytest.mark.parametrize(
    ("failures", "drains", "wrong"), [(0, 0, False), (2, 8, False), (3, 8, True), (1, 3, True)]
)
def test_a_quarter_of_the_drains_may_have_one(failures: int, drains: int, wrong: bool) -> None:
    assert too_many(failures, drains) is wrong


def test_a_drain_begins_a_lame_duck_time_after_the_pod_says_that_it_stops() -> None:
    """A line that was cut off by the pod's end says nothing, nor do others."""
    at = datetime.fromtimestamp(time.time(), UTC).isoformat().replace("+00:00", "Z")
    stopping = f'{{"timestamp": "{at}", "event": "stopping", "drain_s": 60.0, "lame_duck_s": 5.0'
    log = f'ready\n{{"event": "stopped"}}\n{stopping}}}\n{stopping}'
    (drain,) = drains_in(log)
    assert drain.began == pytest.approx(time.monotonic() + 5.0, abs=1.0)
    assert drain.ends - drain.began == pytest.approx(55.0)
