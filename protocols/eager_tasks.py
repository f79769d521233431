"""Runs the coroutine of a call at once and without an asyncio task, which would cost more than most calls.

`EagerTask` offers what coroutines use of a task (`asyncio.current_task`, `cancel`, `cancelling`,
`uncancel`), but it runs its first step where it is started, and most calls of a busy gateway end with
it, or with one more. Source: "Extending" in asyncio's documentation, "Task lifetime support".
"""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task  # documented for tasks of other makes
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, Final

_OVER: Final = object()
"""What comes after a coroutine's last step."""


class EagerTask:
    """A running coroutine without a result. `on_end` gets the exception that ends it (CancelledError too)."""

    __slots__ = (
        "__weakref__",
        "_cancelling",
        "_context",
        "_coroutine",
        "_loop",
        "_must_cancel",
        "_on_end",
        "_over",
        "_steps",
        "_waits_for",
    )

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, None],
        loop: asyncio.AbstractEventLoop,
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        self._coroutine = coroutine
        self._steps = coroutine.__await__()
        # One for all of its steps, as a task has.
        self._context = copy_context()
        self._loop = loop
        self._on_end = on_end
        self._waits_for: asyncio.Future[Any] | None = None
        self._cancelling = 0
        self._must_cancel = False
        self._over = False

    def __repr__(self) -> str:
        return f"<EagerTask {self._coroutine!r}{' over' if self._over else ''}>"

    def start(self) -> None:
        """Take the first step, now; from within a task, as soon as the loop comes round."""
        self._context.run(self._step, None, True)

    # -- what coroutines ask of the task that runs them -------------------------------------------

    def done(self) -> bool:
        return self._over

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def get_name(self) -> str:
        return repr(self)

    def cancel(self, msg: object = None) -> bool:
        """As `asyncio.Task.cancel`. One that has not started never does."""
        if self._over:
            return False
        self._cancelling += 1
        if self._waits_for is None or not self._waits_for.cancel():
            self._must_cancel = True
        return True

    def cancelling(self) -> int:
        return self._cancelling

    def uncancel(self) -> int:
        if self._cancelling:
            self._cancelling -= 1
        return self._cancelling

    # -- steps ------------------------------------------------------------------------------------

    def _step(self, wrong: BaseException | None = None, at_once: bool = False) -> None:
        """`at_once`: nobody knows whether a task runs already."""
        try:
            _enter_task(self._loop, self)  # type: ignore[arg-type]
        except RuntimeError:
            if not at_once:
                raise
            # Rather than to ask for the current task, which is a function in Python before 3.12.
            self._loop.call_soon(self._step, context=self._context)
            return
        # From here on nothing fails before it is left again, else no task of the loop could go on.
        self._waits_for = None
        error: BaseException | None = None
        waits_for: Any = _OVER
        try:
            if self._must_cancel or wrong is not None:
                waits_for = self._throw(wrong)
            else:
                # No StopIteration is caught: compiled, each is given a traceback first, which costs more.
                waits_for = next(self._steps, _OVER)
        except (KeyboardInterrupt, SystemExit) as stop:
            self._over = True
            self._on_end(stop)
            raise
        except BaseException as failure:
            error = failure
        finally:
            _leave_task(self._loop, self)  # type: ignore[arg-type]
        if waits_for is not _OVER:
            self._wait(waits_for)
            return
        self._over = True
        try:
            self._on_end(error)
        finally:
            # The error's traceback has this frame: with it in hand both would wait for the collector, and all
            # that the call had with them.
            error = wrong = None

    def _throw(self, wrong: BaseException | None) -> Any:
        """A step that begins with an exception: a cancellation, before all others."""
        if self._must_cancel:
            self._must_cancel = False
            wrong = asyncio.CancelledError()
        try:
            return self._coroutine.throw(wrong)  # type: ignore[arg-type]
        except StopIteration:
            return _OVER
        finally:
            wrong = None  # its traceback has this frame

    def _wait(self, waits_for: Any) -> None:
        if waits_for is None:
            # A bare yield, as of asyncio.sleep(0).
            self._loop.call_soon(self._step, context=self._context)
            return
        if not getattr(waits_for, "_asyncio_future_blocking", False):
            wrong = RuntimeError(f"{self!r} waits for {waits_for!r}, which is no future")
            self._loop.call_soon(self._step, wrong, context=self._context)
            return
        waits_for._asyncio_future_blocking = False
        self._waits_for = waits_for
        waits_for.add_done_callback(self._wake, context=self._context)
        if self._must_cancel and waits_for.cancel():
            self._must_cancel = False

    def _wake(self, _future: asyncio.Future[Any]) -> None:
        # Its outcome comes out of its own `__await__`.
        self._step()
