"""Counters since the broker started; they survive when memory is rebuilt after a failed write."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Of all groups: deliveries after the first, dead letters. And sends that were answered as repeats."""

    redelivered: int = 0
    dead_lettered: int = 0
    repeated: int = 0
