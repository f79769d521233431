"""tests.support.versions: what an older RocketMQ lacks is skipped by a sentence that says so."""

from __future__ import annotations

import pytest

from tests.support.versions import described, is_before, lacks, needs


@pytest.mark.parametrize(
    ("version", "other", "older"),
    [
        ("5.3.3", "5.4.0", True),
        ("5.5.0", "5.5.0", False),
        ("5.10.0", "5.9.1", False),
        ("4.9.8", "5.0.0", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, other: str, older: bool) -> None:
    assert is_before(version, other) is older


def test_a_test_skips_what_the_broker_under_test_is_too_old_for() -> None:
    assert lacks("5.4.0", "lite topics")
    needs("5.4.0", "priority topics")
    with pytest.raises(pytest.skip.Exception, match=r"^RocketMQ 5\.3\.3 has no priority topics$"):
        needs("5.3.3", "priority topics")


def test_a_version_is_described_as_rocketmq_does() -> None:
    assert described("5.3.3") == "V5_3_3"
