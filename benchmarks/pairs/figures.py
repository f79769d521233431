"""The figures that the programs here print, one line each: `NAME VALUE UNIT`, and more values with units."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

UNITS = ("s", "ms", "MB", "%", "x", "us/op", "us/message", "us/msg", "msgs/s")
_VALUE = re.compile(r" (\d+(?:\.\d+)?) (\S+)")


def figures_in(lines: Iterable[str]) -> dict[str, float]:
    """By name and unit, `grpc.send_1 us/msg`; what is in no unit of `UNITS` is no figure."""
    found: dict[str, float] = {}
    for line in lines:
        name, space, rest = line.partition(" ")
        for value, unit in _VALUE.findall(space + rest):
            if unit in UNITS:
                found[f"{name} {unit}"] = float(value)
    return found


def run_program(
    script: Path, *options: str, environment: Mapping[str, str] | None = None
) -> dict[str, float]:
    """What a program prints.

    Raises SystemExit with its exit code: it did not end well, and said why on standard error.
    """
    command = [sys.executable, str(script), *options]
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False, env=environment
    )
    if ended.returncode:
        print(ended.stdout, end="", flush=True)
        raise SystemExit(ended.returncode)
    return figures_in(ended.stdout.splitlines())
