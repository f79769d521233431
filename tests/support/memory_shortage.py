"""A system that has no memory for what is written."""

from __future__ import annotations

import errno
import socket
import time
from typing import Any


class ShortOfMemory:
    """A socket that can be written to, and for whose messages there is no memory as long as it is `short`."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.short = True
        self.failed: list[float] = []
        """When it was tried, in seconds of the monotonic clock."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._end, name)

    def send(self, data: bytes) -> int:
        if self.short:
            self.failed.append(time.monotonic())
            raise OSError(errno.ENOBUFS, "no buffer space available")
        return self._end.send(data)
