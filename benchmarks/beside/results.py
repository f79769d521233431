"""What was measured, as it is kept: one entry for each run, and the machine."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from popgate.testing.made import Missing


@dataclass(frozen=True)
class Run:
    """One thing done by one gateway. Runs of one round are compared with each other."""

    tier: str
    part: str
    side: str
    round: int
    figures: dict[str, float]
    errors: int = 0
    said: list[str] = field(default_factory=list)
    """What the first errors were."""
    kept_up: bool = True
    """Whether it came close to the rate that was wanted."""


@dataclass
class Results:
    machine: dict[str, str | int | float]
    settings: dict[str, Any]
    runs: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was left out, and why."""
    broken: list[str] = field(default_factory=list)
    """What was begun and could not be measured, and why."""
    file: Path | None = field(default=None, compare=False)
    """Where all of it is written whenever a part is over, well or not."""

    @contextlib.contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """What goes wrong in the block is told, and nothing else is lost by it. Raises Missing."""
        try:
            yield
        except Missing:
            raise
        except (Exception, SystemExit) as error:
            # What a server printed at its end is many lines.
            first = str(error).partition("\n")[0][:300]
            sentence = f"{what}: {type(error).__name__}: {first}"
            self.broken.append(sentence)
            print(f"BROKEN {sentence}", flush=True)
        finally:
            self.write()

    def add(self, run: Run) -> None:
        self.runs.append(run)
        shown = "  ".join(f"{name} {value:,.5g}" for name, value in run.figures.items())
        mark = f"  {run.errors} ERRORS: {'; '.join(run.said)}" if run.errors else ""
        print(f"{run.tier:8} {run.part:16} {run.side:9} {run.round + 1}  {shown}{mark}", flush=True)

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)
        print(sentence, flush=True)

    def of(self, tier: str, part: str, side: str) -> list[Run]:
        return [run for run in self.runs if (run.tier, run.part, run.side) == (tier, part, side)]

    @property
    def failed(self) -> list[Run]:
        return [run for run in self.runs if run.errors]

    # -- as files ---------------------------------------------------------------------------------

    def encode(self) -> str:
        told = asdict(self)
        del told["file"]
        return json.dumps(told, indent=1) + "\n"

    def write(self) -> None:
        """A reader finds all of it or all of what was there before."""
        if self.file is not None:
            fresh = self.file.with_suffix(".new")
            fresh.write_text(self.encode())
            fresh.replace(self.file)

    @classmethod
    def parse(cls, text: str) -> Results:
        told = json.loads(text)
        runs = [Run(**run) for run in told.pop("runs")]
        return cls(**told, runs=runs)

    @classmethod
    def read(cls, path: Path) -> Results:
        return cls.parse(path.read_text())


@dataclass(frozen=True)
class Comparison:
    """A figure of two gateways: medians, and the ratio of each round, ours to theirs."""

    theirs: float
    ours: float
    ratios: tuple[float, ...]
    """Empty where the other one was not measured."""
    runs: tuple[Run, ...]

    @property
    def middle(self) -> tuple[float, float, float]:
        """The median of the ratios, the least and the greatest."""
        return statistics.median(self.ratios), min(self.ratios), max(self.ratios)


def middle(runs: Iterable[Run], figure: str) -> float | None:
    """The median of a figure; None where nobody has it."""
    values = [run.figures[figure] for run in runs if figure in run.figures]
    return statistics.median(values) if values else None


def compared(theirs: list[Run], ours: list[Run], figure: str) -> Comparison | None:
    """A figure of two gateways, round by round. None where ours has none of it."""
    first, second = middle(theirs, figure), middle(ours, figure)
    if second is None:
        return None
    by_round = {run.round: run.figures[figure] for run in theirs if figure in run.figures}
    ratios = tuple(
        run.figures[figure] / by_round[run.round]
        for run in ours
        if figure in run.figures and by_round.get(run.round)
    )
    used = tuple(run for run in (*theirs, *ours) if figure in run.figures)
    return Comparison(first or 0.0, second, ratios, used)
