"""Reads by offset: pull without taking, the bounds of a queue, the offset at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from brokers.embedded.catalog.catalog import QueueState
from brokers.embedded.engine.engine import pull_key
from brokers.embedded.engine.facet import Facet
from brokers.embedded.engine.pop_checks import bytes_for
from brokers.embedded.groups.pop_attempt import cost_of
from brokers.embedded.log.message_log import as_stored, stored_message
from popgate.context import Context
from popgate.errors import BadRequest, Forbidden, IllegalOffset
from popgate.messages.stored_records import StoredRecords, held_bytes
from popgate.model import Bounds, Filter, Permission, Pulled, StoredMessage
from popgate.wire.messages.plain_records import plain_run


class PullFacet(Facet):
    """The part of the port's `Offsets` that looks at messages."""

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
        engine = self._engine
        if max_messages < 1:
            raise BadRequest(f"a pull takes at least one message, not {max_messages}")
        queue = self._readable(topic, broker, queue_id)
        if not queue.minimum <= offset <= queue.visible:
            raise IllegalOffset(offset, queue.minimum, queue.visible)
        while True:
            room = bytes_for(context, max_bytes)
            messages, offset = self._look(queue, offset, max_messages, room, passing)
            bounds = Bounds(queue.minimum, queue.visible)
            if messages or wait_until is None or engine.clock.monotonic() >= wait_until:
                if messages and context.allowance is not None:
                    context.allowance.add(held_bytes(messages))
                return Pulled(messages, offset, bounds)
            if offset < queue.visible:
                await asyncio.sleep(0)
            elif not await engine.waiting.wait(queue.topic.id, pull_key(queue_id), wait_until):
                return Pulled([], offset, bounds)
            queue = self._readable(topic, broker, queue_id)

    async def bounds(
        self, context: Context, topic: str, broker: str, queue_id: int, *, of_master: bool = False
    ) -> Bounds:
        queue = self._queue(topic, broker, queue_id)
        return Bounds(queue.minimum, queue.visible)

    async def offset_at(self, context: Context, topic: str, broker: str, queue_id: int, time_ms: int) -> int:
        queue = self._queue(topic, broker, queue_id)
        return self._engine.log.offset_at(queue, time_ms)

    # -- inside -------------------------------------------------------------------------------

    def _queue(self, topic: str, broker: str, queue_id: int) -> QueueState:
        self._engine.check_open()
        return self._engine.queue(self._engine.catalogue.topic(topic), broker, queue_id)

    def _readable(self, topic: str, broker: str, queue_id: int) -> QueueState:
        queue = self._queue(topic, broker, queue_id)
        if not queue.topic.config.permission & Permission.READ:
            raise Forbidden(f"topic {topic} is not readable")
        return queue

    def _look(
        self, queue: QueueState, offset: int, max_messages: int, max_bytes: int, passing: Filter
    ) -> tuple[Sequence[StoredMessage], int]:
        """Messages that pass, from `offset` on, and the offset behind the last one looked at."""
        offset = max(offset, queue.minimum)  # retention may have passed a pull that waits
        if passing.everything:
            records = self._pass_on(queue, offset, max_messages, max_bytes)
            if records is not None:
                return records
        return self._read(queue, offset, max_messages, max_bytes, passing)

    def _pass_on(
        self, queue: QueueState, offset: int, max_messages: int, max_bytes: int
    ) -> tuple[Sequence[StoredMessage], int] | None:
        """All messages, as they are stored. None: one of them has to be decoded."""
        log = self._engine.log
        end = log.reach(queue, offset, max_messages)
        values = log.values(queue.topic, queue.queue_id, offset, end)
        run = plain_run(values, queue.topic.packed_name, offset, max_messages, max_bytes)
        if run is None:
            return None
        following = offset + len(run.starts)
        if run.is_cut:
            end = following
        # What cannot be read ends the records without a word; so do holes at the end of what there is.
        elif following < end and next(log.read(queue.topic, queue.queue_id, following, end), None):
            return None
        if not run.starts:
            return [], max(end, offset)
        name = self._engine.settings.name
        decode = partial(stored_message, broker=name)
        stored = StoredRecords(b"".join(run.pieces), run.starts, run.body_bytes, name, decode)
        return stored, max(end, offset)

    def _read(
        self, queue: QueueState, offset: int, max_messages: int, max_bytes: int, passing: Filter
    ) -> tuple[list[StoredMessage], int]:
        """The same, one by one."""
        engine = self._engine
        end = engine.log.reach(queue, offset, max(max_messages, engine.settings.max_scan))
        messages: list[StoredMessage] = []
        looks = engine.settings.max_scan
        for at, record in engine.log.read(queue.topic, queue.queue_id, offset, end):
            decoded = engine.log.decoded(queue.topic, queue.queue_id, at, record)
            if decoded is not None and (passing.everything or passing.matches(decoded.properties)):
                if messages and len(record) > max_bytes:
                    return messages, at
                messages.append(as_stored(decoded, engine.settings.name))
                max_bytes -= len(record)
                if len(messages) == max_messages:
                    return messages, at + 1
            else:
                looks -= cost_of(record)
                if looks <= 0:
                    return messages, at + 1
        return messages, max(end, offset)
