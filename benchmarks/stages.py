"""Where the time of a message goes, stage by stage: a gateway under load, looked at from outside by py-spy.

    python benchmarks/stages.py [--quick] [--tier own] [--work send_1,receive_32] [--out FILE]
    python benchmarks/stages.py --broker rocketmq://host:port      # one that runs already

Both tiers: with the embedded broker, and before a RocketMQ. The gateway is one process. Needs py-spy (from
PyPI), beside this Python or on the PATH, Go, and Java for the RocketMQ.

One line for each stage: its share of the samples, and what that is of the CPU that the gateway took for a
message. A sample counts for the innermost function that has a stage; threads that wait give none, nor do
those that RocksDB runs by itself. With `--native`, the default where py-spy can do it, that may be a function
in C: then system calls, protobuf's library, RocksDB and the event loop are told apart from what calls them.
Each look holds the gateway up, so that it is slower than by itself: read the shares. Exit code 1: there were
errors.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.beside.amounts import WORKS
from benchmarks.beside.driving import Load, build
from benchmarks.beside.machine import doubts, facts, sentence
from benchmarks.beside.processes import cpu_s
from benchmarks.beside.sides import OURS, TIERS, Side, Town
from popgate.testing.rocketmq import Missing

MISSING = 3
"""The exit code when py-spy, Go, Java or something fetched is not there, or py-spy may not look."""
SYSTEM_CALL = re.compile(
    r"(^|/)(libc|libpthread)[.-][^:]*:_*(libc_)?"
    r"(p?readv?|p?writev?|send(to|m?msg)?|recv(from|m?msg)?|epoll_(p?wait|ctl)|f(data)?sync|getpid|syscall)"
    r"(64|_nocancel)*$"
)
STAGES = (
    ("RocksDB", ("rocksdict",)),
    (
        "protobuf",
        (
            "_message.abi3.so",
            "google/protobuf",
            "protocols/grpc/codec/request_reader.py",
            "popgate/pb/",
        ),
    ),
    (
        "encoding answers",
        ("protocols/grpc/codec/received_message.py", "protocols/grpc/codec/packer.py:encode_sent"),
    ),
    (
        "conversion",
        (
            "protocols/grpc/codec/convert.py",
            "protocols/grpc/codec/packer.py",
            "popgate/messages/packed_messages.py",
        ),
    ),
    ("handing to the socket", ("popgate/sockets/wire_driver.py:_write", "http2_connections.py:_write")),
    ("HTTP/2 and gRPC framing", ("protocols/grpc/http2", "popgate/sockets/wire_driver.py")),
    ("running the call", ("protocols/eager_tasks.py",)),
    ("door", ("protocols/",)),
    ("processor", ("processors/",)),
    ("metrics", ("proxy/metrics",)),
    ("broker: link", ("brokers/channel.py", "brokers/remote/rpc/")),
    # Properties are for whoever calls: conversion, encoding and brokers do.
    (
        "broker: wire",
        tuple(
            f"popgate/wire/{name}"
            for name in ("frames/headers", "frames/remoting", "messages/batches", "messages/record")
        ),
    ),
    ("broker", ("brokers/",)),
    # uvloop is one file of C; what is within it is libuv.
    ("event loop", ("loop.c:", ":uv_", "asyncio/", "proxy/", "popgate/__main__.py")),
)
IDLE = "_worker (concurrent/futures/thread.py"
"""A thread that waits for work there has not fallen asleep yet when it is seen."""
OTHER = "other"
RATE, RATE_NATIVE = 400, 200
"""Looks per second."""
WARM = 2_000
ENDS_WITHIN_S = 120
"""py-spy, after its time."""


def place_of(frame: str) -> str:
    """`path:function`, of `function (path:line)` as it is in Python or `function (library)` in C."""
    function, _, place = frame.rpartition(" (")
    place = place.removesuffix(")")
    path, _, line = place.rpartition(":")
    return f"{path if line.isdigit() else place}:{function.rpartition('.')[2]}"


def stage_of(frames: Iterable[str]) -> str:
    """The stage of a stack, innermost frame first."""
    for frame in frames:
        place = place_of(frame)
        if SYSTEM_CALL.search(place):
            return "system calls"
        for stage, beginnings in STAGES:
            if any(beginning in place for beginning in beginnings):
                return stage
    return OTHER


def shares(raw: str) -> Counter[str]:
    """Samples of each stage, by py-spy's raw form: frames from the outermost on, and a count."""
    found: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        stage = stage_of(reversed(stack.split(";")))
        if stage != OTHER or IDLE not in stack:
            found[stage] += int(count)
    return found


@dataclass(frozen=True)
class Looking:
    """How a gateway is looked at."""

    command: str
    """py-spy's path."""
    native: bool
    seconds: int
    share: float
    """Of the messages of each work."""

    def at(self, side: Side, load: Load, name: str) -> dict[str, Any]:
        """CPU of a work's message, and the samples of each stage.

        Raises Missing where nobody may look at processes of others, SystemExit where py-spy fails otherwise.
        """
        work = WORKS[name]
        messages = int(work.messages * self.share)
        options = {"topic": side.named("stages"), "group": side.named("stages")}
        if work.kind == "receive":
            load.run(side.target, "send", messages=messages, per_call=32, calls=8, **options)
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder) / "stacks"
            before = cpu_s(side.pid)
            spy = subprocess.Popen(
                [
                    *(self.command, "record", "--pid", str(side.pid), "--duration", str(self.seconds)),
                    *("--rate", str(RATE_NATIVE if self.native else RATE)),
                    *("--format", "raw", "--output", str(raw)),
                    *(("--native",) if self.native else ()),
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            told = load.run(
                side.target,
                work.kind,
                messages=messages,
                seconds=self.seconds,
                per_call=work.per_call,
                connections=work.connections,
                calls=work.calls,
                **options,
            )
            used = cpu_s(side.pid) - before
            _, said = spy.communicate(timeout=self.seconds + ENDS_WITHIN_S)
            if not raw.exists():
                # Where the system lets only a parent or root look.
                forbidden = "permi" in said.lower()
                raise (Missing if forbidden else SystemExit)(f"py-spy: {said.strip()}")
            found = shares(raw.read_text())
        return {
            "cpu_us": used / max(told["messages"], 1) * 1e6,
            "errors": told["errors"],
            "samples": dict(found.most_common()),
        }


def show(tier: str, name: str, told: dict[str, Any]) -> None:
    total = sum(told["samples"].values()) or 1
    each = told["cpu_us"]
    print(
        f"{tier}, {name}: {each:.1f} us of CPU per message, {told['errors']} errors, {total} samples",
        flush=True,
    )
    for stage, count in told["samples"].items():
        print(f"  {stage:24} {100 * count / total:5.1f} %  {each * count / total:7.2f} us", flush=True)


def look(
    tier: str, broker: str, serve: list[str], works: list[str], load: Load, looking: Looking
) -> dict[str, Any]:
    """What each work of a tier showed. Raises Missing."""
    written = {}
    with Town(tier, serve, java=False, broker=broker) as town, town.start(OURS) as side:
        name = side.named("stages")
        side.make((name,), (name,))
        if tier == "embedded":  # made on first use
            load.run(side.target, "send", messages=1, topic=name)
        load.until_routed(side.target, name)
        load.run(side.target, "send", messages=WARM, topic=name, calls=8, per_call=32)
        for work in works:
            written[work] = told = looking.at(side, load, work)
            show(tier, work, told)
    return written


def found_spy() -> str:
    """Where py-spy is; what it is called where it is not."""
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return shutil.which("py-spy", path=places) or "py-spy"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="a second each, embedded: proves only that it runs"
    )
    parser.add_argument("--tier", choices=TIERS, help="one of the two")
    parser.add_argument("--work", default="send_1,send_32,receive_32,receive_1")
    parser.add_argument("--broker", default="", metavar="URL", help="a RocketMQ for the tier of its own")
    parser.add_argument("--serve-options", default="", help="further ones of popgate serve")
    parser.add_argument("--transport", default="http2")
    parser.add_argument(
        "--native", action=argparse.BooleanOptionalAction, default=platform.machine() == "x86_64"
    )
    parser.add_argument("--py-spy", default=found_spy(), metavar="FILE")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all samples there, as JSON")
    given = parser.parse_args()
    if shutil.which(given.py_spy) is None:
        print("py-spy is not there: pip install py-spy", file=sys.stderr)
        return MISSING
    machine = facts()
    print(f"{sentence(machine)}{', functions in C apart' if given.native else ''}", flush=True)
    looking = Looking(given.py_spy, given.native, 1 if given.quick else 8, 0.05 if given.quick else 1.0)
    serve = ["--workers", "1", "--listen", f"grpc://127.0.0.1:0?transport={given.transport}"]
    serve += shlex.split(given.serve_options)
    tiers = TIERS if not given.quick else ("embedded",)
    if given.tier or given.broker:
        tiers = (given.tier or "own",)
    written: dict[str, dict[str, Any]] = {}
    try:
        load = Load(build())
        for tier in tiers:
            broker = given.broker if tier == "own" else ""
            written[tier] = look(tier, broker, serve, given.work.split(","), load, looking)
    except Missing as why:
        print(f"not measured: {why}", file=sys.stderr)
        return MISSING
    for doubt in doubts(machine):
        print(f"WARNING: {doubt}", file=sys.stderr)
    if given.out is not None:
        settings = {
            name: value for name, value in vars(given).items() if name not in ("out", "py_spy", "broker")
        }
        given.out.write_text(
            json.dumps({"machine": machine, "settings": settings, "runs": written}, indent=1) + "\n"
        )
    return int(any(told["errors"] for works in written.values() for told in works.values()))


if __name__ == "__main__":
    raise SystemExit(main())
