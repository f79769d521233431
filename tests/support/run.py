"""Run the tests in tiers, look a second time at what failed, and leave no process behind.

`sh tests/run.sh` calls it. Without arguments: fast, process and live, in this order; the first tier that
fails ends the run. Paths and other arguments go to pytest. `--tier NAME` runs one tier, `--long [NAME ...]`
long series.

A test that failed runs once more, alone. If all of them pass then, the tier has passed, and the last lines of
the output name them: each is a bug in the product or in the test, to be found before new work. More than
`MOST_LOOKS` failures, or one that fails again, fail the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from popgate.testing.rocketmq.shared import FOLDER_VARIABLE
from tests.support import leftovers
from tests.support.folders import folder_in_memory
from tests.support.tiers import LIVE_WORKERS, LONG, SERIES, TIERS, paths_of, tiers_of_path

MOST_LOOKS = 15
PROCESS_WORKERS_PER_CORE = 2
PASSED, FAILED, WRONG_USE, NOTHING_SELECTED = 0, 1, 4, 5
"""pytest's own exit codes."""


@dataclass(slots=True)
class Outcome:
    """What one call of pytest came to."""

    code: int
    failed: dict[str, str] = field(default_factory=dict)
    """The ids of tests, and what each failed with."""
    problems: list[str] = field(default_factory=list)


Pytest = Callable[[Sequence[str]], Outcome]


def pytest_outcome(arguments: Sequence[str], *, cwd: str | None = None, **environment: str) -> Outcome:
    """Run pytest in a process of its own and read what it wrote down."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes"
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "tests.support.outcomes", *arguments],
            env={**os.environ, **environment, "TEST_OUTCOMES": str(file)},
            stdin=subprocess.DEVNULL,
            cwd=cwd,
            check=False,
        )
        written = json.loads(file.read_text()) if file.exists() else {}
    return Outcome(ran.returncode, **written)


def look_twice(
    run: Pytest, arguments: Sequence[str], alone: Sequence[str] = ("-n", "0")
) -> tuple[int, list[str]]:
    """Run tests, and those that failed once more, each alone.

    Returns pytest's exit code as it is after the second look, and the tests that passed only then.
    """
    first = run(arguments)
    for problem in first.problems:
        print(f"FAILED {problem}")
    if first.code not in (PASSED, FAILED):  # then pytest may have ended before it told which they were
        for nodeid in first.failed:
            print(f"FAILED {nodeid}")
    if first.code != FAILED or first.problems or not first.failed:
        return first.code, []
    if len(first.failed) > MOST_LOOKS:
        print(f"{len(first.failed)} tests failed: no second look at more than {MOST_LOOKS}")
        return first.code, []
    again = {}
    for nodeid in first.failed:
        print(f"second look: {nodeid}", flush=True)
        second = run([nodeid, *alone])
        if second.code != PASSED:
            again[nodeid] = second.failed.get(nodeid, f"pytest ended with {second.code}")
    for nodeid, reason in first.failed.items():  # the output of both may be far above
        print(f"failed at first: {nodeid}: {reason}")
        if nodeid in again:
            print(f"FAILED twice: {nodeid}: {again[nodeid]}")
    return (FAILED, []) if again else (PASSED, list(first.failed))


def run_tiers(tiers: Sequence[str], given: Sequence[str]) -> tuple[int, list[str]]:
    """Run tiers in order up to the first that fails; NOTHING_SELECTED if no test of any was selected."""
    late: list[str] = []
    code = NOTHING_SELECTED
    with tempfile.TemporaryDirectory() as folder:
        environment = {"TEST_TRAITS": str(Path(folder) / "traits")}
        for tier in tiers:
            print(f"== tier {tier}", flush=True)
            started = time.monotonic()

            def run(these: Sequence[str], tier: str = tier) -> Outcome:
                with temporary_folder(tier) as here:
                    return pytest_outcome(these, TEST_TIER=tier, **environment, **here)

            arguments = [*options_of(tier, given), "--durations=0", "--durations-min=1", *given]
            its, twice = look_twice(run, arguments)
            print(f"== tier {tier}: exit code {its} after {time.monotonic() - started:.0f} s", flush=True)
            late += twice
            if its == NOTHING_SELECTED:
                continue
            code = its
            if its != PASSED:
                break
    return code, late


@contextlib.contextmanager
def temporary_folder(tier: str) -> Iterator[dict[str, str]]:
    """Where a tier has its temporary files, as variables: in memory, but for those of long series.

    A RocketMQ waits for the disk whenever a topic is made, and all that are made after it wait, too; what
    the live tier has at a time are 400 MB.
    """
    if tier == LONG:
        yield {}
        return
    with folder_in_memory(os.environ) as folder:
        yield {} if folder is None else {"TMPDIR": str(folder)}


def options_of(tier: str, given: Sequence[str]) -> list[str]:
    """What pytest gets for a tier beside what was given: workers, and its paths where none was given."""
    options = ["--dist", "loadfile", "--no-loadscope-reorder"]
    if not any(argument.startswith("-n") for argument in given):
        options += ["-n", workers_of(tier)]
    return options if paths_in(given) else [*options, *paths_of(tier)]


def workers_of(tier: str) -> str:
    """How many workers of xdist a tier gets, as the value of `-n`.

    Always one at least, not none: a worker that is ended because it hangs is replaced, and the rest of the
    tests run.
    """
    if tier == "live":
        return str(LIVE_WORKERS)
    if tier == LONG:
        return "1"
    if jobs := os.environ.get("TEST_JOBS"):
        return jobs
    # The tests of gateways as processes wait for most of the time.
    return str(PROCESS_WORKERS_PER_CORE * len(os.sched_getaffinity(0))) if tier == "process" else "auto"


def paths_in(given: Sequence[str]) -> list[str]:
    """The arguments that name a file, a folder or a test."""
    return [path for argument in given if Path(path := argument.partition("::")[0]).exists()]


def tiers_for(given: Sequence[str]) -> list[str]:
    """The tiers to run: all of the test command, or those that have tests in the paths that were given."""
    paths = paths_in(given)
    if not paths:
        return list(TIERS)
    wanted = set().union(*(tiers_of_path(path) for path in paths))
    return [tier for tier in (*TIERS, LONG) if tier in wanted]


def run_series(names: Sequence[str]) -> tuple[int, list[str]]:
    """Run long series one after the other, all of them, whether or not one fails.

    There is no second look: they look for what happens rarely.
    """
    worst = PASSED
    for name in names or SERIES:
        series = SERIES[name]
        print(f"== long series {name}", flush=True)
        started = time.monotonic()
        environment = {**series.environment, "CI": "true"}  # nothing that can be installed is skipped
        if series.programs:
            code = PASSED
            for program in series.programs:
                ran = subprocess.run(
                    [sys.executable, *program], env={**os.environ, **environment}, check=False
                )
                code = code or ran.returncode
        else:
            outcome = pytest_outcome(["-n", "0", *series.paths], **environment)
            code = outcome.code
            for problem in outcome.problems:
                print(f"FAILED {problem}")
        print(f"== long series {name}: exit code {code} after {time.monotonic() - started:.0f} s", flush=True)
        worst = worst or code
    return worst, []


def main(arguments: Sequence[str]) -> int:
    """Run what the command line asks for; returns the exit code."""
    # Another run's tests would keep our cluster, or lose it when this run ends what it has left behind.
    with tempfile.TemporaryDirectory(prefix="popgate-run-") as folder:
        os.environ[FOLDER_VARIABLE] = folder
        return _run(list(arguments))


def _run(given: list[str]) -> int:
    leftovers.mark_this_run()
    if given[:1] == ["--long"]:
        if unknown := [name for name in given[1:] if name not in SERIES]:
            print(f"no long series {', '.join(unknown)}: there are {', '.join(SERIES)}", file=sys.stderr)
            return WRONG_USE
        code, late = run_series(given[1:])
    elif given[:1] == ["--tier"]:
        if given[1:2] == [] or given[1] not in TIERS:
            print(f"--tier needs one of {', '.join(TIERS)}", file=sys.stderr)
            return WRONG_USE
        code, late = run_tiers([given[1]], given[2:])
    else:
        code, late = run_tiers(tiers_for(given), given)
    return closing(code, late, leftovers.left_behind())


def closing(code: int, late: Sequence[str], left: dict[int, str]) -> int:
    """Print the last lines of a run; returns its exit code."""
    for pid, line in left.items():
        print(f"FAILED left behind: process {pid}: {line[:200]}")
    leftovers.end(left)
    if late:
        print(f"passed only at a second look: {', '.join(late)}")
    return code or (FAILED if left else PASSED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
