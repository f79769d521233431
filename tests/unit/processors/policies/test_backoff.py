from __future__ import annotations

import pytest

from processors.policies.backoff import Exponential


def test_pauses_grow_to_the_longest() -> None:
    backoff = Exponential(initial=0.1, longest=1.0, multiplier=2.0)
    assert [backoff.delay(attempt, 0.0) for attempt in (0, 1, 2, 3, 4, 5)] == [0.1, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert backoff.delay(1 << 40, 0.0) == 1.0


@pytest.mark.parametrize("options", [{"initial": 0}, {"initial": 2, "longest": 1}, {"multiplier": 0.5}])
def test_a_backoff_that_cannot_be_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a backoff needs"):
        Exponential(**options)
