"""What several processes of one gateway are worth: how connections spread, memory, throughput.

    python benchmarks/workers.py [--out FILE]    # about two minutes
    python benchmarks/workers.py --quick         # a moment; proves only that it runs

Spread: rounds of four connections in which each of two processes got two; by SO_REUSEPORT, where the
system picks by a hash, and by the supervisor, which hands them over. Memory (PSS of all processes, ready
and idle): two workers that were forked from the supervisor, and the same three processes each started by
itself. Throughput before the embedded broker, messages per second and per second of CPU of all processes:
one process, and two workers beside the process of the broker; both take turns, the middle one is told.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import selectors
import socket
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.beside.driving import Load, build
from benchmarks.beside.machine import doubts, facts, sentence
from benchmarks.beside.processes import cpu_s, memory_mb
from popgate.testing import GatewayProcess
from popgate.testing.made import Missing

FOUR = 4
IN_FLIGHT = 32
"""Calls, on four connections."""
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
QUIET = ("--durability", "none", "--log-level", "error")


def even_by_system(rounds: int) -> int:
    """Rounds in which two sockets at one port got two of four connections each."""
    even = 0
    for _ in range(rounds):
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(socket.create_server(("127.0.0.1", 0), reuse_port=True))
            second = stack.enter_context(socket.create_server(first.getsockname(), reuse_port=True))
            for _ in range(FOUR):
                stack.enter_context(socket.create_connection(first.getsockname()))
            took = 0
            with selectors.DefaultSelector() as selector:
                first.setblocking(False)
                selector.register(first, selectors.EVENT_READ)
                while selector.select(0.01):
                    stack.enter_context(first.accept()[0])
                    took += 1
            even += took * 2 == FOUR
            del second
    return even


def even_by_supervisor(gateway: GatewayProcess, rounds: int) -> int:
    """The same of a running gateway's workers."""
    even = 0
    host, port = gateway.endpoint.split(":")
    for _ in range(rounds):
        until(gateway, [0, 0])
        with contextlib.ExitStack() as stack:
            for _ in range(FOUR):
                link = stack.enter_context(socket.create_connection((host, int(port))))
                link.sendall(HELLO)
            even += until(gateway, [2, 2])
    return even


def until(gateway: GatewayProcess, wanted: list[int]) -> bool:
    """Whether the workers have so many connections, within two seconds."""
    ends = time.monotonic() + 2.0
    while time.monotonic() < ends:
        with urllib.request.urlopen(f"{gateway.admin}/health") as answer:
            told = json.load(answer)["processes"]
        if sorted(one["connections"] for one in told if one["role"] == "worker") == wanted:
            return True
        time.sleep(0.05)
    return False


def memory_apart(folder: Path) -> float:
    """A host and two guests, each a process that was started by itself."""
    host = GatewayProcess(
        folder / "host", options=("--workers", "1", "--share-broker", f"unix:{folder}/b", *QUIET)
    )
    with host, contextlib.ExitStack() as stack:
        guests = [
            stack.enter_context(
                GatewayProcess(
                    folder / name, options=("--workers", "1", "--broker", f"popgate+unix:{folder}/b", *QUIET)
                )
            )
            for name in ("one", "two")
        ]
        return sum(memory_mb(one.pid)["pss_mb"] for one in (host, *guests))


def work(load: Load, workers: int, messages: int, per_call: int) -> dict[str, float]:
    """Messages per second, and per second of CPU, of sends and of receives with their acknowledgements."""
    told: dict[str, float] = {}
    with GatewayProcess(options=("--workers", str(workers), *QUIET)) as gateway:
        for warm, count in ((True, messages // 10), (False, messages)):
            # Fewer are taken than sent: no call waits for what another one has.
            for kind, many in (("send", count), ("receive", max(count - IN_FLIGHT * per_call, per_call))):
                before = cpu_s(gateway.pid)
                done = load.run(
                    gateway.endpoint, kind, messages=many, per_call=per_call, calls=IN_FLIGHT // FOUR, wait=1
                )
                used = cpu_s(gateway.pid) - before
                if done["errors"]:
                    raise SystemExit(f"{kind}: {done['said']}")
                if not warm:
                    told[f"{kind}_{per_call} per second"] = done["rate"]
                    told[f"{kind}_{per_call} per CPU second"] = done["messages"] / max(used, 0.01)
        told[f"loaded_{per_call}, MB"] = memory_mb(gateway.pid)["pss_mb"]
    return told


def throughput(works: Sequence[tuple[int, int]], rounds: int) -> dict[str, tuple[float, float]]:
    """The middle figures of one process and of two workers, by what they are; none without Go.

    A work is so many messages in each call, and so many in all.
    """
    told: dict[str, tuple[float, float]] = {}
    try:
        load = Load(build())
    except Missing as missing:
        print(f"no throughput: {missing}")
        return told
    for per_call, count in works:
        runs: dict[int, list[dict[str, float]]] = {1: [], 2: []}
        for turn in range(rounds):
            for workers in (1, 2) if turn % 2 == 0 else (2, 1):
                runs[workers].append(work(load, workers, count, per_call))
        for name in runs[1][0]:
            one, two = (statistics.median(run[name] for run in runs[workers]) for workers in (1, 2))
            told[name] = one, two
            print(
                f"{name:28} {one:10,.0f} by one, {two:10,.0f} by two workers and a broker ({two / one:.2f})"
            )
    return told


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures there, as JSON")
    given = parser.parse_args()
    quick = given.quick
    machine = facts()
    print(sentence(machine))
    for doubt in doubts(machine):
        print(f"WARNING: {doubt}", file=sys.stderr)
    rounds = 3 if quick else 40
    by_system = even_by_system(rounds * 10)
    print(f"two and two of four by SO_REUSEPORT: {by_system} of {rounds * 10} rounds")
    with GatewayProcess(options=("--workers", "2", *QUIET)) as gateway:
        together = memory_mb(gateway.pid)["pss_mb"]
        by_supervisor = even_by_supervisor(gateway, rounds)
        print(f"two and two of four by the supervisor: {by_supervisor} of {rounds} rounds")
    with tempfile.TemporaryDirectory() as folder:
        apart = memory_apart(Path(folder))
    with GatewayProcess(options=("--workers", "1", *QUIET)) as gateway:
        alone = memory_mb(gateway.pid)["pss_mb"]
    print(f"memory, MB: {together:.1f} forked, {apart:.1f} started apart, {alone:.1f} of one process")
    works = ((32, 2_000),) if quick else ((32, 160_000), (1, 20_000))
    told = throughput(works, 1 if quick else 3)
    if given.out is not None:
        figures = {
            "even": {"rounds": rounds, "by_supervisor": by_supervisor, "by_system_of_ten_times": by_system},
            "memory_mb": {"forked": together, "apart": apart, "one": alone},
            "one_and_two_workers": told,
        }
        given.out.write_text(json.dumps({"machine": machine, **figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
