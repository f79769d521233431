"""Ends long polls with an empty response, so that a draining gateway answers them instead of closing them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

Result = TypeVar("Result")


@dataclass(slots=True)
class DrainReport:
    """The outcomes of the requests in progress at a door when it was drained and stopped.

    `connections` had an open call when the drain began. `streams` were ended regularly, which tells their
    clients to go elsewhere. `finished` requests were answered since, long polls among them;
    `cut_off` ones were not.
    """

    connections: int = 0
    streams: int = 0
    finished: int = 0
    cut_off: int = 0

    def __add__(self, other: DrainReport) -> DrainReport:
        return DrainReport(
            self.connections + other.connections,
            self.streams + other.streams,
            self.finished + other.finished,
            self.cut_off + other.cut_off,
        )


CUT_S = 2.0
"""How long calls that were cut off may take to give back what they had, where nothing else ends before."""


def cut_time(ends: float | None, now: float) -> float:
    """The seconds that such calls have, when all must be over at `ends`."""
    return CUT_S if ends is None else min(CUT_S, max(ends - now, 0.0))


class InFlightCalls:
    """The calls of a door that have begun and not ended, with the connections that they came over."""

    def __init__(self) -> None:
        self.requests: dict[object, object] = {}
        self.streams: dict[object, object] = {}
        self._cut: set[object] = set()
        self._streams: set[object] = set()
        self._streams_cut: set[object] = set()
        self._ended = 0
        self._emptied: list[tuple[dict[object, object], asyncio.Event]] = []
        """Those of the two that somebody waits for."""
        self._farewell = DrainReport()

    def __repr__(self) -> str:
        return f"<InFlightCalls requests {len(self.requests)} streams {len(self.streams)}>"

    def over(self, call: object) -> None:
        """A request has ended, in whatever way."""
        del self.requests[call]
        if call not in self._cut:
            self._ended += 1
        self._tell_empty()

    def stream_over(self, call: object) -> None:
        """A stream has ended, in whatever way."""
        del self.streams[call]
        self._tell_empty()

    def drain(self) -> None:
        """Start to count the outcomes."""
        connections = {*self.requests.values(), *self.streams.values()}
        self._farewell = DrainReport(connections=len(connections))
        self._streams = set(self.streams)
        self._ended = 0

    def cut(self) -> None:
        """What has not ended by now is cut off. May be repeated."""
        report = self._farewell
        self._cut |= self.requests.keys()
        report.finished, report.cut_off = self._ended, len(self._cut)
        # Those that are still there are cut off with the rest; nobody who ended one of them was told.
        self._streams_cut |= self._streams & self.streams.keys()
        report.streams = len(self._streams) - len(self._streams_cut)

    async def all_over(self, longest_s: float) -> None:
        """Wait until cancelled requests have returned what they took, but no longer than that."""
        await self._none_left(self.requests, longest_s)

    async def streams_over(self, longest_s: float) -> None:
        """Wait until all streams have ended, but no longer than that."""
        await self._none_left(self.streams, longest_s)

    def _tell_empty(self) -> None:
        for calls, empty in self._emptied:
            if not calls:
                empty.set()

    async def _none_left(self, calls: dict[object, object], longest_s: float) -> None:
        if not calls:
            return
        waited = calls, asyncio.Event()
        self._emptied.append(waited)
        try:
            async with asyncio.timeout(longest_s):
                await waited[1].wait()
        except TimeoutError:
            pass
        finally:
            self._emptied.remove(waited)

    def farewell(self) -> DrainReport:
        return self._farewell


class LongPolls:
    """Requests that wait for something that may not come: long polls, and clients' commands.

    A wait runs in its request's own task, so that it costs a set entry and no task.
    """

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[Any]] = set()
        self._called_back: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.ended = False

    def __repr__(self) -> str:
        return f"<LongPolls {len(self._waiting)}{' ended' if self.ended else ''}>"

    def __len__(self) -> int:
        """How many wait now."""
        return len(self._waiting)

    async def wait(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """The result of `work`; None when it was called back, also if that was before it began."""
        if self.ended:
            work.close()
            return None
        if self._loop is None:  # to find it costs a call of the system before Python 3.12
            self._loop = asyncio.get_running_loop()
        task = asyncio.current_task(self._loop)
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

    def call_back(self, task: asyncio.Task[Any]) -> bool:
        """Call one back, if it waits; whether it was."""
        if task not in self._waiting or task in self._called_back:
            return False
        self._called_back.add(task)
        task.cancel()
        return True

    def end(self) -> None:
        """End all long polls, and refuse new ones from now on."""
        self.ended = True
        for task in tuple(self._waiting):
            self.call_back(task)
