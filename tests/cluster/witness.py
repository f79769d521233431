"""How late the machine itself is while a test runs: told by two processes that talk to nobody else.

A promise in seconds cannot be judged on a machine that stands still for some of them. Two processes of the
witness hand a message to each other over loopback, as a client, a gateway and a broker do: one sleeps for
a moment, computes for a moment, and asks the other, which computes for as long and answers. What a round took
beyond its sleep and the CPU time that both were given is the time in which they were ready to go on and did
not run: timers that came late, turns on a core that others had, a loopback that was slow. It measures this
machine in these seconds, and nothing of the cluster: a gateway or a broker that waits, for an answer or for
a clock, makes no round longer.

    python witness.py FILE      # until its input ends; one line for each round: when it began, ended, and how
                                # late it was, in seconds of the monotonic clock
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

SLEEP_S = 0.024
WORK_S = 0.004
"""CPU time, of each of the two in each round: an eighth of a core."""
_TOLD_WITHIN_S = 100.0
_SPENT = struct.Struct("<d")


class Witness:
    """Runs from `start` to `stop`."""

    def __init__(self) -> None:
        self._file = Path()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="popgate-witness-")
        self._file = Path(self._folder.name) / "rounds"
        self._file.touch()
        command = [sys.executable, str(Path(__file__)), str(self._file)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE)
        return self

    def stop(self) -> None:
        if self.process is None or self._folder is None:
            return
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.process = None
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def lateness_s(self, begin: float, end: float) -> float:
        """By how many of the seconds between two times, now past, the machine was late.

        Of a round that is partly outside the same part counts. Raises AssertionError when the witness does
        not come so far, which is no matter of a slow machine.
        """
        until = time.monotonic() + _TOLD_WITHIN_S
        while True:
            rounds = self._rounds()
            if rounds and rounds[-1][1] >= end:
                return sum(_share(one, begin, end) for one in rounds)
            assert self.process is not None
            assert self.process.poll() is None, "the witness ended"
            assert time.monotonic() < until, "the witness does not go on"
            time.sleep(0.05)

    def _rounds(self) -> list[tuple[float, float, float]]:
        """Those that are written whole."""
        lines = self._file.read_text().split("\n")[:-1]
        return [tuple(map(float, line.split())) for line in lines]  # type: ignore[misc]


def _share(one: tuple[float, float, float], begin: float, end: float) -> float:
    began, ended, late = one
    inside = min(ended, end) - max(began, begin)
    return late * inside / (ended - began) if inside > 0 else 0.0


# -- the two processes --------------------------------------------------------------------------------


def work() -> float:
    """Compute for a moment; the CPU time that this took."""
    began = time.process_time()
    while (spent := time.process_time() - began) < WORK_S:
        sum(range(500))
    return spent


def reply(connection: socket.socket) -> None:
    """Answer each question with the CPU time of its answer, until there are no more."""
    while connection.recv(1):
        connection.sendall(_SPENT.pack(work()))


def watch(connection: socket.socket, file: Path, over: threading.Event) -> None:
    with file.open("w", buffering=1) as told:
        while not over.is_set():
            began = time.monotonic()
            time.sleep(SLEEP_S)
            spent = work()
            connection.sendall(b"?")
            (theirs,) = _SPENT.unpack(connection.recv(_SPENT.size, socket.MSG_WAITALL))
            ended = time.monotonic()
            late = max(ended - began - SLEEP_S - spent - theirs, 0.0)
            told.write(f"{began:.6f} {ended:.6f} {late:.6f}\n")


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    if os.fork() == 0:
        reply(socket.create_connection(listener.getsockname()))
        return
    connection, _ = listener.accept()
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), over.set()), daemon=True).start()
    watch(connection, Path(sys.argv[1]), over)
    connection.close()
    os.wait()


if __name__ == "__main__":
    main()
