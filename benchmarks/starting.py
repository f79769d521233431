"""How long the gateway takes until it is ready, and what it holds in memory when idle.

    python benchmarks/starting.py            # five starts
    python benchmarks/starting.py --quick    # one; proves only that it runs

Each start has a new data folder and ports that the system chooses. Seconds are wall time from the
start of the process to its line "ready"; MB are the proportional set size of its processes a second
later. The median is told.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.beside.processes import memory_mb

ROOT = Path(__file__).resolve().parent.parent
ADDRESSES = ("--listen", "grpc://127.0.0.1:0", "--admin", "http://127.0.0.1:0")


def start_once() -> tuple[float, float]:
    """Seconds until ready, and MB of memory when idle."""
    with tempfile.TemporaryDirectory() as data:
        begin = time.perf_counter()
        gateway = subprocess.Popen(
            [sys.executable, "-m", "popgate", "serve", "--data", data, *ADDRESSES],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        try:
            assert gateway.stdout is not None
            if not any(line.strip() == "ready" for line in gateway.stdout):
                raise SystemExit("the gateway did not start")
            seconds = time.perf_counter() - begin
            time.sleep(1)
            memory = memory_mb(gateway.pid)["pss_mb"]
        finally:
            gateway.terminate()
            gateway.wait(240)
    return seconds, memory


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    starts = [start_once() for _ in range(1 if parser.parse_args().quick else 5)]
    print(f"gateway.ready {statistics.median(seconds for seconds, _ in starts):.2f} s")
    print(f"gateway.idle {statistics.median(memory for _, memory in starts):.1f} MB")


if __name__ == "__main__":
    main()
