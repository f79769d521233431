"""Asks brokers whether there are messages for waiting consumers, and wakes those one by one.

One NOTIFICATION per broker, topic, group and process is pending while a consumer waits; it takes
nothing. For an arrival a broker answers one pending request, which may be that of a process that just lost
its client: so no request lasts longer than `LONGEST_S`, after which every process has asked again and learns
of the messages. Source: protocol facts 4.6 and 5.5 (200054).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from brokers.remote.consume.wait_queue import GONE, NOTHING, Line, Waiter, WaitQueue
from popgate.clock import Clock, pause
from popgate.errors import Forbidden, GatewayError, NotFound

_log = logging.getLogger(__name__)

LONGEST_S = 5.0
_SHORTEST_S = 0.05
_FIRST_REST_S = 0.01
_LONGEST_REST_S = 0.5
"""What is there and cannot be had, like messages behind a lock, is not asked for in a circle."""
_AFTER_FAILURE_S = 1.0
_AT_ONCE = 16
"""So many are woken together when a broker has enough for them."""
_ANSWER = 32

Ask = Callable[[Line, str, float], Awaitable[bool]]
"""(line, broker, seconds it may wait) -> whether there is something. Raises GatewayError."""


class ArrivalWatch:
    """A task per line and broker, as long as a consumer waits in the line."""

    def __init__(self, clock: Clock, waiters: WaitQueue, ask: Ask) -> None:
        self._clock = clock
        self._waiters = waiters
        self._ask = ask
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def __repr__(self) -> str:
        return f"<ArrivalWatch {len(self._tasks)} {self._waiters!r}>"

    def __len__(self) -> int:
        return len(self._tasks)

    def watch(self, waiter: Waiter, brokers: Sequence[str]) -> None:
        """See to it that these brokers are asked for the waiter's line, and no others."""
        line = waiter.line
        line.brokers = brokers
        for broker in brokers:
            if broker not in line.watched and not self._stopped:
                line.watched.add(broker)
                task = asyncio.get_running_loop().create_task(self._watch(line, broker))
                self._tasks.add(task)
                task.add_done_callback(self._ended)

    async def stop(self) -> None:
        self._stopped = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _watch(self, line: Line, broker: str) -> None:
        rest = 0.0
        refused = False
        try:
            while line.waiters and broker in line.brokers:
                asked = self._clock.monotonic()
                patience = min(max(line.until - asked, _SHORTEST_S), LONGEST_S)
                there: bool | None = None
                try:
                    there = await self._ask(line, broker, patience)
                except (NotFound, Forbidden):
                    # Each of them asks, and is told what is the matter. Once: where other brokers do not
                    # refuse, all wait on, and would look in a circle.
                    if refused:
                        line.wake_newcomers()
                    else:
                        line.wake_all()
                    refused = True
                except GatewayError:
                    pass
                if there is None:
                    await pause(self._clock, _AFTER_FAILURE_S)
                    continue
                refused = False
                if not there:
                    if line.waiters and self._clock.monotonic() - asked < patience / 2:
                        await pause(self._clock, min(patience, _AFTER_FAILURE_S))  # it did not wait
                    continue
                if await self._serve(line, broker):
                    rest = 0.0
                else:
                    rest = min(max(rest * 2, _FIRST_REST_S), _LONGEST_REST_S)
                    await pause(self._clock, rest)
        finally:
            line.watched.discard(broker)
            self._waiters.tidy(line)

    async def _serve(self, line: Line, broker: str) -> bool:
        """Wake as many consumers as there are messages for; returns whether one received any."""
        any_found = False
        more = 1
        while more > 0:
            looks = [line.wake(broker) for _ in range(min(-(-more // _ANSWER), _AT_ONCE))]
            results = [await look for look in looks if look is not None]
            if not results:
                break  # nobody waits
            any_found = any_found or max(results) >= 0
            more = 1 if max(results) == GONE else max(results)
        return any_found or not line.waiters

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("asking a broker for news failed", exc_info=task.exception())


__all__ = ["GONE", "LONGEST_S", "NOTHING", "ArrivalWatch"]
