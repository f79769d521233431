"""Kills a process that still runs after its deadline, even if its event loop hangs."""

from __future__ import annotations

import os
import threading

LONGER_S = 10.0
"""Beyond the time in which it was to end: long enough that a machine that is slow, or stands still for some
seconds, does not count as a process that hangs."""
STATUS = 1


class Watchdog:
    """A thread that needs no event loop: a disk that does not answer holds up loops, and the threads that an
    interpreter waits for at its end."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def __repr__(self) -> str:
        return f"<Watchdog {'armed' if self._timer is not None else 'off'}>"

    def arm(self, seconds: float) -> None:
        """The process has so long to end, and `LONGER_S`; once."""
        if self._timer is None:
            timer = self._timer = threading.Timer(seconds + LONGER_S, _end)
            timer.daemon = True
            timer.start()

    def disarm(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


def _end() -> None:
    # Not by the log: its lock may be what hangs.
    os.write(2, b"popgate: not ended in time, and ended by force\n")
    os._exit(STATUS)
