"""A gateway of one's own for a test: a process on ports that the system chose.

with GatewayProcess() as gateway:
    ...  # clients connect to gateway.endpoint, tools to gateway.admin
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO
from urllib.parse import urlsplit

import popgate
from popgate.testing.variables import variables

_LINES_KEPT = 20_000
_STARTS_WITHIN_S = 240.0
_STOPS_WITHIN_S = 60.0
_ENDS_WITHIN_S = 60.0
_GONE_WITHIN_S = 240.0
"""The timeout for the exit status: a busy machine takes its time."""
_FREED_WITHIN_S = 100.0
"""A port: the system keeps that of a connection that has ended for a minute."""
_HEEDED = (signal.SIGHUP, signal.SIGINT) if sys.platform != "win32" else ()
_HEED = """
import os, signal, sys
numbers = sys.argv[1:sys.argv.index("--")]
for number in numbers:
    signal.signal(int(number), signal.SIG_DFL)
command = sys.argv[len(numbers) + 2:]
os.execv(command[0], command)
"""
"""A program that becomes another one, for which the signals that are named have their defaults."""
_SHARES_PORTS = sys.platform == "linux"


CREATE_ON_USE = ("--set", "topics.auto_create=true", "--set", "groups.auto_create=true")
"""Options of a gateway that makes topics and groups on first use also before a RocketMQ cluster."""


class GatewayDidNotStart(Exception):
    """The process ended, or was not ready in time; the text has its output."""


class GatewayProcess:
    """`python -m popgate serve`, started, watched and ended by its own process id.

    `data` is the folder of everything local, kept afterwards; without one there is a temporary
    folder that goes with the process. `options` are further flags of `serve`. Variables
    `POPGATE_…` of the caller are not passed on, those in `environment` are. `holds_ports`: those of its
    doors are chosen here and kept until it is closed, also while it does not listen at them, for another one
    that is to serve there. It ends without a lame-duck time, and
    speaks TLS only at addresses that say so, unless options or variables say otherwise.
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
        holds_ports: bool = False,
    ) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if data is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="popgate-")
            data = Path(self._temporary.name)
        self.data = data.resolve()
        self.addresses: list[str] = []
        self.admin = ""
        self._held: dict[str, socket.socket] = {}
        """By address: ports of the one before it or of its own choice, until this one is closed or has a
        successor of its own."""
        self._listen = tuple(self._chosen(address) if holds_ports else address for address in listen)
        self._admin_wanted = admin
        self._options = tuple(options)
        self._environment = dict(environment or {})
        self._python = python
        self._process: subprocess.Popen[str] | None = None
        self._comes_after = False
        """Whether its predecessor has ended, so that its ports are not free for others."""
        self._out: deque[str] = deque(maxlen=_LINES_KEPT)
        self._err: deque[str] = deque(maxlen=_LINES_KEPT)
        self._readers: list[threading.Thread] = []
        self._ready = threading.Event()

    def __repr__(self) -> str:
        state = "not started" if self._process is None else self._process.poll()
        status = (
            f"pid {self._process.pid}" if self._process is not None and state is None else f"ended {state}"
        )
        return f"<GatewayProcess {status} {' '.join(self.addresses)}>"

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
        """Its standard output so far."""
        return "".join(self._out)

    @property
    def log(self) -> str:
        """Its standard error so far."""
        return "".join(self._err)

    # -- its life ---------------------------------------------------------------------------------

    def start(self, timeout: float = _STARTS_WITHIN_S) -> GatewayProcess:
        """Start it and wait until it is ready. Raises GatewayDidNotStart."""
        self._hold(_FREED_WITHIN_S)
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
        process = subprocess.Popen(  # noqa: S603 - our own program, without a shell
            [*self._heeding(), *command, *self._options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=self._full_environment(),
        )
        readers = [
            threading.Thread(target=read, args=(stream,), daemon=True, name=f"gateway-{process.pid}")
            for read, stream in ((self._read_output, process.stdout), (self._read_log, process.stderr))
        ]
        for reader in readers:
            reader.start()
        # Last: another thread may end it from now on, and waits for its readers.
        self._readers, self._process = readers, process
        said_something = self._ready.wait(timeout)
        if "ready" not in self.output.split():
            if said_something:  # its output is closed: it is ending
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_ENDS_WITHIN_S)
            code = process.poll()
            self.kill()
            state = "was not ready in time" if code is None else f"ended with {code}"
            raise GatewayDidNotStart(f"the gateway {state}:\n{self.output}{self.log}")
        return self

    def terminate(self, timeout: float = _GONE_WITHIN_S) -> int:
        """Ask it to stop (SIGTERM) and wait; its exit code. Raises subprocess.TimeoutExpired."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def kill(self) -> int:
        """End it at once (SIGKILL), with all processes that it made, as a crash would; its exit code."""
        if self._started().poll() is None:
            # All end as one: what stands still starts no other, and none sees another go.
            self.signal(signal.SIGSTOP)
            self._stands_still()
            made = self.processes
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in made:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
        self.signal(signal.SIGKILL)
        return self.wait()

    def _stands_still(self) -> None:
        """Wait until it has stopped, or is gone."""
        end = time.monotonic() + _STOPS_WITHIN_S
        while time.monotonic() < end:
            try:
                state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                return
            if state in "TtZX":
                return
            time.sleep(0.001)

    @property
    def processes(self) -> list[int]:
        """Those that it made and that run now, by their ids: with several workers, these."""
        pid = self.pid
        try:
            return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []

    def signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self._started().poll() is None:
            self._started().send_signal(number)

    def wait(self, timeout: float | None = _GONE_WITHIN_S) -> int:
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
            listen=_again(self.addresses, self._listen),
            admin=self.admin or self._admin_wanted,
            options=self._options if options is None else options,
            environment=self._environment,
            python=self._python,
        )
        # The folder goes with the last one that uses it.
        after._temporary, self._temporary = self._temporary, None
        after._held, self._held = self._held, {}
        after._comes_after = self._process is not None and self._process.poll() is not None
        after._hold()
        return after

    def close(self) -> None:
        """Stop it if it runs (killed when it does not stop), and remove a temporary folder."""
        if self._process is not None and self._process.poll() is None:
            try:
                self.terminate(_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.kill()
        for link in self._held.values():
            link.close()
        self._held.clear()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def __enter__(self) -> GatewayProcess:
        if self._process is None:
            try:
                self.start()
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside -----------------------------------------------------------------------------------

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("the gateway was not started")
        return self._process

    def _chosen(self, address: str) -> str:
        """The address with a port that is held, where it leaves that to the system."""
        place, mark, options = address.partition("?")
        if not place.endswith(":0") or not _SHARES_PORTS:
            return address
        link = _bound(place)
        if link is None:
            return address  # the gateway says why it cannot be had
        named = f"{place.removesuffix('0')}{link.getsockname()[1]}{mark}{options}"
        self._held[named] = link
        return named

    def _hold(self, within_s: float = 0.0) -> None:
        """Have the ports of the one before it kept for this one, for as long as it may be started again.

        A connection that was made in the moment between may have one: it is waited for. Only where two may
        be bound to one port so.
        """
        end = time.monotonic() + within_s
        for address in (*self._listen, self._admin_wanted) if self._comes_after and _SHARES_PORTS else ():
            while _names_a_port(address) and address not in self._held:
                link = _bound(address)
                if link is not None:
                    self._held[address] = link
                elif time.monotonic() >= end:
                    break  # the gateway says so
                else:
                    time.sleep(0.1)

    def _heeding(self) -> Sequence[str]:
        """A command prefix that restores the signals that the caller's parent had ignored.

        `nohup` and shells that start background jobs ignore some, and processes inherit that.
        """
        if all(signal.getsignal(number) != signal.SIG_IGN for number in _HEEDED):
            return ()
        # Not preexec_fn: other threads of ours may hold what it would need.
        return (self._python, "-I", "-S", "-c", _HEED, *(str(int(number)) for number in _HEEDED), "--")

    def _full_environment(self) -> dict[str, str]:
        kept = {name: value for name, value in variables().items() if not name.startswith("POPGATE_")}
        # The same popgate as the caller's, whether that is installed or a checkout.
        home = str(Path(popgate.__file__).resolve().parent.parent)
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, (home, kept.get("PYTHONPATH", ""))))
        # A certificate for each would take longer than the gateway's start.
        own = {"POPGATE_STOPPING__LAME_DUCK_S": "0", "POPGATE_TLS__MODE": "off"}
        return {**kept, **own, **self._environment}

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


def _names_a_port(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.hostname and parts.port)


def _bound(address: str) -> socket.socket | None:
    """Bind the port of an address without listening.

    The system does not assign it to others, but it can still be bound by number. None: the port is in use.
    """
    parts = urlsplit(address)
    link = socket.socket(socket.AF_INET6 if ":" in str(parts.hostname) else socket.AF_INET)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        link.bind((parts.hostname, parts.port))
    except OSError:
        link.close()
        return None
    return link


def _again(addresses: Sequence[str], listen: Sequence[str]) -> Sequence[str]:
    """The doors at the addresses that they got, with the options that they had; those wanted before that."""
    if len(addresses) != len(listen):
        return addresses or listen
    pairs = zip(addresses, listen, strict=True)
    return [
        f"{address}{mark}{options}" for address, url in pairs for _, mark, options in [url.partition("?")]
    ]


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
