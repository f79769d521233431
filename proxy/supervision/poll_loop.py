"""A small event loop for the supervisor: descriptors, timers, signals and children, without asyncio."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE


class Appointment:
    """A timer that can be cancelled."""

    __slots__ = ("work",)

    def __init__(self, work: Callable[[], None]) -> None:
        self.work: Callable[[], None] | None = work

    def cancel(self) -> None:
        self.work = None


class PollLoop:
    """Calls back, until `over` is set."""

    def __init__(self) -> None:
        self.over = False
        self._selector = selectors.DefaultSelector()
        self._times: list[tuple[float, int, Appointment]] = []
        self._number = itertools.count()
        self._before: dict[signal.Signals, object] = {}
        self._on_signal: Callable[[signal.Signals], None] = lambda number: None
        self._rang: deque[int] = deque()
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)
        self.watch(self._bell.fileno(), READ, self._rung)

    def watch(self, descriptor: int, events: int, work: Callable[[], None]) -> None:
        """Call `work` while the descriptor is readable or writable; replaces the previous one."""
        try:
            self._selector.modify(descriptor, events, work)
        except KeyError:
            self._selector.register(descriptor, events, work)

    def forget(self, descriptor: int) -> None:
        """Before it is closed."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(descriptor)

    def later(self, seconds: float, work: Callable[[], None]) -> Appointment:
        made = Appointment(work)
        heapq.heappush(self._times, (time.monotonic() + seconds, next(self._number), made))
        return made

    def on_signals(
        self, numbers: Iterable[signal.Signals], on_signal: Callable[[signal.Signals], None]
    ) -> None:
        """Call the handler of these signals between two callbacks, never within one.

        Hang-ups that are ignored, as under `nohup`, stay so, also in a program that replaces this one.
        """
        self._on_signal = on_signal
        signal.set_wakeup_fd(self._rope.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            if number is not signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, lambda *_: None)

    def hears(self, number: signal.Signals) -> bool:
        """Whether this signal has a handler."""
        return number in self._before

    def unheard(self) -> list[signal.Signals]:
        """Pending signals, which are dropped now."""
        with contextlib.suppress(BlockingIOError):
            self._rang.extend(self._bell.recv(4096))
        signals = [signal.Signals(number) for number in self._rang]
        self._rang.clear()
        return signals

    def run(self) -> None:
        while not self.over:
            for key, _ in self._selector.select(self._rest()):
                key.data()
            now = time.monotonic()
            while self._times and self._times[0][0] <= now:
                work = heapq.heappop(self._times)[2].work
                if work is not None:
                    work()

    def close(self) -> None:
        """Stop watching and handling signals; also for a forked child that has a copy of all this."""
        signal.set_wakeup_fd(-1)
        for number in self._before:
            signal.signal(number, signal.SIG_DFL)
        self._selector.close()
        self._bell.close()
        self._rope.close()

    def _rest(self) -> float | None:
        while self._times and self._times[0][2].work is None:
            heapq.heappop(self._times)
        return max(self._times[0][0] - time.monotonic(), 0.0) if self._times else None

    def _rung(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._rang.extend(self._bell.recv(4096))
        while self._rang:
            self._on_signal(signal.Signals(self._rang.popleft()))
