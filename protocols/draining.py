"""Calling back those who wait, so that a draining gateway answers them instead of cutting them off."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Waits:
    """Requests that wait for something that may not come: long polls, and clients' commands.

    A wait runs in its request's own task, so that it costs a set entry and no task.
    """

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[Any]] = set()
        self._called_back: set[asyncio.Task[Any]] = set()
        self.ended = False

    def __repr__(self) -> str:
        return f"<Waits {len(self._waiting)}{' ended' if self.ended else ''}>"

    def __len__(self) -> int:
        """How many wait now."""
        return len(self._waiting)

    async def wait(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """The result of `work`; None when it was called back, also if that was before it began."""
        if self.ended:
            work.close()
            return None
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in a task here
        self._waiting.add(task)
        try:
            return await work
        except asyncio.CancelledError:
            # The transport may have cancelled it as well; then it is over.
            if task in self._called_back and task.cancelling() == 1:
                return None
            raise
        finally:
            self._waiting.discard(task)
            if task in self._called_back:
                self._called_back.remove(task)
                task.uncancel()

    def end(self) -> None:
        """Call everybody back, and let nobody wait from now on."""
        self.ended = True
        for task in self._waiting - self._called_back:
            self._called_back.add(task)
            task.cancel()
