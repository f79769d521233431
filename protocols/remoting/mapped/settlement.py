"""Settles finished and returned messages at the broker, once per turn of the event loop.

A commit that is part of a pull waits for nothing. A failed acknowledgement is retried for as
long as the message is certainly hidden; after that the message is redelivered, which is never a loss.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final

from popgate.clock import Clock, Timer
from popgate.errors import BrokerUnavailable, GatewayError
from processors.messaging import MessagingProcessor
from protocols.remoting.mapped.holdings import ConnectionHoldings, PlaceIndex
from protocols.remoting.mapped.offsets import Fate, Held, QueueHoldings

GONE: Final = "gone"
RESTARTED: Final = "restarted"
SWITCHED: Final = "switched"
UNREAD: Final = "unread"
"""Why messages are given back: their client left, or took the queue anew; their group is on true pull; or
their answer never reached the client."""
_AGAIN_S: Final = 1.0
"""Between two tries to acknowledge."""

Parts = dict[tuple[ConnectionHoldings, str, str], list[Held]]
"""By connection, group and topic."""

Work = Callable[[list[Held]], Coroutine[Any, Any, None]]

_log = logging.getLogger(__name__)


class MappedSettlement:
    """Acknowledges and returns messages that clients no longer hold."""

    def __init__(self, processor: MessagingProcessor, clock: Clock, index: PlaceIndex) -> None:
        self._processor = processor
        self._clock = clock
        self._index = index
        self._finished: Parts = {}
        self._freed: Parts = {}
        self._again: Parts = {}
        self._timer: Timer | None = None
        self._armed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.given_back = dict.fromkeys((GONE, RESTARTED, SWITCHED, UNREAD), 0)
        """How many, by cause, since the start."""

    def __repr__(self) -> str:
        return f"<MappedSettlement tasks {len(self._tasks)} again {len(self._again)}>"

    def acknowledge(self, connection: ConnectionHoldings, done: Sequence[Held]) -> None:
        """Their client has finished these."""
        for delivery in done:
            self._index.drop(delivery)
            delivery.queue.ending[delivery.number] = delivery
        self._put(self._finished, connection, done)

    def give_back(self, connection: ConnectionHoldings, freed: Sequence[Held], cause: str) -> None:
        """Nobody has these any more."""
        for delivery in freed:
            self._index.drop(delivery)
        if freed:
            self.given_back[cause] += len(freed)
        self._put(self._freed, connection, freed)

    async def settled(self, queue: QueueHoldings, number: int) -> None:
        """Wait until all below is acknowledged. Raises BrokerUnavailable: it could not be, yet."""
        while True:
            below = [delivery for at, delivery in queue.ending.items() if at < number]
            if not below:
                return
            if any(delivery.failed for delivery in below):
                raise BrokerUnavailable(
                    f"{len(below)} messages cannot be acknowledged for group {queue.key.group} now,"
                    " which is tried again"
                )
            over = asyncio.get_running_loop().create_future()
            queue.watchers.append(over)
            await over

    async def all_told(self) -> None:
        """Wait until everything settled so far has been sent to the broker, as far as possible."""
        await asyncio.sleep(0)  # what is over in this turn is told in the next
        await asyncio.sleep(0)
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def settle(self, delivery: Held) -> None:
        """Nothing is to be done with it any more: something else became of it."""
        self._index.drop(delivery)
        delivery.queue.drop(delivery, Fate.GONE)
        delivery.fate = Fate.GONE
        if delivery.queue.ending.pop(delivery.number, None) is not None:
            _wake(delivery.queue)

    # -- inside -------------------------------------------------------------------------------

    def _put(self, parts: Parts, connection: ConnectionHoldings, held: Iterable[Held]) -> None:
        for delivery in held:
            key = delivery.queue.key
            parts.setdefault((connection, key.group, key.topic), []).append(delivery)
        if parts and not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._armed = False
        finished, self._finished = self._finished, {}
        freed, self._freed = self._freed, {}
        for part, held in finished.items():
            self._begin(held, partial(self._ack, *part))
        for part, held in freed.items():
            self._begin(held, partial(self._free, *part))

    def _begin(self, held: list[Held], work: Work) -> None:
        """What something is asked about right now waits for that: its receipt may change."""
        free = [delivery for delivery in held if delivery.asked is None]
        if free:
            self._spawn(work(free))
        if len(free) < len(held):
            self._spawn(self._later([delivery for delivery in held if delivery.asked is not None], work))

    async def _later(self, held: list[Held], work: Work) -> None:
        await unasked(held)
        held = [delivery for delivery in held if delivery.fate is not Fate.GONE]
        if held:
            await work(held)

    async def _ack(self, connection: ConnectionHoldings, group: str, topic: str, held: list[Held]) -> None:
        most = self._processor.limits.max_receipts_per_ack
        for at in range(0, len(held), most):
            part = held[at : at + most]
            results: Sequence[GatewayError | None]
            with_asked(part)
            try:
                results = await self._processor.ack(
                    connection.context, topic, group, [delivery.receipt for delivery in part]
                )
            except GatewayError as error:
                results = [error] * len(part)
            except Exception:
                _log.exception("what a client finished could not be acknowledged")
                results = [GatewayError("internal error of the gateway")] * len(part)
            finally:
                answered(part)
            self._acked(connection, part, results)

    def _acked(
        self, connection: ConnectionHoldings, part: Sequence[Held], results: Sequence[GatewayError | None]
    ) -> None:
        now = self._clock.monotonic()
        again: list[Held] = []
        for delivery, result in zip(part, results, strict=True):
            if result is not None and result.retryable and now + _AGAIN_S < delivery.until:
                delivery.failed = True
                again.append(delivery)
            else:
                # Done, or its handle is worth nothing any more: then it was finished, or comes again.
                delivery.fate = Fate.GONE
                delivery.queue.ending.pop(delivery.number, None)
        for queue in {id(delivery.queue): delivery.queue for delivery in part}.values():
            _wake(queue)
        if again:
            for delivery in again:
                key = delivery.queue.key
                self._again.setdefault((connection, key.group, key.topic), []).append(delivery)
            if self._timer is None:
                self._timer = self._clock.call_later(_AGAIN_S, self._retry)

    def _retry(self) -> None:
        self._timer = None
        again, self._again = self._again, {}
        for (connection, _, _), held in again.items():
            for delivery in held:
                delivery.failed = False
            self._put(self._finished, connection, held)

    async def _free(self, connection: ConnectionHoldings, group: str, topic: str, held: list[Held]) -> None:
        receipts = [delivery.receipt for delivery in held]
        for delivery in held:
            delivery.fate = Fate.GONE
        await self._processor.settlement.free_held(connection.context, topic, group, receipts)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        self._processor.settlement.finishes(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("what a client finished could not be told to the broker", exc_info=error)


def _wake(queue: QueueHoldings) -> None:
    watchers, queue.watchers = queue.watchers, []
    for over in watchers:
        if not over.done():
            over.set_result(None)


def with_asked(held: Collection[Held]) -> None:
    """Something is asked about these from now on."""
    over = asyncio.get_running_loop().create_future()
    for delivery in held:
        delivery.asked = over


def answered(held: Collection[Held]) -> None:
    """That is over."""
    for delivery in held:
        over, delivery.asked = delivery.asked, None
        if over is not None and not over.done():
            over.set_result(None)


async def unasked(held: Iterable[Held]) -> None:
    """Wait until nothing is asked about any of them."""
    while waits := {delivery.asked for delivery in held if delivery.asked is not None}:
        await asyncio.wait(waits)
