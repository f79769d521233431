"""Which failures of a client's user are its own, that no gateway can keep from it."""

from __future__ import annotations

from collections.abc import Sequence

AT_A_DRAIN_S = 2.0
"""Connections are told to go when a drain begins; a call that fails for that fails then."""


def is_excused(at: float, drains: Sequence[float]) -> bool:
    """Whether a drain began at most `AT_A_DRAIN_S` before a failure."""
    return any(0 <= at - began <= AT_A_DRAIN_S for began in drains)


def too_many(failures: int, drains: int) -> bool:
    """Whether so many are no coincidence any more: a client that fails a call at every drain has a cause."""
    return failures * 4 > drains
