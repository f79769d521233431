"""The definition of a metric, as `names` lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
Over = Literal["sum", "max", "min"]


@dataclass(slots=True, frozen=True)
class Spec:
    """One metric. A counter's name ends in `_total`.

    `over`: how the values of several processes are combined if a sum would be wrong: the largest or the
    least.
    """

    name: str
    kind: Kind
    about: str
    labels: tuple[str, ...] = ()
    over: Over = "sum"
