"""Merges the scrapes of several processes: counters are added, each gauge defines how it is combined.

It works on the text, so that the processes need not have the same version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from proxy.metrics.names import SPECS
from proxy.metrics.spec import Over

_PARTS = ("_bucket", "_sum", "_count")
_OF_PROCESSES: dict[str, Over] = {
    "process_start_time_seconds": "min",
    "process_max_fds": "min",
    "python_info": "max",
}
"""Metrics of the Prometheus client that are no sums; the others are."""
_WAYS: dict[Over, Callable[[float, float], float]] = {
    "sum": lambda total, value: total + value,
    "max": max,
    "min": min,
}


@dataclass(slots=True)
class _Family:
    head: list[str] = field(default_factory=list)
    kind: str = "untyped"
    values: dict[str, float] = field(default_factory=dict)


class Sum:
    """Of scrapes, in Prometheus' text format."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def add(self, text: str) -> None:
        """A line that is no sample is passed over."""
        for line in text.splitlines():
            if line.startswith("#"):
                self._take_head(line)
                continue
            series, _, number = line.rpartition(" ")
            try:
                value = float(number)
            except ValueError:
                continue
            if not series:
                continue
            name, family = self._family_of(series.partition("{")[0])
            before = family.values.get(series)
            way = _WAYS[_over(name, family.kind)]
            family.values[series] = value if before is None else way(before, value)

    def text(self) -> str:
        return _told(self._families.values())

    def lasting(self) -> str:
        """Only what has to last when its process ends: a counter never goes back."""
        return _told(family for name, family in self._families.items() if _lasts(name, family.kind))

    def _take_head(self, line: str) -> None:
        words = line.split(" ", 3)
        if len(words) < 4 or words[1] not in ("HELP", "TYPE"):
            return
        family = self._families.setdefault(words[2], _Family())
        if line not in family.head and len(family.head) < 2:
            family.head.append(line)
        if words[1] == "TYPE":
            family.kind = words[3]

    def _family_of(self, sample: str) -> tuple[str, _Family]:
        family = self._families.get(sample)
        if family is not None:
            return sample, family
        for part in _PARTS:
            name = sample.removesuffix(part)
            if name != sample and name in self._families:
                return name, self._families[name]
        return sample, self._families.setdefault(sample, _Family())


def lasting(text: str) -> str:
    """Of a scrape, what has to last when its process ends."""
    total = Sum()
    total.add(text)
    return total.lasting()


def _over(name: str, kind: str) -> Over:
    spec = SPECS.get(name)
    if spec is not None:
        return spec.over
    if name.startswith("popgate_") and kind == "gauge":
        return "max"  # of a broker with figures of its own
    return _OF_PROCESSES.get(name, "sum")


def _lasts(name: str, kind: str) -> bool:
    return kind in ("counter", "histogram") and _over(name, kind) == "sum"


def _told(families: Iterable[_Family]) -> str:
    lines: list[str] = []
    for family in families:
        if family.values:
            lines += family.head
            lines += [f"{series} {_number(value)}" for series, value in family.values.items()]
    return "".join(f"{line}\n" for line in lines)


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value) if value == value else "NaN"
