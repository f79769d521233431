"""What was counted since the broker started: memory that is made anew after a failed write keeps it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Of all groups: deliveries after the first, dead letters. And sends that were answered as repeats."""

    redelivered: int = 0
    dead_lettered: int = 0
    repeated: int = 0
