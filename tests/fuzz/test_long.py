"""The long form runs, reaches every target, and tells what is wrong; a bounded piece of it in every run."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz import long
from tests.fuzz.test_wire_fuzz import TARGETS

SCRIPT = Path(long.__file__)


def test_every_target_gets_its_inputs() -> None:
    command = [sys.executable, SCRIPT, "--inputs", "200", "--processes", "2", "--seconds", "90"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    told = {line.split(":")[0]: int(line.split(": ")[1].split()[0]) for line in done.stdout.splitlines()}
    assert told.keys() >= {*long.RPCS, *(f"wire {target[0]}" for target in TARGETS)}
    assert min(told.values()) >= 200


def test_an_exception_of_a_wire_is_told_with_its_input() -> None:
    def read(data: bytes) -> None:
        if random.Random(data).random() < 0.1:
            raise KeyError("foreign")

    with pytest.raises(long.Wrong, match=r"KeyError: 'foreign'; input [0-9a-f]+"):
        long.fuzz_wire(b"some data", read, "seed", 1_000, time.monotonic() + 60)


async def test_an_internal_error_of_a_call_is_told_with_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise KeyError("foreign")

    monkeypatch.setattr(long.MessagingProcessor, "route", broken)
    with pytest.raises(long.Wrong, match=r"QueryRoute was answered INTERNAL_\w*ERROR.*input \['[0-9a-f]*'\]"):
        await long.fuzz_rpcs("seed", 40, time.monotonic() + 60, Counter())


def test_a_process_that_grows_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    growth = long.Growth()
    for resident in (100.0, 150.0, 160.0, 200.0):
        monkeypatch.setattr(long, "resident_mb", lambda now=resident: now)
        growth.sample()
    monkeypatch.setattr(long, "resident_mb", lambda: 230.0)
    with pytest.raises(long.Wrong, match="grew by 70 MB"):
        growth.sample()
