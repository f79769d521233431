"""tests.rolls.excuses: a fault that shows at every drain is not excused."""

from __future__ import annotations

import pytest

from tests.rolls.excuses import is_excused, too_many


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
