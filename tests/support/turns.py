"""Counts what is done in one turn of the event loop, in which nobody else is served."""

from __future__ import annotations

import asyncio


class Turns:
    """Counts calls by the turn of the loop in which they come."""

    def __init__(self) -> None:
        self.counts = [0]
        self._next = asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self.counts.append(0)
        self._next = asyncio.get_running_loop().call_soon(self._begin)

    def count(self) -> None:
        self.counts[-1] += 1

    def stop(self) -> list[int]:
        self._next.cancel()
        return self.counts
