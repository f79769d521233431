"""The port's `Offsets` at a guest."""

from __future__ import annotations

from collections.abc import Sequence

from brokers.capabilities import FindsByPlace
from brokers.resets import HoldsResets
from brokers.shared.codec.calls import (
    AT_PLACE,
    BEGIN_READ,
    BOUNDS,
    COMMIT,
    COMMIT_READ,
    COMMITTED,
    FIND_BY_ID,
    FIND_BY_KEY,
    LOCK,
    OFFSET_AT,
    PULL,
    RESET_QUEUE,
    UNLOCK,
)
from brokers.shared.guest.facet import Facet
from brokers.shared.guest.host_link import HostStopped
from popgate.context import Context
from popgate.model import Bounds, Filter, Pulled, StoredMessage


class Positions(Facet, FindsByPlace, HoldsResets):
    async def pull(
        self,
        context: Context,
        topic: str,
        broker: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int,
        max_bytes: int,
        passing: Filter,
        wait_until: float | None,
    ) -> Pulled:
        allowance = context.allowance
        most = min(max_bytes, self._settings.max_answer_bytes)
        if allowance is not None:
            most = min(most, allowance.room())
        while True:
            wait_s = 0.0 if wait_until is None else max(wait_until - self._clock.monotonic(), 0.0)
            try:
                pulled = await self._link.take(
                    PULL,
                    wait_s,
                    _nobody,
                    context,
                    topic,
                    broker,
                    queue_id,
                    offset,
                    max_messages=max_messages,
                    max_bytes=most,
                    passing=passing,
                    wait_until=wait_until,
                )
                break
            except HostStopped:
                # The next one is asked, if it is there in a moment.
                if not wait_s:
                    raise
        if allowance is not None and pulled.messages:
            allowance.add(sum([len(m.body) + len(m.properties) for m in pulled.messages]))
        return pulled

    async def bounds(
        self, context: Context, topic: str, broker: str, queue_id: int, *, of_master: bool = False
    ) -> Bounds:
        return await self._link.ask(BOUNDS, context, topic, broker, queue_id)

    async def offset_at(self, context: Context, topic: str, broker: str, queue_id: int, time_ms: int) -> int:
        return await self._link.ask(OFFSET_AT, context, topic, broker, queue_id, time_ms)

    async def committed(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int
    ) -> int | None:
        return await self._link.ask(COMMITTED, context, group, topic, broker, queue_id)

    async def commit(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> None:
        return await self._link.ask(COMMIT, context, group, topic, broker, queue_id, offset)

    async def begin_read(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> int:
        return await self._link.ask(BEGIN_READ, context, group, topic, broker, queue_id, offset)

    async def commit_read(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> int | None:
        return await self._link.ask(COMMIT_READ, context, group, topic, broker, queue_id, offset)

    async def reset_queue(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> None:
        return await self._link.ask(RESET_QUEUE, context, group, topic, broker, queue_id, offset)

    async def lock(
        self, context: Context, group: str, client_id: str, queues: Sequence[tuple[str, str, int]]
    ) -> list[tuple[str, str, int]]:
        return await self._link.ask(LOCK, context, group, client_id, queues)

    async def unlock(
        self, context: Context, group: str, client_id: str, queues: Sequence[tuple[str, str, int]]
    ) -> None:
        return await self._link.ask(UNLOCK, context, group, client_id, queues)

    async def find_by_id(self, context: Context, topic: str, message_id: str) -> list[StoredMessage]:
        return await self._link.ask(FIND_BY_ID, context, topic, message_id)

    async def find_by_key(
        self, context: Context, topic: str, key: str, *, begin_ms: int, end_ms: int, limit: int
    ) -> list[StoredMessage]:
        return await self._link.ask(
            FIND_BY_KEY, context, topic, key, begin_ms=begin_ms, end_ms=end_ms, limit=limit
        )

    async def at_place(self, context: Context, broker: str, commit_offset: int) -> StoredMessage:
        return await self._link.ask(AT_PLACE, context, broker, commit_offset)


def _nobody(number: int) -> None:
    """Who pulls takes nothing: no answer needs to be remembered."""
