"""Which failures of a client's user are its own, that no gateway can keep from it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import datetime

AT_A_DRAIN_S = 2.0
"""Connections are told to go when a drain begins; a call that fails for that fails then."""


def drains_in(log: str) -> Iterator[float]:
    """When the drains began that a pod's log in JSON tells of, in seconds of the monotonic clock.

    A pod says that it stops, and drains a lame-duck time later. When SIGTERM was sent is no measure of that:
    where the machine stands still it is seen later.
    """
    ahead = time.monotonic() - time.time()
    for line in log.splitlines():
        if '"event": "stopping"' in line and line.endswith("}"):
            told = json.loads(line)
            yield datetime.fromisoformat(told["timestamp"]).timestamp() + told["lame_duck_s"] + ahead


def is_excused(at: float, drains: Sequence[float]) -> bool:
    """Whether a drain began at most `AT_A_DRAIN_S` before a failure."""
    return any(0 <= at - began <= AT_A_DRAIN_S for began in drains)


def too_many(failures: int, drains: int) -> bool:
    """Whether so many are no coincidence any more: a client that fails a call at every drain has a cause."""
    return failures * 4 > drains
