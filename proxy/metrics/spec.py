"""The definition of a metric, as `names` lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
Over = Literal["sum", "max", "min"]


@dataclass(slots=True, frozen=True)
class Spec:
    """One metric. A counter's name ends in `_total`.

    `over`: what is told for several processes of one gateway; where each tells the same, or a sum would be
    nonsense, the largest or the least.
    """

    name: str
    kind: Kind
    about: str
    labels: tuple[str, ...] = ()
    over: Over = "sum"
