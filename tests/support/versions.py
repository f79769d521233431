"""What holds of some versions of RocketMQ only: tests ask here, with the version of their broker."""

from __future__ import annotations

from typing import Final

import pytest

SINCE: Final = {"priority topics": "5.4.0", "lite topics": "5.5.0"}
"""What older RocketMQs lack that tests need, with the first version that has it."""


def is_before(version: str, other: str) -> bool:
    """Whether a version is an older one; versions are numbers with dots between them."""
    return _numbers(version) < _numbers(other)


def lacks(version: str, what: str) -> bool:
    """Whether a RocketMQ is older than something of `SINCE`."""
    return is_before(version, SINCE[what])


def needs(version: str, what: str) -> None:
    """Skip a test that cannot hold: the broker under test is older than what it is about."""
    if lacks(version, what):
        pytest.skip(f"RocketMQ {version} has no {what}")


def described(version: str) -> str:
    """As RocketMQ writes a version itself: V5_5_0."""
    return "V" + version.replace(".", "_")


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]
