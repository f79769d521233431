"""A gateway of one's own for a test: a process on ports that the system chose.

with GatewayProcess() as gateway:
    ...  # clients connect to gateway.endpoint, tools to gateway.admin
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

import popgate

_LINES_KEPT = 20_000


class GatewayDidNotStart(Exception):
    """The process ended, or was not ready in time; the text has what it printed."""


class GatewayProcess:
    """`python -m popgate serve`, started, watched and ended by its own process id.

    `data` is the folder of everything local, kept afterwards; without one there is a temporary
    folder that goes with the process. `options` are further flags of `serve`. Variables
    `POPGATE_…` of the caller are not passed on, those in `environment` are.
    """

    def __init__(
        self,
        data: Path | None = None,
        *,
        listen: Sequence[str] = ("grpc://127.0.0.1:0",),
        admin: str = "http://127.0.0.1:0",
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if data is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="popgate-")
            data = Path(self._temporary.name)
        self.data = data.resolve()
        self.addresses: list[str] = []
        self.admin = ""
        self._listen = tuple(listen)
        self._admin_wanted = admin
        self._options = tuple(options)
        self._environment = dict(environment or {})
        self._python = python
        self._process: subprocess.Popen[str] | None = None
        self._out: deque[str] = deque(maxlen=_LINES_KEPT)
        self._err: deque[str] = deque(maxlen=_LINES_KEPT)
        self._readers: list[threading.Thread] = []
        self._ready = threading.Event()

    def __repr__(self) -> str:
        state = "not started" if self._process is None else self._process.poll()
        told = f"pid {self._process.pid}" if self._process is not None and state is None else f"ended {state}"
        return f"<GatewayProcess {told} {' '.join(self.addresses)}>"

    # -- what it says -----------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """host:port of the first door, as clients want it."""
        return self.addresses[0].partition("://")[2]

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def output(self) -> str:
        """What it printed to standard output so far."""
        return "".join(self._out)

    @property
    def log(self) -> str:
        """What it printed to standard error so far."""
        return "".join(self._err)

    # -- its life ---------------------------------------------------------------------------------

    def start(self, timeout: float = 60.0) -> GatewayProcess:
        """Start it and wait until it is ready. Raises GatewayDidNotStart."""
        command = [
            self._python,
            "-m",
            "popgate",
            "serve",
            "--data",
            str(self.data),
            "--admin",
            self._admin_wanted,
        ]
        for address in self._listen:
            command += ["--listen", address]
        self._process = subprocess.Popen(  # noqa: S603 - our own program, without a shell
            [*command, *self._options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=self._full_environment(),
        )
        self._readers = [
            threading.Thread(target=read, args=(stream,), daemon=True, name=f"gateway-{self._process.pid}")
            for read, stream in (
                (self._read_output, self._process.stdout),
                (self._read_log, self._process.stderr),
            )
        ]
        for reader in self._readers:
            reader.start()
        said_something = self._ready.wait(timeout)
        if "ready" not in self.output.split():
            if said_something:  # its output is closed: it is ending
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(10.0)
            code = self._process.poll()
            self.kill()
            state = "was not ready in time" if code is None else f"ended with {code}"
            raise GatewayDidNotStart(f"the gateway {state}:\n{self.output}{self.log}")
        return self

    def terminate(self, timeout: float = 60.0) -> int:
        """Ask it to stop (SIGTERM) and wait; its exit code. Raises subprocess.TimeoutExpired."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def kill(self) -> int:
        """End it at once (SIGKILL), as a crash would; its exit code."""
        self.signal(signal.SIGKILL)
        return self.wait()

    def signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self._started().poll() is None:
            self._started().send_signal(number)

    def wait(self, timeout: float | None = 60.0) -> int:
        """Wait for its end; the exit code. Raises subprocess.TimeoutExpired."""
        code = self._started().wait(timeout)
        for reader in self._readers:
            reader.join(timeout)
        for stream in (self._started().stdout, self._started().stderr):
            if stream is not None:
                stream.close()
        return code

    def successor(self, *, options: Sequence[str] | None = None) -> GatewayProcess:
        """One more, not started, on the same data and the same addresses; for after the end of this one.

        With the same `options`, unless others are given.
        """
        after = GatewayProcess(
            self.data,
            listen=self.addresses or self._listen,
            admin=self.admin or self._admin_wanted,
            options=self._options if options is None else options,
            environment=self._environment,
            python=self._python,
        )
        # The folder goes with the last one that uses it.
        after._temporary, self._temporary = self._temporary, None
        return after

    def close(self) -> None:
        """Stop it if it runs (killed when it does not stop), and remove a temporary folder."""
        if self._process is not None and self._process.poll() is None:
            try:
                self.terminate(30.0)
            except subprocess.TimeoutExpired:
                self.kill()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def __enter__(self) -> GatewayProcess:
        return self if self._process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside -----------------------------------------------------------------------------------

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("the gateway was not started")
        return self._process

    def _full_environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("POPGATE_")}
        # The same popgate as the caller's, whether that is installed or a checkout.
        home = str(Path(popgate.__file__).resolve().parent.parent)
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, (home, kept.get("PYTHONPATH", ""))))
        return {**kept, **self._environment}

    def _read_output(self, stream: IO[str]) -> None:
        for line in stream:
            word, _, rest = line.strip().partition(" ")
            if word == "listening":
                self.addresses.append(rest)
            elif word == "admin":
                self.admin = rest
            self._out.append(line)
            if word == "ready":
                self._ready.set()
        self._ready.set()

    def _read_log(self, stream: IO[str]) -> None:
        self._err.extend(stream)


@contextlib.asynccontextmanager
async def running_gateway(
    data: Path | None = None,
    *,
    listen: Sequence[str] = ("grpc://127.0.0.1:0",),
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[GatewayProcess]:
    """A `GatewayProcess` for `async with`; starting and stopping do not hold up the event loop."""
    gateway = GatewayProcess(data, listen=listen, options=options, environment=environment)
    try:
        await asyncio.to_thread(gateway.start)
        yield gateway
    finally:
        await asyncio.to_thread(gateway.close)
