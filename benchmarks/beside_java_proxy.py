"""The gateway and RocketMQ's own proxy, one after the other before the same broker, under the same load.

    python benchmarks/beside_java_proxy.py [--rounds N] [--messages N] [--quick] [--java-heap MB]

Starts a real RocketMQ, the Java proxy and this gateway on loopback, and `benchmarks/load` (Go) as their
client. In each round every work is done through one and then through the other. Told of each work: CPU
time of the gateway process per message (user and system, all its processes), messages per second, that
rate per core of the gateway, and latencies; then memory and the time until ready. Ratios are of one round,
ours to the Java proxy's; the table has the median over the rounds. Warm-up is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from popgate.testing import GatewayProcess
from popgate.testing.rocketmq import RocketMQ

LOAD = Path(__file__).resolve().parent / "load"
TICKS = os.sysconf("SC_CLK_TCK")
GATEWAYS = ("java", "ours")


@dataclass(frozen=True)
class Work:
    name: str
    kind: str
    per_call: int
    calls: int
    share: float
    """Of the messages of a round."""


WORKS = (
    Work("send, one per call", "send", 1, 32, 0.5),
    Work("send, 32 per call", "send", 32, 8, 1.0),
    Work("receive and acknowledge, 32 per call", "receive", 32, 8, 1.0),
    Work("receive and acknowledge, one per call", "receive", 1, 32, 0.1),
)


def family(pid: int) -> list[int]:
    """A process and those that it started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += family(int(child))
    return found


def cpu_s(pid: int) -> float:
    total = 0
    for one in family(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def memory_mb(pid: int) -> float:
    """Proportional set size of all its processes."""
    total = 0
    for one in family(pid):
        for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


@dataclass
class Side:
    """A gateway under load."""

    name: str
    pid: int
    target: str
    ready_s: float
    topic: str
    group: str
    idle_mb: float = 0.0
    loaded_mb: float = 0.0


class Bench:
    def __init__(self, program: Path, broker_pid: int) -> None:
        self._program = program
        self._broker_pid = broker_pid

    def run(self, side: Side, kind: str, *, per_call: int, calls: int, messages: int) -> dict[str, float]:
        """Raises SystemExit with what the load said when a call failed."""
        before, broker = cpu_s(side.pid), cpu_s(self._broker_pid)
        ended = subprocess.run(
            [
                str(self._program),
                *("-target", side.target, "-topic", side.topic, "-group", side.group),
                *("-work", kind, "-per-call", str(per_call), "-calls", str(calls)),
                *("-messages", str(messages)),
            ],
            capture_output=True,
            text=True,
            timeout=600,
        )
        if ended.returncode:
            raise SystemExit(f"{side.name}: {ended.stdout}{ended.stderr}")
        told = json.loads(ended.stdout)
        used = cpu_s(side.pid) - before
        done = told["messages"]
        latencies = told["send_ms"] if kind == "send" else told["receive_ms"]
        return {
            "cpu_us": used / done * 1e6,
            "broker_us": (cpu_s(self._broker_pid) - broker) / done * 1e6,
            "rate": told["rate"],
            "per_core": done / used,
            "p50": latencies["p50"],
            "p99": latencies["p99"],
            "p999": latencies["p999"],
        }


def measured(start: Callable[[], object]) -> float:
    begun = time.monotonic()
    start()
    return time.monotonic() - begun


def table(results: dict[tuple[str, str], list[dict[str, float]]]) -> None:
    figures = (
        ("cpu_us", "CPU of the gateway, us per message"),
        ("broker_us", "CPU of the broker, us per message"),
        ("rate", "messages per second"),
        ("per_core", "messages per second and core of the gateway"),
        ("p50", "p50, ms"),
        ("p99", "p99, ms"),
        ("p999", "p99.9, ms"),
    )
    for work in WORKS:
        print(f"{work.name}:")
        for key, words in figures:
            java, ours = (results[side, work.name] for side in GATEWAYS)
            ratios = [b[key] / a[key] for a, b in zip(java, ours, strict=True) if a[key]]
            middle = [statistics.median(one[key] for one in side) for side in (java, ours)]
            spread = f"{min(ratios):.2f}-{max(ratios):.2f}" if ratios else ""
            ratio = statistics.median(ratios) if ratios else float("nan")
            print(
                f"  {words:46} java {middle[0]:10.1f}  ours {middle[1]:10.1f}  ratio {ratio:6.2f}  {spread}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=64_000, help="of the greatest work, in each round")
    parser.add_argument("--warm", type=int, default=400_000, help="messages sent through each before that")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it works")
    parser.add_argument("--java-heap", type=int, default=512, help="of the Java proxy, in MB")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rounds, chosen.messages, chosen.warm = 1, 3_200, 3_200
    results: dict[tuple[str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "load"
        subprocess.run(["go", "build", "-o", str(program), "."], cwd=LOAD, check=True)
        quiet = {"transactionCheckInterval": "60000", "autoCreateTopicEnable": "true"}
        heap = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")
        with RocketMQ(settings=quiet, options=heap) as cluster:
            for name in GATEWAYS:
                cluster.admin(
                    "updateTopic", "-c", "DefaultCluster", "-t", f"load-{name}", "-r", "8", "-w", "8"
                )
                cluster.admin(
                    "updateSubGroup",
                    "-c",
                    "DefaultCluster",
                    "-g",
                    f"group-{name}",
                    "-s",
                    "true",
                    "-m",
                    "true",
                )
            begun = time.monotonic()
            proxy = cluster.start_proxy(options=("-Xms256m", f"-Xmx{chosen.java_heap}m"))
            java_s = time.monotonic() - begun
            gateway = GatewayProcess(Path(folder) / "data", options=("--broker", cluster.url))
            ours_s = measured(gateway.start)
            with gateway:
                sides = [
                    Side("java", proxy.pid, proxy.address, java_s, "load-java", "group-java"),
                    Side("ours", gateway.pid, gateway.endpoint, ours_s, "load-ours", "group-ours"),
                ]
                bench = Bench(program, cluster.master().pid)
                for side in sides:
                    side.idle_mb = memory_mb(side.pid)
                    bench.run(side, "send", per_call=32, calls=8, messages=chosen.warm)
                    bench.run(side, "receive", per_call=32, calls=8, messages=chosen.warm)
                for turn in range(chosen.rounds):
                    for work in WORKS:
                        for side in sides if turn % 2 == 0 else reversed(sides):
                            messages = int(chosen.messages * work.share)
                            if work.kind == "receive":
                                bench.run(side, "send", per_call=32, calls=8, messages=messages + 2_048)
                            told = bench.run(
                                side,
                                work.kind,
                                per_call=work.per_call,
                                calls=work.calls,
                                messages=messages,
                            )
                            results.setdefault((side.name, work.name), []).append(told)
                for side in sides:
                    side.loaded_mb = memory_mb(side.pid)
    table(results)
    print("ready and memory:")
    for side in sides:
        print(
            f"  {side.name}: ready after {side.ready_s:.2f} s, {side.idle_mb:.0f} MB idle,"
            f" {side.loaded_mb:.0f} MB after the load"
        )


if __name__ == "__main__":
    main()
