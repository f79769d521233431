"""Runs a gateway in this process: start, report the addresses, wait for a signal, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING

from proxy.announcement import say
from proxy.app import App, CannotStart, build
from proxy.garbage_collection import serve_long
from proxy.lifetime.end_signals import Signals
from proxy.lifetime.terminal import Terminal
from proxy.lifetime.watchdog import Watchdog
from proxy.logs import logger, loop_trouble, set_up_logs

if TYPE_CHECKING:
    from proxy.config.settings import Settings

__all__ = ["CannotStart", "run"]

_log = logger("popgate.running")


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, or until the terminal is closed, then stop cleanly.

    Another SIGHUP has the settings read anew. Raises CannotStart, SettingsWrong.
    """
    # gRPC's core writes lines of its own to standard error, past the log; who wants them asks for them.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    app = build(settings)
    set_up_logs(settings.log)
    allow_many_files()
    # Never called off: what the interpreter waits for behind this may hang, too.
    watchdog = Watchdog()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(app, watchdog.arm, Terminal()))


async def _serve(
    app: App,
    ends_within: Callable[[float], None] = lambda _seconds: None,
    terminal: Terminal | None = None,
) -> None:
    """`ends_within` is called with the seconds until the process must be gone, when it is told to stop.

    With a `terminal` SIGHUP stops the gateway only if that was closed; otherwise it reloads the settings.
    """
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(loop_trouble)

    def hung_up() -> bool:
        if terminal is None or terminal.is_gone() or app.reloader is None:
            return False
        if app.state == "ready":
            _log.info("asked to reload: the settings are read")
            app.reloader.ask()
        elif app.state == "starting":
            _log.warning("asked to reload while starting: ask again when it is ready")
        return True

    signals = Signals(loop, hung_up)
    signals.on_first(lambda: ends_within(app.drain_s))
    try:
        started = await signals.first_of(app.start())
        if started:
            say(*(f"listening {address}" for address in app.addresses))
            say(*([f"sharing {app.shared_at}"] if app.shared_at else []))
            say(*([f"admin {app.admin_address}"] if app.admin_address else []), "ready")
            serve_long()
            await signals.wait()
            _log.info("stopping", drain_s=app.drain_s, lame_duck_s=app.lame_s)
            drained = await signals.second_of(app.drain())
            if not drained:
                _log.warning("a second signal: the drain is cut short")
        await app.stop()
        if started:
            farewell = app.farewell()
            _log.info("stopped", **farewell)
            say("stopped " + " ".join(f"{name}={count}" for name, count in farewell.items()))
    finally:
        signals.close()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def allow_many_files() -> None:
    """A gateway has a descriptor per connection: take as many as this user may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
