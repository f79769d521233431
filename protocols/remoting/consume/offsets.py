"""Positions of groups, and the offsets of queues.

Sources: protocol facts 5.5, 5.13 and 7.8 ("Offsets"); real-rocketmq.md, section 4, the last row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final

from popgate.context import Context
from popgate.errors import IllegalOffset
from popgate.model import Bounds
from popgate.naming import check_group
from popgate.wire.frames.codes import OF_MASTER, RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from processors.requests import Pull
from protocols.remoting.codec.fields import flag, long_number, number, text
from protocols.remoting.mapped.handler import Mapped
from protocols.remoting.mapped.offsets import QueueKey, is_virtual
from protocols.remoting.queue_cache import Places
from protocols.remoting.requests import DoorContext, Handler, Request

_UPPER: Final = "UPPER"
_YOUNG_MS: Final = 3_600_000

Named = tuple[str, str, int]
"""Topic, broker and queue."""


class OffsetHandler:
    """Serves requests about the offsets of one queue."""

    def __init__(self, door_context: DoorContext, mapped: Mapped | None = None) -> None:
        self._mapped = mapped if mapped is not None else Mapped(door_context)
        self._processor = door_context.processor
        self._clock = door_context.clock
        self._places = Places(door_context)

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.committed,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.commit,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.maximum,
            RequestCode.GET_MIN_OFFSET: self.minimum,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }

    def drain(self) -> None:
        """Nothing waits here."""

    async def committed(self, request: Request) -> Command:
        """A group that never read a queue starts at 0 if the first message is recent, or there is none yet.

        A client that gets no position asks for the end next: it would miss the messages sent in between,
        and those that another member read without having committed its position.
        """
        group = check_group(text(request.fields, "consumerGroup"))
        queue = await self._places.queue_in(request)
        context, fields = request.context, request.fields
        key = QueueKey(group, *queue)
        self._mapped.asks_position(request.peer, key)
        offset = await self._processor.offsets.committed(context, group, *queue)
        if offset is None and flag(fields, "setZeroIfNotFound", default=True):
            offset = await self._start(context, queue)
        self._mapped.told_position(request.peer, key, offset, clean=True)
        if offset is None:
            return request.refusal(
                ResponseCode.QUERY_NOT_FOUND,
                "the group has no position on this queue yet",
            )
        begins = await self._mapped.begin_at(request, key, offset)
        if begins != offset:
            self._mapped.told_position(request.peer, key, begins)
        return request.answer({"offset": str(begins)})

    async def commit(self, request: Request) -> Command:
        """A position outside of the queue's bounds counts as the nearest one within; no group is created.

        A commit of a member of a mapped group acknowledges messages, and sets no position. Nor does a commit
        between a reset of the group and the moment when the member continues at the new position.
        """
        group = text(request.fields, "consumerGroup")
        offset = long_number(request.fields, "commitOffset")
        topic, queue_id = text(request.fields, "topic"), number(request.fields, "queueId")
        broker = request.fields.get("bname", "")
        context, mapped = request.context, self._mapped
        if is_virtual(offset):
            await mapped.commit_number(request, group, topic, queue_id, offset, broker=broker)
            return request.answer()
        # Before the first await: its client may be gone then, and what is known of it.
        old = mapped.resets.is_of_before(request.peer, QueueKey(group, topic, broker, queue_id), offset)
        if old and mapped.tells_as_member(request.peer, group):
            return request.answer()
        queue = await self._places.queue_in(request)
        key = QueueKey(group, *queue)
        member = mapped.tells_as_member(request.peer, group)
        with mapped.resets.writing(group, key.topic) if member else contextlib.nullcontext():
            if member and not mapped.resets.accepts(request.peer, key):
                if mapped.resets.target(request.peer, key) == offset:
                    # It is set already, and others may have read on from there.
                    await mapped.arrive_at(request, key, offset)
                return request.answer()
            if mapped.sets_position(request.peer, key, offset):
                await mapped.seek(request, key, offset)
                return request.answer()
            position = await mapped.commit(request, group, queue, offset)
            if position is None:
                return request.answer()
            await self._processor.offsets.check_reader(context, group)
            nearest = None
            try:
                await mapped.keep_position(request, key, max(position, 0))
            except IllegalOffset as error:
                nearest = error.nearest
            if nearest is not None:
                await mapped.keep_position(request, key, nearest)
        return request.answer()

    async def search(self, request: Request) -> Command:
        """The first offset at or after a time; by `boundaryType` UPPER the last one up to it."""
        fields, context = request.fields, request.context
        time_ms = long_number(fields, "timestamp")
        queue = await self._places.queue_in(request)
        if fields.get("boundaryType", "").upper() != _UPPER:
            offset = await self._processor.offsets.offset_at(context, *queue, time_ms)
            self._mapped.seeks.searched(request.peer, *queue, offset)
        else:
            behind = await self._processor.offsets.offset_at(context, *queue, time_ms + 1)
            bounds = await self._processor.offsets.bounds(context, *queue)
            # As a broker has it: past the end it is the end itself.
            offset = behind if behind >= bounds.maximum else max(behind - 1, bounds.minimum)
        return request.answer({"offset": str(offset)})

    async def maximum(self, request: Request) -> Command:
        queue, of_master = await self._places.queue_in(request), flag(request.fields, OF_MASTER)
        bounds = await self._processor.offsets.bounds(request.context, *queue, of_master=of_master)
        return request.answer({"offset": str(bounds.maximum)})

    async def minimum(self, request: Request) -> Command:
        queue = await self._places.queue_in(request)
        return request.answer(
            {"offset": str((await self._processor.offsets.bounds(request.context, *queue)).minimum)}
        )

    async def earliest(self, request: Request) -> Command:
        """When the first message that is kept was stored; -1: there is none."""
        queue, context = await self._places.queue_in(request), request.context
        bounds = await self._processor.offsets.bounds(context, *queue)
        return request.answer({"timestamp": str(await self._stored_at(context, queue, bounds))})

    # -- inside -------------------------------------------------------------------------------

    async def _start(self, context: Context, queue: Named) -> int | None:
        """Where RocketMQ says 0 is while its first message is still in memory; this goes by its age."""
        bounds = await self._processor.offsets.bounds(context, *queue)
        if bounds.minimum > 0:
            return None
        stored_ms = await self._stored_at(context, queue, bounds)
        return 0 if stored_ms < 0 or stored_ms >= self._clock.now_ms() - _YOUNG_MS else None

    async def _stored_at(self, context: Context, queue: Named, bounds: Bounds) -> int:
        if bounds.minimum == bounds.maximum:
            return -1
        pulled = await self._processor.pull(context, Pull(*queue, bounds.minimum, max_messages=1))
        return pulled.messages[0].store_ms if pulled.messages else -1
