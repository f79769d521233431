"""Schedules pops that scan a backlog which their filter refuses: one of them per turn of the event loop.

However many pops scan without a result, other requests wait for at most one of them.
"""

from __future__ import annotations

import asyncio
from collections import deque


class ScanScheduler:
    """A line of those who want to look on."""

    def __init__(self) -> None:
        self._line: deque[asyncio.Future[None]] = deque()
        self._going = False

    def __repr__(self) -> str:
        return f"<ScanScheduler {len(self._line)}>"

    def __len__(self) -> int:
        """How many wait for their turn."""
        return len(self._line)

    async def next(self) -> None:
        """Return when it is the caller's turn."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._line.append(future)
        if not self._going:
            self._going = True
            loop.call_soon(self._let_one, loop)
        await future

    def _let_one(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._line:
            future = self._line.popleft()
            if not future.done():  # else it was cancelled
                future.set_result(None)
                break
        self._going = bool(self._line)
        if self._going:
            loop.call_soon(self._let_one, loop)
