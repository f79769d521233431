"""tests.rolls.excuses: a fault that shows at every drain is not excused."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from tests.rolls.excuses import drains_in, is_excused, too_many


@pytest.mark.parametrize(
    ("at", "excused"), [(9.9, False), (10.0, True), (12.0, True), (12.1, False), (31.0, True)]
)
def test_only_failures_at_a_drain_are_excused(at: float, excused: bool) -> None:
    assert is_excused(at, [10.0, 30.0]) is excused


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
    (began,) = drains_in(log)
    assert is_excused(began, [time.monotonic() + 5.0 - 1.0])
    assert not is_excused(began, [time.monotonic()])
