"""`%RETRY%group` where it cannot be popped: one member of a mapped group reads each queue of it by true pull.

Every member requests all queues of a mapped group, and pop shares the messages; where there is no pop, the
member that holds a lease gets them. The others wait, and one of them takes over when it leaves. Positions are
real there, and only move forward: members that never read a queue commit where the group was when they
joined. Source: protocol facts 7.8; `brokers.traits.Traits.pops_group_retries`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from popgate.clock import pause
from popgate.context import Context
from popgate.errors import GatewayError, IllegalOffset
from popgate.model import Bounds, Pulled
from popgate.naming import retry_topic
from processors.messaging import MessagingProcessor
from processors.requests import Pull
from protocols.drain import LongPolls
from protocols.remoting.mapped.offsets import QueueKey
from protocols.remoting.requests import DoorContext

_RENEW_S: Final = 20.0
"""A lease lasts three times as long."""
_ASK_S: Final = 5.0
"""So often somebody who waits asks whether a queue is free."""
_LONGEST_READ_S: Final = 15.0
"""A pull that waits ends in time for the lease to be renewed."""

_log = logging.getLogger(__name__)


class Retries:
    """Who reads the retries of mapped groups here, of one connection. `owner`: its name at the broker."""

    __slots__ = ("_asked", "_door_context", "_leased", "_processor", "_tasks", "owner")

    def __init__(self, door_context: DoorContext, owner: str) -> None:
        self._door_context = door_context
        self._processor = door_context.processor
        self.owner = owner
        self._leased: dict[QueueKey, float] = {}
        """Until when a queue need not be asked for again (loop seconds): a while before its lease is over."""
        self._asked: dict[QueueKey, float] = {}
        """From when on it may be asked again whether somebody else's queue is free."""
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Retries {self.owner} leased {len(self._leased)}>"

    async def pull(self, context: Context, asked: Pull, key: QueueKey, waits: LongPolls) -> Pulled:
        """What comes next to the member that reads the queue; nothing, after a while, to the others.

        Raises what `MessagingProcessor.pull` raises.
        """
        if key not in self._leased and key not in self._asked:
            # What is kept of queues, here and at the broker, is of queues that there are.
            await self._processor.offsets.bounds(context, asked.topic, asked.broker, asked.queue_id)
        if not await self._has(context, key):
            bounds = await self._processor.offsets.bounds(context, asked.topic, asked.broker, asked.queue_id)
            if asked.wait_s:
                await waits.wait(pause(self._door_context.clock, min(asked.wait_s, _ASK_S)))
            return Pulled([], asked.offset, bounds)
        place = asked.topic, asked.broker, asked.queue_id
        done = await self._processor.offsets.committed(context, key.group, *place)
        # Who read before it finished what is below: it was not there then, and asks from where it came.
        asked.offset = max(asked.offset, done or 0)
        if asked.wait_s is not None:
            asked.wait_s = min(asked.wait_s, _LONGEST_READ_S)
        pulled = await waits.wait(self._processor.pull(context, asked))
        return pulled if pulled is not None else Pulled([], asked.offset, Bounds(asked.offset, asked.offset))

    async def commit(self, context: Context, key: QueueKey, offset: int) -> None:
        """What the member that reads the queue has finished; others have nothing to say."""
        if key not in self._leased or offset < 0 or not await self._has(context, key):
            return
        place = key.topic, key.broker, key.queue_id
        done = await self._processor.offsets.committed(context, key.group, *place)
        if done is None or offset > done:
            try:
                await self._processor.offsets.commit(context, key.group, *place, offset)
            except IllegalOffset as error:
                _log.info("a position of group %s is out of bounds: %s", key.group, error.sentence)

    @property
    def groups(self) -> set[str]:
        """Whose retries are read here, or were waited for."""
        return {key.group for key in (*self._leased, *self._asked)}

    def release(self, context: Context, group: str) -> None:
        """The client is gone, or left the group: another member reads on at once."""
        for key in [key for key in self._asked if key.group == group]:
            del self._asked[key]
        for key in [key for key in self._leased if key.group == group]:
            self._give_up(context, key)

    # -- inside -------------------------------------------------------------------------------

    async def _has(self, context: Context, key: QueueKey) -> bool:
        """Whether the queue is leased here. One that cannot be asked for is not."""
        now = self._door_context.clock.monotonic()
        if now < self._leased.get(key, 0.0):
            return True
        if key not in self._leased and now < self._asked.get(key, 0.0):
            return False
        self._asked[key] = now + _ASK_S
        place = key.topic, key.broker, key.queue_id
        try:
            got = await self._processor.classic.lease(context, key.group, self.owner, [place])
        except GatewayError:
            got = []
        except asyncio.CancelledError:
            # The connection is over, and it may be leased all the same.
            self._give_up(context, key)
            raise
        if got and key not in self._asked and key not in self._leased:
            # Released meanwhile: nobody reads it here, and nobody else could until the lease is over.
            self._give_up(context, key)
            return False
        if got:
            self._leased[key] = now + _RENEW_S
            self._asked.pop(key, None)
        else:
            self._leased.pop(key, None)
        return bool(got)

    def _give_up(self, context: Context, key: QueueKey) -> None:
        self._leased.pop(key, None)
        task = asyncio.get_running_loop().create_task(self._end(context, key))
        self._tasks.add(task)
        self._processor.settlement.finishes(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, context: Context, key: QueueKey) -> None:
        place = key.topic, key.broker, key.queue_id
        try:
            await self._processor.classic.end_lease(context, key.group, self.owner, [place])
        except GatewayError as error:
            # It ends by itself.
            _log.info("a lease of group %s lasts for its time: %s", key.group, error.sentence)


def reads_apart(processor: MessagingProcessor, key: QueueKey) -> bool:
    """Whether a queue is read in this way."""
    return not processor.classic.pops_group_retries and key.topic == retry_topic(key.group)
