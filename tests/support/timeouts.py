"""A test that runs into its timeout fails, whatever runs in that moment, and never hangs the run.

pytest-timeout raises once, in whatever the main thread does then. In a callback or task of an event loop that
is not the test's own, asyncio keeps what was raised, and the test waits for ever; and whatever a failed test
ends after that has no limit at all. So here

- it is raised again every few seconds, until it ends the test, which has failed even if it ends by itself;
- the end of a failed test has as long as the test had;
- a process in which that does not help is ended a minute later, with the stacks of all threads on its error
  output. It is a worker of xdist in most runs: its test has failed then, and another worker runs the rest.
"""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
from collections.abc import Generator
from typing import Any

import pytest
import pytest_timeout
from _pytest.faulthandler import fault_handler_stderr_fd_key

AGAIN_S = 5.0
"""Time between two alarms of a test that is over its timeout."""
GRACE_S = 60.0
"""Time after the timeout before the process is ended."""
_TIMED_OUT = pytest.StashKey["float | None"]()
"""The timeout of a test that ran into it and has not failed yet."""
_SETTINGS = pytest.StashKey[Any]()
"""pytest-timeout's settings of a test that has a timeout."""


class Timeouts:
    """A plugin around pytest-timeout. `again_s`, `grace_s`: as the constants."""

    def __init__(self, again_s: float = AGAIN_S, grace_s: float = GRACE_S) -> None:
        self._again_s = again_s
        self._grace_s = grace_s
        self._limited: pytest.Item | None = None
        """The test whose time is limited now."""
        self._in_a_phase = False
        """Whether what is raised now ends a phase of the test, and not the run."""

    @pytest.hookimpl(wrapper=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> Generator[None, Any, Any]:
        result = yield
        self._limited = item
        item.stash[_SETTINGS] = settings
        alarm = signal.getsignal(signal.SIGALRM)
        if callable(alarm):  # else its method is a thread, which ends the process itself

            def ring(signum: int, frame: Any) -> None:
                if not self._in_a_phase:
                    return  # it comes again
                try:
                    alarm(signum, frame)
                except pytest.fail.Exception:
                    item.stash[_TIMED_OUT] = settings.timeout
                    _print_tasks()
                    raise

            signal.signal(signal.SIGALRM, ring)
            signal.setitimer(signal.ITIMER_REAL, settings.timeout, self._again_s)
        if not pytest_timeout.is_debugging():
            faulthandler.dump_traceback_later(
                settings.timeout + self._grace_s,
                exit=True,
                file=item.config.stash.get(fault_handler_stderr_fd_key, sys.__stderr__),
            )
        return result

    @pytest.hookimpl(wrapper=True, optionalhook=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> Generator[None, Any, Any]:
        faulthandler.cancel_dump_traceback_later()
        self._limited = None
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        return (yield from self._phase())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        return (yield from self._phase())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        # pytest-timeout limits nothing any more from the failure of a test on, so that a debugger may follow.
        settings = item.stash.get(_SETTINGS, None)
        if settings is not None and not settings.func_only and self._limited is not item:
            item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
        return (yield from self._phase())

    def _phase(self) -> Generator[None, Any, Any]:
        self._in_a_phase = True
        try:
            return (yield)
        finally:
            self._in_a_phase = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        report: pytest.TestReport = yield
        timeout_s = item.stash.get(_TIMED_OUT, None)
        if timeout_s is not None and (report.failed or report.when != "setup"):
            item.stash[_TIMED_OUT] = None
            if not report.failed:
                report.outcome = "failed"
                report.longrepr = f"it ended, but only after its timeout of {timeout_s:g} s"
        return report


def _print_tasks() -> None:
    """What the tasks of the running loop wait for, if there is one."""
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return
    for task in tasks:
        task.print_stack(file=sys.stderr)
