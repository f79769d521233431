from __future__ import annotations

import pytest

from popgate.groups.delay_levels import LEVELS_MS, delay_ms_of
from popgate.model import CustomizedRetry


@pytest.mark.parametrize(
    ("level", "seconds"), [(-1, 0), (0, 0), (1, 1), (3, 10), (5, 60), (14, 600), (18, 7200), (99, 7200)]
)
def test_levels_are_those_of_rocketmq(level: int, seconds: int) -> None:
    assert delay_ms_of(level) == seconds * 1000


def test_the_default_rests_of_a_group_are_the_same_ladder() -> None:
    assert CustomizedRetry().delays_ms == LEVELS_MS
