"""A server of RocketMQ as a process: started, monitored, stopped by its id, and never left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from popgate.errors import PeerWireError
from popgate.testing.made import Missing
from popgate.testing.rocketmq import reaper
from popgate.testing.variables import variables

STARTED_WITHIN_S = 300.0
"""A broker is ready after 8 s; machines that test are busy. One that fails ends, which is seen at once."""
STOPPED_WITHIN_S = 120.0
"""After SIGTERM a broker takes up to 7 s, on a busy machine much longer. One that is killed after that does
not unregister: its name servers still list it."""
_POLLED_EVERY_S = 0.05
_TRIES = 4
_PORT_IS_TAKEN = "Address already in use"
_LONGEST_REPORT = 6_000

_OPEN_MODULES = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
)
QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError")
"""A virtual machine that starts soon and takes little; not one to measure."""


def environment_of(home: Path) -> dict[str, str]:
    """The environment of a RocketMQ program with its home in a folder.

    Settings of the caller's clients are left out.
    """
    kept = {
        name: value
        for name, value in variables().items()
        if name not in ("NAMESRV_ADDR", "JAVA_TOOL_OPTIONS")
    }
    return {**kept, "ROCKETMQ_HOME": str(home)}


def java() -> str:
    """Raises Missing."""
    path = shutil.which("java")
    if path is None:
        raise Missing("java is not on this machine")
    return path


class RocketMQDidNotStart(Exception):
    """A server ended, or was not ready in time; the text has the end of its log."""


class Reaper:
    """Has processes ended and folders removed when this process is gone."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own program, without a shell
            [sys.executable, "-I", "-S", str(Path(reaper.__file__))],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def tell(self, line: str) -> None:
        """One line, as `reaper.watch` reads them; nothing after `close`."""
        pipe = self._pipe
        if not pipe.closed:
            with contextlib.suppress(BrokenPipeError):
                pipe.write(f"{line}\n")
                pipe.flush()

    def close(self) -> None:
        """Have it do its work now."""
        with contextlib.suppress(BrokenPipeError):
            self._pipe.close()
        self._process.wait()

    @property
    def _pipe(self) -> IO[str]:
        if self._process.stdin is None:
            raise RuntimeError("it was started with a pipe")
        return self._process.stdin


class JavaServer:
    """A Java program in a folder of its own. `address` is where it serves, once it was started."""

    def __init__(
        self,
        name: str,
        main: str,
        *,
        jars: Path,
        folder: Path,
        reaper: Reaper,
        arguments: Callable[[JavaServer], Sequence[str]],
        says: str,
        ready: Callable[[JavaServer], bool],
        options: Sequence[str],
    ) -> None:
        """`arguments` may write files and choose `port`, each time.

        It is ready when it has printed `says`, and when `ready`, which is polled, returns true:
        before that another process may answer at its port.
        """
        self.name = name
        self.folder = folder
        self.port = 0
        self._main = main
        self._jars = jars
        self._reaper = reaper
        self._arguments = arguments
        self._says = says.encode()
        self._ready = ready
        self._options = tuple(options)
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._printed_before = 0
        self._was_ready = False

    def __repr__(self) -> str:
        return f"<JavaServer {self.name} {self.address} {f'pid {self.pid}' if self.runs else 'not running'}>"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    # -- its life ---------------------------------------------------------------------------------

    def start(self) -> JavaServer:
        """Start it and wait until it is ready; after a stop on the same port. Raises RocketMQDidNotStart."""
        self.launch()
        self.wait_until_ready()
        return self

    def launch(self) -> None:
        """Start it and do not wait; one that ended by itself may be started again."""
        if self.runs:
            raise RuntimeError(f"{self.name} runs already")
        self.wait()
        home = self.folder / "home"
        (home / "conf").mkdir(parents=True, exist_ok=True)
        arguments = self._arguments(self)
        self._output = (self.folder / "output.log").open("ab")
        self._printed_before = self._output.tell()
        self._process = subprocess.Popen(  # noqa: S603 - a program of our choice, without a shell
            [
                java(),
                *_OPEN_MODULES,
                f"-Duser.home={home}",
                "-Drocketmq.client.logUseSlf4j=true",
                *self._options,
                "-cp",
                str(self._jars / "*"),
                self._main,
                *arguments,
            ],
            cwd=home,
            env=environment_of(home),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reaper.tell(f"+{self._process.pid}")

    def wait_until_ready(self) -> None:
        """Raises RocketMQDidNotStart."""
        for tries_left in reversed(range(_TRIES)):
            end = time.monotonic() + STARTED_WITHIN_S
            while self.runs and time.monotonic() < end:
                with contextlib.suppress(OSError, PeerWireError):
                    if self._has_said_so() and self._ready(self):
                        self._was_ready = True
                        return
                time.sleep(_POLLED_EVERY_S)
            code = self._process.poll() if self._process is not None else None
            words = self.last_words()
            self.kill()
            if _PORT_IS_TAKEN not in words or self._was_ready or not tries_left:
                state = (
                    f"ended with {code}" if code is not None else f"was not ready in {STARTED_WITHIN_S:.0f} s"
                )
                raise RocketMQDidNotStart(f"{self.name} {state}:\n{words}")
            self.port = 0  # somebody was quicker: others are chosen
            (self.folder / "output.log").unlink()
            self.launch()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that does not end it in time."""
        self.signal(signal.SIGTERM)
        try:
            self.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.signal(signal.SIGKILL)
        self.wait()

    def signal(self, number: int) -> None:
        """Send a signal, if it still runs; SIGSTOP and SIGCONT make a server that hangs."""
        if self.runs:
            os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> None:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        if self._process is None:
            return
        self._process.wait(timeout)
        self._reaper.tell(f"-{self._process.pid}")
        if self._output is not None:
            self._output.close()

    # -- what it says -----------------------------------------------------------------------------

    def _has_said_so(self) -> bool:
        with (self.folder / "output.log").open("rb") as output:
            output.seek(self._printed_before)
            return self._says in output.read()

    def last_words(self) -> str:
        """The end of its output and logs."""
        logs = sorted((self.folder / "home" / "logs").rglob("*.log"))
        files = [self.folder / "output.log", *(log for log in logs if log.stem in _MAIN_LOGS)]
        outputs = (
            path.read_bytes()[-_LONGEST_REPORT:].decode(errors="replace") for path in files if path.exists()
        )
        return "\n".join(text.strip() for text in outputs if text.strip())


_MAIN_LOGS = ("broker", "namesrv", "controller", "proxy")
