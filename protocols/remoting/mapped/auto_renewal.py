"""Renews what clients hold while they are connected: one timer for all of it.

Messages are popped for a minute, so that those of a killed gateway are redelivered soon, and are renewed
for another minute shortly before they expire. A queue that was not heard of for that long is not renewed.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Sequence
from typing import Final

from popgate.clock import Clock, Timer
from popgate.errors import GatewayError
from processors.messaging import MessagingProcessor
from protocols.remoting.mapped.holdings import ConnectionHoldings
from protocols.remoting.mapped.offsets import Fate, Held
from protocols.remoting.mapped.settlement import answered, with_asked

HOLD_MS: Final = 60_000
HEARD_S: Final = 60.0
"""Clients tell the position of every queue that they read every 5 s, also where nothing moves: of one that
they read no more, and of a client that hangs, nothing is heard, whatever its heartbeats say."""
_AHEAD_S: Final = 20.0
"""So long before the end: a broker may be away for a while."""
_TOGETHER_S: Final = 10.0
"""So much later may end what is renewed with the first of its batch."""
_AGAIN_S: Final = 2.0
_AT_ONCE: Final = 64
_LEAST_WAIT_S: Final = 0.01

_log = logging.getLogger(__name__)


class Batch:
    """What was delivered together, and when it is looked at next, in loop seconds.

    By its numbers: most of it is finished long before, and is not kept until then.
    """

    __slots__ = ("_numbers", "_queue", "at", "connection", "number")

    def __init__(self, connection: ConnectionHoldings, held: list[Held], at: float, number: int) -> None:
        self.connection = connection
        self._queue = held[0].queue
        self._numbers = range(held[0].number, held[-1].number + 1)
        self.at = at
        self.number = number

    def held(self) -> list[Held]:
        """What of it is still held."""
        held = self._queue.held
        return [held[number] for number in self._numbers if number in held]

    def __lt__(self, other: Batch) -> bool:
        return (self.at, self.number) < (other.at, other.number)


class MappedRenewal:
    """`forget`: called with messages that are no longer held, because they expired."""

    def __init__(self, processor: MessagingProcessor, clock: Clock, forget: Callable[[Held], None]) -> None:
        self._processor = processor
        self._clock = clock
        self._forget = forget
        self._heap: list[Batch] = []
        self._count = 0
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self.renewed = 0
        """Messages, since the start."""

    def __repr__(self) -> str:
        return f"<MappedRenewal batches {len(self._heap)} tasks {len(self._tasks)}>"

    def delivered(self, connection: ConnectionHoldings, held: list[Held]) -> None:
        self._count += 1
        self._push(Batch(connection, held, held[0].until - _AHEAD_S, self._count))

    # -- inside -------------------------------------------------------------------------------

    def _push(self, batch: Batch) -> None:
        heapq.heappush(self._heap, batch)
        if self._timer is None or batch.at < self._timer_at:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._timer_at = self._heap[0].at
            wait_s = max(self._timer_at - self._clock.monotonic(), _LEAST_WAIT_S)
            self._timer = self._clock.call_later(wait_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        while self._heap and self._heap[0].at <= now:
            self._look(heapq.heappop(self._heap), now)
        if self._timer is None:
            self._arm()

    def _look(self, batch: Batch, now: float) -> None:
        kept: list[Held] = []
        for delivery in batch.held():
            if now >= delivery.until and delivery.asked is None:
                self._forget(delivery)
            else:
                kept.append(delivery)
        if not kept:
            return
        there = not batch.connection.gone and now - kept[0].queue.heard < HEARD_S
        longest_s = self._processor.limits.max_hold_ms / 1000
        if there and now + HOLD_MS / 1000 <= kept[0].delivered + longest_s:
            task = asyncio.get_running_loop().create_task(self._renew(batch))
            self._tasks.add(task)
            self._processor.settlement.finishes(task)
            task.add_done_callback(self._over)
        else:
            # It may be heard of again before the time is over.
            batch.at = now + _AGAIN_S
            self._push(batch)

    async def _renew(self, batch: Batch) -> None:
        failed = False
        by = self._clock.monotonic() + _AHEAD_S + _TOGETHER_S
        # What is tried again begins with what is left: else the last ones would have no turn.
        held = [delivery for delivery in batch.held() if delivery.until <= by]
        for at in range(0, len(held), _AT_ONCE):
            part = [
                delivery
                for delivery in held[at : at + _AT_ONCE]
                if delivery.fate is Fate.HELD and not delivery.asked
            ]
            failed |= await self._renew_some(batch.connection, part)
        if held := batch.held():
            now = self._clock.monotonic()
            first = min(delivery.until for delivery in held)
            batch.at = now + _AGAIN_S if failed else max(first - _AHEAD_S, now + _AGAIN_S)
            self._push(batch)

    async def _renew_some(self, connection: ConnectionHoldings, part: Sequence[Held]) -> bool:
        """Whether some of it is to be tried again."""
        if not part:
            return False
        asked_at = self._clock.monotonic()
        with_asked(part)
        try:
            outcomes = await asyncio.gather(
                *(
                    self._processor.settlement.renew(
                        connection.context,
                        delivery.queue.key.topic,
                        delivery.queue.key.group,
                        delivery.receipt,
                        HOLD_MS,
                    )
                    for delivery in part
                ),
                return_exceptions=True,
            )
            failed = False
            for delivery, outcome in zip(part, outcomes, strict=True):
                if isinstance(outcome, str):
                    delivery.receipt = outcome
                    delivery.until = asked_at + HOLD_MS / 1000
                    self.renewed += 1
                elif isinstance(outcome, GatewayError) and outcome.retryable:
                    failed = True
                elif isinstance(outcome, GatewayError):
                    if delivery.fate is Fate.HELD:
                        self._forget(delivery)
                elif isinstance(outcome, BaseException):
                    failed = True
                    _log.error("a message could not be renewed", exc_info=outcome)
        finally:
            answered(part)
        return failed

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("what clients hold could not be renewed", exc_info=error)
