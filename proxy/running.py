"""Runs a gateway in this process until a signal: start, say so, wait, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from proxy.app import App, CannotStart, build
from proxy.logs import logger, loop_trouble, set_up_logs

if TYPE_CHECKING:
    from proxy.settings import Settings

__all__ = ["CannotStart", "run"]

_log = logger("popgate.running")


def run(settings: Settings) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, then stop cleanly. Raises CannotStart, SettingsWrong."""
    # gRPC's core writes lines of its own to standard error, past the log; who wants them asks for them.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    app = build(settings)
    set_up_logs(settings.log)
    _allow_many_files()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(app))


async def _serve(app: App) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(loop_trouble)
    signals = _Signals(loop)
    try:
        started = await signals.first_of(app.start())
        if started:
            _say(*(f"listening {address}" for address in app.addresses))
            _say(*([f"sharing {app.shared_at}"] if app.shared_at else []))
            _say(*([f"admin {app.admin_address}"] if app.admin_address else []), "ready")
            # What is loaded by now stays for good: the collector need not look at it again.
            gc.freeze()
            await signals.wait()
            _log.info("stopping", drain_s=app.drain_s)
            drained = await signals.second_of(app.drain())
            if not drained:
                _log.warning("a second signal: the drain is cut short")
        await app.stop()
        if started:
            told = app.farewell()
            _log.info("stopped", **told)
            _say("stopped " + " ".join(f"{name}={count}" for name, count in told.items()))
    finally:
        signals.close()


class _Signals:
    """Counts SIGTERM, SIGINT and SIGHUP, and lets work be cut short by the first or the second of them.

    SIGHUP comes when a terminal is closed; who started us with `nohup` does not want it to count.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._first = loop.create_future()
        self._second = loop.create_future()
        ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        self._numbers = (signal.SIGTERM, signal.SIGINT, *(() if ignored else (signal.SIGHUP,)))
        for number in self._numbers:
            loop.add_signal_handler(number, self._came, number)

    def close(self) -> None:
        for number in self._numbers:
            self._loop.remove_signal_handler(number)

    async def wait(self) -> None:
        await self._first

    async def first_of(self, work: Coroutine[object, object, None]) -> bool:
        return await self._unless(self._first, work)

    async def second_of(self, work: Coroutine[object, object, None]) -> bool:
        return await self._unless(self._second, work)

    async def _unless(self, signalled: asyncio.Future[None], work: Coroutine[object, object, None]) -> bool:
        """Whether the work was done before the signal; else it is cancelled. Raises what the work raises."""
        task = self._loop.create_task(work)
        await asyncio.wait((task, signalled), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            return False
        task.result()
        return True

    def _came(self, number: signal.Signals) -> None:
        for future in (self._first, self._second):
            if not future.done():
                future.set_result(None)
                return


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _allow_many_files() -> None:
    """A gateway has a descriptor per connection: take as many as this user may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _say(*lines: str) -> None:
    """Plain lines on standard output, for people and for programs that start a gateway."""
    # Nobody may be there to read it; that is no reason not to serve.
    with contextlib.suppress(OSError):
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
