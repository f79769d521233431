"""Stop signals of a process: the first one starts the drain, the second one cuts it short."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine

from popgate.clock import Clock


class EndSignals:
    """Lets work be cut short by the first word or the second."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._first = loop.create_future()
        self._second = loop.create_future()

    def begin(self) -> None:
        """Record the first stop signal; idempotent."""
        if not self._first.done():
            self._first.set_result(None)

    def cut(self) -> None:
        """The second word."""
        self.begin()
        if not self._second.done():
            self._second.set_result(None)

    def on_first(self, work: Callable[[], None]) -> None:
        """Call `work` at the first stop signal."""
        self._first.add_done_callback(lambda _: work())

    async def wait(self) -> None:
        await self._first

    async def first_of(self, work: Coroutine[object, object, None]) -> bool:
        """Whether the work finished before the first stop signal; else it is cancelled. Raises its error."""
        return await self._unless(self._first, work)

    async def second_of(self, work: Coroutine[object, object, None]) -> bool:
        return await self._unless(self._second, work)

    async def _unless(self, said: asyncio.Future[None], work: Coroutine[object, object, None]) -> bool:
        task = self._loop.create_task(work)
        await asyncio.wait((task, said), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            return False
        task.result()
        return True


class Signals(EndSignals):
    """Stop signals: SIGTERM and SIGINT, and SIGHUP from a closing terminal.

    Under `nohup` SIGHUP is ignored. `on_hangup`: called for any other SIGHUP; returns whether it was
    handled. A closing terminal may send several, through the kernel and through its shell: they count as
    one, and a late one must not kill the process before it has ended.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_hangup: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(loop)
        self._on_hangup = on_hangup
        ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        self._numbers = (signal.SIGTERM, signal.SIGINT, *(() if ignored else (signal.SIGHUP,)))
        for number in self._numbers:
            loop.add_signal_handler(number, self._hung_up if number is signal.SIGHUP else self._came)
        # The launcher held it back until here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def close(self) -> None:
        """After a stop signal SIGHUP stays ignored."""
        for number in self._numbers:
            self._loop.remove_signal_handler(number)
        if self._first.done() and signal.SIGHUP in self._numbers:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _hung_up(self) -> None:
        if not self._on_hangup():
            self.begin()

    def _came(self) -> None:
        if self._first.done():
            self.cut()
        else:
            self.begin()


async def ended_in(work: Coroutine[object, object, None], longest_s: float | None, clock: Clock) -> bool:
    """Whether the work finished within so many seconds; else it is cancelled. Raises its error."""
    task = asyncio.ensure_future(work)
    if longest_s is None:
        await task
        return True
    over = asyncio.Event()
    task.add_done_callback(lambda _: over.set())
    timer = clock.call_later(longest_s, over.set)
    try:
        await over.wait()
        if task.done():
            task.result()
        return task.done()
    finally:
        timer.cancel()
        task.cancel()
