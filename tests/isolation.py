"""What belongs to the whole process is after a test as it was before it.

A gateway that runs inside of a test sets up the log, the collector of cycles, signals and the environment for
a process of its own. Tests that come later would meet that, or a log whose stream was closed meanwhile: they
would pass or fail by what ran before them.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator

import structlog

import tests.support.waiting  # noqa: F401 - measures at the start of a run, before workers begin

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE)


@contextlib.contextmanager
def process_kept() -> Iterator[None]:
    """Restore at the end: log, environment, signals, the collector of cycles and hook for errors."""
    with contextlib.ExitStack() as stack:
        for keep in (_log_kept, _environment_kept, _signals_kept, _collector_kept, _hook_kept):
            stack.enter_context(keep())
        yield


@contextlib.contextmanager
def _log_kept() -> Iterator[None]:
    configured, told = structlog.is_configured(), structlog.get_config().copy()
    root = logging.getLogger()
    level, disabled, ours = root.level, root.manager.disable, _our_handlers()
    levels = {name: one.level for name, one in _loggers().items()}
    yield
    for handler in _our_handlers():
        if handler not in ours:
            root.removeHandler(handler)
    if root.level != level:
        root.setLevel(level)
    if root.manager.disable != disabled:
        logging.disable(disabled)
    for name, one in _loggers().items():
        if one.level != levels.get(name, logging.NOTSET):  # to set one makes all forget what they know
            one.setLevel(levels.get(name, logging.NOTSET))
    if configured:
        structlog.configure(**told)
    else:
        structlog.reset_defaults()


def _our_handlers() -> list[logging.Handler]:
    """Those that `proxy.logs` put there; others are pytest's."""
    return [one for one in logging.getLogger().handlers if getattr(one, "from_popgate", False)]


def _loggers() -> dict[str, logging.Logger]:
    every = logging.Logger.manager.loggerDict.items()
    return {name: one for name, one in every if isinstance(one, logging.Logger)}


@contextlib.contextmanager
def _environment_kept() -> Iterator[None]:
    # pytest's own variable tells which test runs, and in which step.
    before = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    yield
    for name in [name for name in os.environ if not name.startswith("PYTEST_") and name not in before]:
        del os.environ[name]
    os.environ.update(before)


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)


@contextlib.contextmanager
def _collector_kept() -> Iterator[None]:
    enabled, thresholds = gc.isenabled(), gc.get_threshold()
    yield
    if gc.get_threshold() != thresholds:
        # Something served, and froze what was there (`proxy.garbage_collection`). How much is frozen is not
        # asked about: that counts every object, for each test.
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        gc.collect()
        gc.freeze()
    if enabled and not gc.isenabled():
        gc.enable()


@contextlib.contextmanager
def _hook_kept() -> Iterator[None]:
    before = sys.excepthook
    yield
    sys.excepthook = before
