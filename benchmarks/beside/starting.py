"""The time until a gateway serves, and what a request costs a plain HTTP/2 server in C beside ours."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.beside.amounts import CLIENTS, Amounts
from benchmarks.beside.driving import Load
from benchmarks.beside.processes import cpu_s
from benchmarks.beside.results import Results, Run
from benchmarks.beside.sides import OURS, Town
from popgate.testing.rocketmq.ports import free_ports, is_open

NGHTTPD = "nghttpd"
PLACE = "apache.rocketmq.v2.MessagingService/SendMessage"
PLAIN_MESSAGES = 200_000
WARM = 5_000


def ready(town: Town, amounts: Amounts, results: Results) -> None:
    """Wall time from the start of the process until it says that it serves, and its port is open."""
    for turn in range(amounts.starts):
        for name in town.names if turn % 2 == 0 else town.names[::-1]:
            with results.trying(f"{town.tier}, ready, {name}"), town.start(name) as side:
                results.add(Run(side.tier, "ready", side.name, turn, {"ready_s": side.ready_s}))


def plain(town: Town, load: Load, amounts: Amounts, results: Results) -> None:
    """CPU of a POST of a send's bytes that nghttpd answers with a small file, and of calls to ours."""
    if shutil.which(NGHTTPD) is None:
        results.note("nghttpd: left out, it is not on this machine (Debian: nghttp2-server)")
        return
    with town.start(OURS) as side, _nghttpd() as (pid, target):
        load.run(target, "plain", messages=WARM, connections=CLIENTS)
        load.run(side.target, "send", topic="plain", messages=WARM, connections=CLIENTS)
        for turn in range(amounts.plain_rounds):
            for name, at, process, work in (
                (NGHTTPD, target, pid, "plain"),
                ("ours_route", side.target, side.pid, "route"),
                ("ours_send", side.target, side.pid, "send"),
            ):
                before = cpu_s(process)
                told = load.run(
                    at,
                    work,
                    topic="plain",
                    connections=CLIENTS,
                    messages=int(PLAIN_MESSAGES * amounts.share),
                    seconds=min(amounts.seconds, 3.0),
                )
                figures = {
                    "cpu_us": (cpu_s(process) - before) / max(told["messages"], 1) * 1e6,
                    "rate": told["rate"],
                }
                results.add(
                    Run("embedded", "nghttpd", name, turn, figures, told["errors"], told["said"] or [])
                )


@contextlib.contextmanager
def _nghttpd() -> Iterator[tuple[int, str]]:
    """Its process id and its address; one worker, serving a file of 60 bytes without TLS."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / PLACE
        answer.parent.mkdir()
        answer.write_bytes(b"x" * 60)
        port = free_ports()
        process = subprocess.Popen(
            [NGHTTPD, "--no-tls", "-n", "1", "-a", "127.0.0.1", "-d", folder, str(port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            end = time.monotonic() + 10
            while not is_open(port):
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit("nghttpd did not start")
                time.sleep(0.02)
            yield process.pid, f"127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()
