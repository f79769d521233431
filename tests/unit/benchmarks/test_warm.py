"""Both gateways are warm before anything counts: a Java proxy's first messages cost several times as much."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.beside.amounts import QUICK, Amounts
from benchmarks.beside.driving import Load
from benchmarks.beside.results import Results
from benchmarks.beside.sides import JAVA, OURS, Side, Town
from benchmarks.beside.working import Working

SENT, RECEIVED = 400_000, 40_000
"""Single calls; Java's proxy needed as many until its cost stayed as it was (docs/performance.md)."""


class Recorded(Load):
    """Does all that it is asked for at once, and remembers it."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.warm: Counter[tuple[str, str, int]] = Counter()
        """Messages before the first run that counts: by gateway, work, and messages in a call."""
        self._counts = False

    def run(self, target: str, work: str, *, seconds: float = 0.0, **options: Any) -> dict[str, Any]:
        # Only what is measured has a time of its own.
        self._counts = self._counts or seconds > 0
        messages = options.get("messages", 1)
        if not self._counts:
            self.warm[target, work, options.get("per_call", 1)] += messages
        told = {"messages": messages, "seconds": 1.0, "rate": 1_000.0, "errors": 0, "said": None}
        return {**told, "empty": 0, "behind": 0, "own_cpu_s": 0.0}


class Standing(Town):
    """Gateways that are this process."""

    @contextlib.contextmanager
    def sides(self) -> Iterator[list[Side]]:
        yield [
            Side(name, self.tier, os.getpid(), name, 1.0, lambda: None, lambda _topics, _groups: None)
            for name in self.names
        ]


def test_the_long_form_warms_up_as_long_as_it_takes() -> None:
    assert Amounts().warm_batched >= SENT
    assert Amounts().warm_single >= SENT
    assert Amounts().warm_single_received >= RECEIVED


def test_the_short_form_stays_short() -> None:
    assert QUICK.warm_batched + QUICK.warm_single + QUICK.warm_single_received < 5_000


def test_both_have_done_every_kind_of_call_before_anything_counts() -> None:
    load, written = Recorded(), Results({}, {})
    Working(Standing("own", ()), load, replace(Amounts(), settled_s=0.0), written).run(["send_1"])
    for name in (JAVA, OURS):
        assert load.warm[name, "send", 1] >= SENT
        assert load.warm[name, "receive", 1] >= RECEIVED
        assert min(load.warm[name, work, 32] for work in ("send", "receive")) >= SENT
        assert len(written.of("own", "send_1.warm_up", name)) == 4
        assert len(written.of("own", "send_1", name)) == Amounts().rounds
