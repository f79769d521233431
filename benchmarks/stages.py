"""Where the time of a message goes, stage by stage: a gateway under load, looked at from outside by py-spy.

    python benchmarks/stages.py [--quick] [--work send_1,receive_32] [--broker rocketmq://host:port]

Needs py-spy (from PyPI) on the PATH. One line for each stage: its share of the samples, and what that is of
the CPU that the gateway took for a message. A sample is counted for the innermost function that has a stage.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.beside.amounts import CLIENTS, WORKS
from benchmarks.beside.driving import Load, build
from benchmarks.beside.processes import cpu_s
from popgate.testing import CREATE_ON_USE, GatewayProcess

STAGES = (
    ("socket write", ("popgate/driving.py:_write", "http2_connections.py:_write")),
    ("HTTP/2 and gRPC framing", ("protocols/grpc/http2", "popgate/driving.py")),
    ("running the call", ("protocols/stepping.py",)),
    ("protobuf in", ("protocols/grpc/reading.py",)),
    ("convert and encode", ("protocols/grpc/convert.py", "protocols/grpc/delivering.py")),
    ("door", ("protocols/",)),
    ("processor", ("processors/",)),
    ("metrics", ("proxy/metrics",)),
    ("broker: link and wire", ("brokers/channel.py", "brokers/remote/link", "popgate/wire/")),
    ("broker", ("brokers/",)),
    ("loop, reads, waking", ("asyncio/", "proxy/", "popgate/__main__.py")),
)
RATE = 400
"""Looks per second."""


def stage_of(frames: Iterable[str]) -> str:
    """The stage of a stack, innermost frame first: `function (path:line)` each."""
    for frame in frames:
        function, _, place = frame.partition(" (")
        path = f"{place.rpartition(':')[0]}:{function.rpartition('.')[2]}"
        for stage, beginnings in STAGES:
            if any(beginning in path for beginning in beginnings):
                return stage
    return "other"


def shares(raw: str) -> Counter[str]:
    """Samples of each stage, by py-spy's raw form: frames from the outermost on, and a count."""
    found: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        found[stage_of(reversed(stack.split(";")))] += int(count)
    return found


def look(gateway: GatewayProcess, load: Load, name: str, messages: int, seconds: int) -> None:
    work = WORKS[name]
    options = {
        "topic": "stages",
        "group": "stages",
        "connections": work.connections,
        "calls": work.calls,
        "per_call": work.per_call,
    }
    if work.kind == "receive":
        load.run(gateway.endpoint, "send", messages=messages, **{**options, "per_call": 32, "calls": 8})
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "stacks"
        before = cpu_s(gateway.pid)
        spy = subprocess.Popen(
            [
                *("py-spy", "record", "--pid", str(gateway.pid), "--rate", str(RATE)),
                *("--duration", str(seconds), "--format", "raw", "--output", str(raw)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        told = load.run(gateway.endpoint, work.kind, messages=messages, seconds=seconds, **options)
        each = (cpu_s(gateway.pid) - before) / max(told["messages"], 1) * 1e6
        spy.wait(seconds + 30)
        found = shares(raw.read_text())
    total = sum(found.values()) or 1
    print(f"{name}: {each:.1f} us of CPU per message, {told['errors']} errors, {total} samples")
    for stage, count in found.most_common():
        print(f"  {stage:26} {100 * count / total:5.1f} %  {each * count / total:7.2f} us")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a second each: proves only that it runs")
    parser.add_argument("--work", default="send_1,send_32,receive_32,receive_1")
    parser.add_argument("--broker", default="", help="else the embedded one")
    parser.add_argument("--transport", default="http2")
    given = parser.parse_args()
    if shutil.which("py-spy") is None:
        print("py-spy is not there: pip install py-spy")
        return 3
    options = ["--workers", "1", *(["--broker", given.broker, *CREATE_ON_USE] if given.broker else [])]
    listen = (f"grpc://127.0.0.1:0?transport={given.transport}",)
    with GatewayProcess(options=options, listen=listen) as gateway:
        load = Load(build())
        load.run(
            gateway.endpoint,
            "send",
            messages=2_000,
            topic="stages",
            connections=CLIENTS,
            calls=8,
            per_call=32,
        )
        for name in given.work.split(","):
            seconds = 1 if given.quick else 8
            look(gateway, load, name, WORKS[name].messages // (20 if given.quick else 1), seconds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
