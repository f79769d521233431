"""The long form of the fuzz tests: a million mutated inputs for each wire, RPC and remoting request code.

    python tests/fuzz/long.py                                  # all of it: hours of CPU time
    python tests/fuzz/long.py --inputs 50000 --seconds 300     # as much of it as five minutes allow
    python tests/fuzz/long.py --only wires       # or rpcs, remoting, or one wire, such as http2 or shared
    python tests/fuzz/long.py --only http2 hpack --complete    # what HTTP/2 is read by: a million of each

The inputs are made as in the tests beside this, by seed. The RPCs with health and reflection (`rpcs`), the
request codes of the remoting door (`classic`) and the calls between gateways that share a broker (`shared`)
are called in this process, without sockets. Checked of every input: no exception but the documented ones, no
internal error, none in the log, an answer in time; of every process that it does not grow; and of every RPC
and call between gateways that its changed inputs succeed now and then, or nothing behind its door was tried.
Prints one line per target and how many inputs it really got; exit code 1 when something is wrong, with the
input or the target, or with `--complete` a target got fewer inputs than asked for.
Several processes share the work, each with seeds of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from popgate.errors import IllegalFilter, IllegalReceipt, PeerWireError
from tests.fuzz.classic import fuzz_classic, served
from tests.fuzz.rpcs import RPCS, fuzz_rpcs
from tests.fuzz.shared import CONNECTION, fuzz_shared
from tests.fuzz.shared import TARGETS as GUESTS
from tests.fuzz.sites import LONGEST_INPUT_S, Growth, Wrong, hopeless
from tests.fuzz.test_shared_fuzz import TARGETS as SHARED
from tests.fuzz.test_wire_fuzz import TARGETS, mutated

WIRES = [*TARGETS, *((f"shared_{name}", data, read) for name, data, read in SHARED)]
"""With what gateways that share a broker tell each other, which is a wire, too."""
DOORS = {"rpcs": fuzz_rpcs, "remoting": fuzz_classic, "shared": fuzz_shared}
_FINE = (PeerWireError, IllegalFilter, IllegalReceipt)


# -- wires ----------------------------------------------------------------------------------------


def fuzz_wire(data: bytes, read: Callable[[bytes], Any], seed: str, inputs: int, end: float) -> int:
    """The number of inputs that were tried. Raises Wrong."""
    dice = random.Random(seed)
    growth = Growth()
    for number in range(inputs):
        case = mutated(dice, data)
        begin = time.process_time()
        try:
            read(case)
        except _FINE:
            pass
        except Exception as error:
            raise Wrong(f"{type(error).__name__}: {error}; input {case.hex()}") from error
        took = time.process_time() - begin
        if took > LONGEST_INPUT_S:
            raise Wrong(f"it took {took:.1f} s; input {case.hex()}")
        if number % 20_000 == 19_999:
            growth.sample()
        if time.monotonic() > end:
            return number + 1
    return inputs


# -- the work and its parts -------------------------------------------------------------------------


def wires_of(only: Sequence[str]) -> list[tuple[str, bytes, Callable[[bytes], Any]]]:
    """The wires that are chosen: by name, by what their names begin with, or all."""
    if not only or "wires" in only:
        return WIRES
    return [
        target
        for target in WIRES
        if any(target[0] == name or target[0].startswith(f"{name}_") for name in only)
    ]


def work(
    seed: int, inputs: int, seconds: float, only: Sequence[str], *, complete: bool = False
) -> tuple[Counter[str], list[str]]:
    """One process's part: the wires first, then the doors one after the other; and what was wrong.

    What is wrong ends its own part only. A `complete` run is of no use without all inputs of the slow targets
    (an input of HTTP/2 takes 200 us, most others 10): each has the whole time there, not an equal part of it.
    """
    begin, told, wrongs = time.monotonic(), Counter[str](), []
    wires = wires_of(only)
    doors = [(door, fuzz) for door, fuzz in DOORS.items() if not only or door in only]
    # A third of the time is the wires', else in equal parts; what one leaves over goes to the next.
    for_wires = seconds if not doors else seconds / 3 if wires else 0.0
    for number, (name, data, read) in enumerate(wires):
        end = begin + for_wires * (1.0 if complete else (number + 1) / len(wires))
        try:
            told[f"wire {name}"] = fuzz_wire(data, read, f"{seed}/{name}", inputs, end)
        except Wrong as wrong:
            wrongs.append(f"wire {name}: {wrong}")
    for number, (door, fuzz) in enumerate(doors):
        part = 1.0 if complete else (number + 1) / len(doors)
        end = begin + for_wires + (seconds - for_wires) * part
        try:
            asyncio.run(fuzz(f"{seed}/{door}", inputs, end, told))
        except Wrong as wrong:
            wrongs.append(str(wrong))
    return told, wrongs


def main() -> None:
    only = ("wires", *DOORS, *(target[0] for target in WIRES))
    parser = argparse.ArgumentParser(description="The long form of the fuzz tests.")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="for each wire, RPC and code")
    parser.add_argument("--seconds", type=float, default=86_400.0, help="stop after so long")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=only, nargs="+", default=[], help="leave the others out")
    parser.add_argument("--complete", action="store_true", help="fail when the time was too short for all")
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.part:
        logging.disable(logging.WARNING)
        done = work(chosen.seed, chosen.inputs, chosen.seconds, chosen.only, complete=chosen.complete)
        print(json.dumps(done))
        return
    share = str(-(-chosen.inputs // chosen.processes))
    parts = [
        subprocess.Popen(
            [
                *(sys.executable, __file__, "--part", "--inputs", share),
                *("--seconds", str(chosen.seconds), "--seed", f"{chosen.seed * 1_000 + number}"),
                *(("--only", *chosen.only) if chosen.only else ()),
                *(("--complete",) if chosen.complete else ()),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(chosen.processes)
    ]
    told, failed = Counter[str](), False
    for part in parts:
        out, _ = part.communicate()
        counts, wrongs = json.loads(out or '[{}, ["a process ended without a word"]]')
        told.update(counts)
        failed = failed or bool(wrongs)
        for wrong in wrongs:
            print("WRONG:", wrong)
    targets = [f"wire {target[0]}" for target in wires_of(chosen.only)]
    succeeding: list[str] = []
    if not chosen.only or "rpcs" in chosen.only:
        succeeding += RPCS
    if not chosen.only or "shared" in chosen.only:
        succeeding += GUESTS
        targets.append(CONNECTION)
    targets += succeeding
    if not chosen.only or "remoting" in chosen.only:
        targets += served()
    for target in targets:
        codes = {
            name.split()[-1]: count for name, count in sorted(told.items()) if name.startswith(f"{target} ")
        }
        print(f"{target}: {told[target]} inputs", *(f"{code} {count}" for code, count in codes.items()))
    for target in hopeless(told, succeeding):
        print(f"WRONG: {target}: none of {told[target]} inputs that were changed did what it asked for")
        failed = True
    least = min(told[target] for target in targets)
    print(f"least of a target: {least} inputs")
    if chosen.complete and least < chosen.inputs:
        print(f"WRONG: the time was too short for {chosen.inputs} inputs of each")
        failed = True
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
