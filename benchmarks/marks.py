"""The marks that a gateway on the embedded broker must keep: memory, opening after a crash, idle lite topics.

    python benchmarks/marks.py            # about a minute; the exit code is 1 when a mark is missed
    python benchmarks/marks.py --quick    # few of everything; proves only that it runs, and judges nothing

The figures are those of the other programs here, each run once. The only time among them is that of opening,
the best of three: how fast a machine is must not decide.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.beside.machine import facts, sentence
from benchmarks.pairs.figures import run_program

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Mark:
    """At most so much of a figure; the N in `name` stands for the number of things that it is about."""

    program: str
    name: str
    most: float
    unit: str

    def found_in(self, figures: Mapping[str, float]) -> tuple[str, float] | None:
        """The figure's full name and its value; None: it is not there."""
        for full, value in figures.items():
            name, _, unit = full.partition(" ")
            if unit == self.unit and re.sub(r"\d+", "N", name) == self.name:
                return name, value
        return None


MARKS = (
    Mark("starting.py", "gateway.idle", 80, "MB"),
    Mark("opening.py", "opening.in_flight_N_best", 2, "s"),
    Mark("lite_topics.py", "lite.topics_N", 200, "MB"),
    Mark("lite_topics.py", "lite.idle_cpu_N", 1, "%"),
    Mark("lite_topics.py", "lite.repeating_cpu_N", 2, "%"),
    Mark("waiting.py", "waiting.polls_N", 250, "MB"),
)


def judged(marks: Iterable[Mark], figures: Mapping[str, float]) -> Iterator[tuple[str, bool]]:
    """A line for each mark, and whether it is kept; a figure that is not there keeps none."""
    for mark in marks:
        found = mark.found_in(figures)
        if found is None:
            yield f"{mark.name}: NOT MEASURED, at most {mark.most} {mark.unit}", False
            continue
        name, value = found
        kept = value <= mark.most
        yield f"{name} {value} {mark.unit}, at most {mark.most}: {'kept' if kept else 'MISSED'}", kept


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the programs and judge; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few of everything; judges nothing")
    quick = parser.parse_args(arguments).quick
    print(sentence(facts()), flush=True)
    code = 0
    for program in dict.fromkeys(mark.program for mark in MARKS):
        figures = run_program(HERE / program, *(["--quick"] if quick else []))
        marks = [mark for mark in MARKS if mark.program == program]
        for line, kept in judged(marks, figures):
            print(line, flush=True)
            # In the short form a figure has to be there, and may be anything.
            code = code or int(not kept and not (quick and "MISSED" in line))
    return code


if __name__ == "__main__":
    sys.exit(main())
