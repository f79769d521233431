"""The load generator in `benchmarks/load`: built once, run, and asked what it did."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from popgate.testing.made import FETCH_TRIES, digest, made_once, run_tool

SOURCES = Path(__file__).resolve().parents[1] / "load"
ENDED_WITHIN_S = 900.0
"""A run that has no time of its own, as those that warm up; one that has ends when its last calls do."""
LAST_CALLS_S = 90.0
HELD_WITHIN_S = 180.0
ROUTE_WITHIN_S = 180.0


def build() -> Path:
    """The program, compiled when its sources are new. Raises Missing: no Go, or its modules cannot be had."""
    sources = [*SOURCES.glob("*.go"), SOURCES / "go.mod", SOURCES / "go.sum"]

    def compile_in(folder: Path) -> None:
        for source in sources:
            shutil.copy2(source, folder)
        run_tool(["go", "build", "-o", "load", "."], folder, tries=FETCH_TRIES)

    return made_once("load", digest("", sorted(sources), SOURCES), compile_in, making=("go",)) / "load"


def _words(options: dict[str, object]) -> list[str]:
    return [word for name, value in options.items() for word in (f"-{name.replace('_', '-')}", str(value))]


class Load:
    """Runs of the program; `options` are its flags. What it tells has `errors` and what they said."""

    def __init__(self, program: Path) -> None:
        self._program = program

    def run(self, target: str, work: str, *, seconds: float = 0.0, **options: object) -> dict[str, Any]:
        """Raises subprocess.TimeoutExpired, and SystemExit when it says nothing."""
        ended = subprocess.run(
            [str(self._program), "-target", target, "-work", work, *_words({"seconds": seconds, **options})],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds + LAST_CALLS_S if seconds else ENDED_WITHIN_S,
            check=False,
        )
        return _read(ended.stdout, ended.stderr)

    def until_routed(self, target: str, topic: str, **options: object) -> None:
        """What was made at a broker is seen by a gateway when the name server knows of it.

        Raises SystemExit when that takes too long.
        """
        end = time.monotonic() + ROUTE_WITHIN_S
        while self.run(target, "route", topic=topic, messages=1, calls=1, connections=1, **options)["errors"]:
            if time.monotonic() > end:
                raise SystemExit(f"{target} has no route to {topic}")

    @contextlib.contextmanager
    def holding(self, target: str, work: str, told: dict[str, Any], **options: object) -> Iterator[int]:
        """How many connections or polls it holds, for as long as the block; then `told` is what it says."""
        process = subprocess.Popen(
            [str(self._program), "-target", target, "-work", work, *_words(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            first = json.loads(process.stdout.readline() or "{}")
            if "held" not in first:  # it ended at once, and says why
                told.update(first)
            yield int(first.get("held", 0))
            rest, _ = process.communicate("", HELD_WITHIN_S)
            told.update(_read(rest, "") if rest else {})
        finally:
            process.kill()
            process.wait()


def _read(output: str, error: str) -> dict[str, Any]:
    lines = output.splitlines()
    if not lines:
        raise SystemExit(f"the load told nothing: {error}")
    told: dict[str, Any] = json.loads(lines[-1])
    return told
