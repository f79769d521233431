"""Which failures of a client's user are its own, that no gateway can keep from it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

AT_A_DRAIN_S = 2.0
"""Connections are told to go when a drain begins; a call that fails for that fails then."""
GOAWAY_MET = "GOAWAY received"
"""gRPC's core says so of a call that its connection takes no more. It makes such a call over the next, but
not for clients that set `grpc.enable_retries` to 0, as RocketMQ's Python client does. A gateway tells a
client to go while that waits for an answer: it can only meet a call of another thread."""
WHILE_IT_DRAINS_S = math.inf
"""Connections that cannot be told are ended at some moment of a drain."""


class Stamped(list[str]):
    """Failures, and when each was noticed: seconds of the monotonic clock."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[float] = []

    def append(self, why: str, at: float | None = None) -> None:
        super().append(why)
        self.moments.append(time.monotonic() if at is None else at)


class Drain(NamedTuple):
    """From when until when at the latest a pod drained, in seconds of the monotonic clock."""

    began: float
    ends: float


def drains_in(log: str) -> Iterator[Drain]:
    """The drains that a pod's log in JSON tells of.

    A pod says that it stops, and drains a lame-duck time later. When SIGTERM was sent is no measure of that:
    where the machine stands still it is seen later.
    """
    ahead = time.monotonic() - time.time()
    for line in log.splitlines():
        if '"event": "stopping"' in line and line.endswith("}"):
            told = json.loads(line)
            stops = datetime.fromisoformat(told["timestamp"]).timestamp() + ahead
            yield Drain(stops + told["lame_duck_s"], stops + told["drain_s"])


def drain_at(at: float, drains: Sequence[Drain], within_s: float = AT_A_DRAIN_S) -> Drain | None:
    """The last drain that went on when a call failed, and began at most `within_s` before."""
    return max(
        (one for one in drains if one.began <= at <= min(one.ends, one.began + within_s)), default=None
    )


def too_many(failed: int, drains: int) -> bool:
    """Whether calls that failed at so many drains are no coincidence any more, but have a cause in each."""
    return failed * 4 > drains
