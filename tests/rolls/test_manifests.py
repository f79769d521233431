"""tests.rolls.manifests: numbers of pods as Kubernetes counts them."""

from __future__ import annotations

import pytest

from tests.rolls.manifests import count_of


@pytest.mark.parametrize(
    ("value", "replicas", "most", "least"),
    [(1, 3, 1, 1), ("25%", 3, 1, 0), ("50%", 4, 2, 2), ("0%", 5, 0, 0)],
)
def test_a_share_is_rounded_so_that_a_roll_out_can_go_on(
    value: int | str, replicas: int, most: int, least: int
) -> None:
    """Up for pods that there may be more, down for those that may be missing."""
    assert count_of(value, replicas, up=True) == most
    assert count_of(value, replicas, up=False) == least
