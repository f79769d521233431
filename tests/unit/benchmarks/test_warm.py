"""Both gateways are warm before anything counts: a Java proxy's first messages cost several times as much."""

from __future__ import annotations

import contextlib
import subprocess
import sys
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
        self.states: dict[str, int] = {}
        """Processes whose states are looked at, by the gateway that they stand for."""
        self.seen: set[tuple[str, tuple[tuple[str, bool], ...]]] = set()
        """In runs that count: whose it was, and of each gateway whether it was stopped."""

    def run(self, target: str, work: str, *, seconds: float = 0.0, **options: Any) -> dict[str, Any]:
        # Only what is measured has a time of its own.
        self._counts = self._counts or seconds > 0
        messages = options.get("messages", 1)
        if seconds > 0:
            stopped = tuple((name, is_stopped(pid)) for name, pid in sorted(self.states.items()))
            self.seen.add((target, stopped))
        if not self._counts:
            self.warm[target, work, options.get("per_call", 1)] += messages
        told = {"messages": messages, "seconds": 1.0, "rate": 1_000.0, "errors": 0, "said": None}
        return {**told, "empty": 0, "behind": 0, "own_cpu_s": 0.0}


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


class Standing(Town):
    """Gateways that are processes which wait."""

    pids: dict[str, int]

    @contextlib.contextmanager
    def sides(self) -> Iterator[list[Side]]:
        command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        with contextlib.ExitStack() as open_:
            self.pids = {
                name: open_.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE)).pid
                for name in self.names
            }
            yield [
                Side(name, self.tier, pid, name, 1.0, lambda: None, lambda _topics, _groups: None)
                for name, pid in self.pids.items()
            ]


class Watched(Standing):
    """Whose processes the load looks at."""

    def __init__(self, tier: str, options: tuple[str, ...], load: Recorded) -> None:
        super().__init__(tier, options)
        self._load = load
        self.at_the_end: dict[str, bool] = {}

    @contextlib.contextmanager
    def sides(self) -> Iterator[list[Side]]:
        with super().sides() as sides:
            self._load.states = self.pids
            yield sides
            self.at_the_end = {name: is_stopped(pid) for name, pid in self.pids.items()}


def test_the_long_form_warms_up_as_long_as_it_takes() -> None:
    assert Amounts().warm_batched >= SENT
    assert Amounts().warm_single >= SENT
    assert Amounts().warm_single_received >= RECEIVED


def test_the_short_form_stays_short() -> None:
    assert QUICK.warm_batched + QUICK.warm_single + QUICK.warm_single_received < 5_000


def test_both_have_done_every_kind_of_call_before_anything_counts() -> None:
    load, written = Recorded(), Results({}, {})
    amounts = replace(Amounts(), settled_s=0.0, awake_s=0.0)
    Working(Standing("own", ()), load, amounts, written).run(["send_1"])
    for name in (JAVA, OURS):
        assert load.warm[name, "send", 1] >= SENT
        assert load.warm[name, "receive", 1] >= RECEIVED
        assert min(load.warm[name, work, 32] for work in ("send", "receive")) >= SENT
        assert len(written.of("own", "send_1.warm_up", name)) == 4
        assert len(written.of("own", "send_1", name)) == Amounts().rounds


def test_while_one_is_measured_the_other_stands_still() -> None:
    load = Recorded()
    town = Watched("own", (), load)
    Working(town, load, QUICK, Results({}, {})).run(["send_1", "receive_1", "rate"])
    assert load.seen == {
        (JAVA, ((JAVA, False), (OURS, True))),
        (OURS, ((JAVA, True), (OURS, False))),
    }
    assert not any(town.at_the_end.values())
