"""Duration histograms: two list steps per observation."""

from __future__ import annotations

from bisect import bisect_left

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds in seconds; a long poll ends in the last ones."""

COARSE = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5)
"""The same for figures per topic and group: each bucket is a series for every one of them."""


class Histogram:
    """How many took how long."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = BUCKETS) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def __repr__(self) -> str:
        return f"<Histogram of {self.count} in {self.total:.3f} s>"

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.total += seconds

    def cumulated(self) -> list[tuple[str, float]]:
        """Pairs of an upper bound and a cumulative count, as in Prometheus."""
        running = 0
        pairs = []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self.counts, strict=True):
            running += count
            pairs.append((bound, float(running)))
        return pairs
