"""A commit and a later one, each as its wheel, run in turn: medians, and the ratios of the pairs.

    python benchmarks/before_after.py BEFORE [AFTER] [--only embedded,processor] [--out docs/performance]
    python benchmarks/before_after.py --quick    # one short pair of the checkout with itself

AFTER is the checkout as it is unless it is named. Each wheel is unpacked into a folder of its own with the
benchmarks of its commit beside it, and both are run with the packages of this environment; the one that goes
first takes turns. Told are the medians of what the benchmarks print, and the median, the least and the
greatest of the ratios of the pairs, after by before. A benchmark that only one of them has is left out, and
of one that was changed in between it is told that it may measure something else; figures of other names are
not compared.

With --out every single run is kept in `before-after-COMMIT.json` (the commit before), and the table beside
it; parts that were measured earlier with the same two commits on the same machine stay there. It takes some
twenty minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.beside.amounts import chosen_from
from benchmarks.beside.machine import Facts, doubts, facts, sentence
from benchmarks.beside.results import Results, Run, compared
from benchmarks.pairs.figures import run_program
from benchmarks.pairs.wheels import CHECKOUT, WheelSide, build_side, full_commit
from popgate.testing.made import Missing

PARTS = ("processor", "wires", "embedded", "door", "grpc_end_to_end", "starting")
LEAST_PAIRS = 7
MISSING = 3
"""The exit code when git or the commit is not there."""
BEFORE, AFTER = "before", "after"
TIER = "wheels"
OF_THE_MACHINE = ("processor", "cores", "memory_gb", "kernel", "python")
"""Facts that are those of all runs of a page."""


def pairs_number(word: str) -> int:
    """Raises ArgumentTypeError for too few."""
    if not word.isdigit() or int(word) < LEAST_PAIRS:
        raise argparse.ArgumentTypeError(f"{word}: at least {LEAST_PAIRS} pairs tell a change from chance")
    return int(word)


def measure(
    results: Results, sides: Sequence[WheelSide], parts: Sequence[str], pairs: int, *how: str
) -> None:
    for part in parts:
        script = f"{part}.py"
        if missing := [side.name for side in sides if not side.has(script)]:
            results.note(f"{part}: left out, it is not there {' and '.join(missing)}")
            continue
        before, after = ((side.folder / "benchmarks" / script).read_bytes() for side in sides)
        if before != after:
            results.note(f"{part}: the benchmark was changed in between, and may measure something else")
        for number in range(pairs):
            for side in sides if number % 2 == 0 else sides[::-1]:
                path = side.folder / "benchmarks" / script
                figures = run_program(path, *how, environment=side.environment())
                results.add(Run(TIER, part, side.name, number, figures))
        results.write()


def table(results: Results) -> Iterator[str]:
    """Markdown: a row for each figure that both have."""
    yield "| figure | before | after | ratio (least to most of the pairs) |"
    yield "| --- | --- | --- | --- |"
    for part in dict.fromkeys(run.part for run in results.runs):
        before, after = (results.of(TIER, part, side) for side in (BEFORE, AFTER))
        for figure in before[0].figures if before else ():
            found = compared(before, after, figure)
            if found is not None and found.ratios:
                name, _, unit = figure.partition(" ")
                middle, least, most = found.middle
                yield (
                    f"| {name} | {found.theirs:,.5g} {unit} | {found.ours:,.5g} {unit}"
                    f" | {middle:.2f} ({least:.2f} to {most:.2f}, {len(found.ratios)} pairs) |"
                )


def page(results: Results) -> str:
    told = results.settings
    lines = [
        "# Before and after",
        "",
        f"`python benchmarks/before_after.py`: the wheels of {told[BEFORE][:12]} and of {told[AFTER][:12]}",
        f"in turn; {sentence(results.machine)}. A ratio is after by before.",
        "",
        *table(results),
    ]
    notes = [f"- {note}" for note in results.notes]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def kept(
    file: Path, machine: Facts, settings: dict[str, str], parts: Sequence[str]
) -> tuple[list[Run], list[str]]:
    """Runs and notes of other parts that were measured with the same two commits on this machine."""
    if not file.exists():
        return [], []
    earlier = Results.read(file)
    if earlier.settings != settings or CHECKOUT in settings.values():
        return [], []
    if any(earlier.machine.get(fact) != machine[fact] for fact in OF_THE_MACHINE):
        return [], []
    notes = [note for note in earlier.notes if note.partition(":")[0] not in parts]
    return [run for run in earlier.runs if run.part not in parts], notes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", nargs="?", help="a commit")
    parser.add_argument("after", nargs="?", default=CHECKOUT, help="a commit; default: the checkout as it is")
    parser.add_argument("--pairs", type=pairs_number, default=LEAST_PAIRS)
    parser.add_argument("--only", type=chosen_from(PARTS), default=list(PARTS), metavar="PART,...")
    parser.add_argument("--out", type=Path, metavar="FOLDER")
    parser.add_argument("--quick", action="store_true", help="one short pair; proves only that it runs")
    chosen = parser.parse_args()
    if chosen.before is None and not chosen.quick:
        parser.error("which commit before?")
    pairs, parts, how = chosen.pairs, chosen.only, ()
    if chosen.quick:
        pairs, parts, how = 1, [part for part in parts if part in ("processor", "starting")], ("--quick",)
    try:
        commits = {BEFORE: full_commit(chosen.before or CHECKOUT), AFTER: full_commit(chosen.after)}
    except Missing as missing:
        print(missing, file=sys.stderr)
        sys.exit(MISSING)
    machine = facts()
    if commits[AFTER] != CHECKOUT:
        machine["revision"] = commits[AFTER]
    for doubt in doubts(machine):
        print(f"WARNING: {doubt}", file=sys.stderr)
    results = Results(machine, commits)
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
        results.file = chosen.out / f"before-after-{commits[BEFORE][:12]}.json"
        results.runs, results.notes = kept(results.file, machine, commits, parts)
    with tempfile.TemporaryDirectory() as folder:
        sides = [build_side(name, commit, Path(folder) / name) for name, commit in commits.items()]
        measure(results, sides, parts, pairs, *how)
    print()
    print("\n".join(table(results)))
    if results.file is not None:
        results.write()
        results.file.with_suffix(".md").write_text(page(results))


if __name__ == "__main__":
    main()
