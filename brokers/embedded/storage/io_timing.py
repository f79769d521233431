"""Total time of the store's writes and syncs, from which metrics derive rates."""

from __future__ import annotations


class IoTiming:
    """Of one kind of work: how often, and how long together and at most. Seconds."""

    __slots__ = ("count", "longest", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.longest = 0.0

    def __repr__(self) -> str:
        return f"<IoTiming {self.count} in {self.total:.3f} s>"

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        if seconds > self.longest:
            self.longest = seconds
