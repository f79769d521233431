"""Positions of groups and offsets of queues: read, committed, reset."""

from __future__ import annotations

import contextlib

from brokers.resets import HoldsResets
from popgate.context import Context
from popgate.errors import (
    BadRequest,
    Fault,
    GroupNotFound,
)
from popgate.kinds import Action
from popgate.model import (
    Bounds,
    QueueOffsets,
    StartFrom,
)
from popgate.naming import check_group
from processors.classic.retry_reclaim import RetryReclaimer
from processors.consume.resets import PositionKeeper, Reset, ResetListeners
from processors.core import ProcessorCore, check_queue_id, readable
from processors.members.broadcast import BroadcastGroups
from processors.observer import Watch


class GroupOffsets:
    """Positions of groups, and what offsets queues have."""

    def __init__(self, core: ProcessorCore, broadcast: BroadcastGroups, reclaimer: RetryReclaimer) -> None:
        self._broker = core.broker
        self._limits = core.limits
        self._admit, self._permit = core.admit, core.permit
        self._routing = core.routing
        self._broadcast = broadcast
        self._reclaimer = reclaimer
        self._holds_resets = core.broker.capability(HoldsResets)
        self.on_reset = ResetListeners()
        self.keepers: list[PositionKeeper] = []
        """All that are open."""
        self._watch_offsets = Watch(core.observer, "offsets")
        self._watch_reset = Watch(core.observer, "directory")

    async def bounds(
        self, context: Context, topic: str, broker: str, queue_id: int, *, of_master: bool = False
    ) -> Bounds:
        with self._watch_offsets:
            self._admit(context, Action.SUBSCRIBE, topic=readable(topic))
            check_queue_id(queue_id)
            return await self._broker.bounds(context, topic, broker, queue_id, of_master=of_master)

    async def offset_at(self, context: Context, topic: str, broker: str, queue_id: int, time_ms: int) -> int:
        """The first offset stored at or after `time_ms`; the maximum when there is none."""
        with self._watch_offsets:
            self._admit(context, Action.SUBSCRIBE, topic=readable(topic))
            check_queue_id(queue_id)
            time_ms = min(max(time_ms, 0), (1 << 63) - 1)
            return await self._broker.offset_at(context, topic, broker, queue_id, time_ms)

    async def committed(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int
    ) -> int | None:
        """Below this the group is done; None when it never read the queue.

        A group that would be made on first use is not made by asking: it has read nothing. A position that
        is about to change is returned when it has.
        """
        if self._reclaimer.is_moving(group):
            await self._reclaimer.settled(group)
        with self._watch_offsets:
            self._admit(context, Action.SUBSCRIBE, topic=readable(topic), group=check_group(group))
            check_queue_id(queue_id)
            reader = await self._broadcast.of(context, group)
            try:
                return await self._broker.committed(context, reader, topic, broker, queue_id)
            except GroupNotFound:
                # Of a client of a broadcast group it says only that the client has not received yet.
                if reader == group and not self._limits.auto_create_groups:
                    raise
            await self._broker.bounds(context, topic, broker, queue_id)  # no such queue is told all the same
            return None

    async def check_reader(self, context: Context, group: str) -> None:
        """Whether a client may set positions of a group that is there, which is not made by asking.

        Raises IllegalGroup, Forbidden, GroupNotFound.
        """
        self._permit(context, Action.SUBSCRIBE, group=check_group(group))
        if await self._routing.known(group) is None:
            raise GroupNotFound(group)

    async def commit(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> None:
        """Set the group's position on a queue; the group is made on first use when that is allowed."""
        with self._watch_offsets:
            reader = await self._committer(context, group, topic, broker, queue_id, offset)
            await self._broker.commit(context, reader, topic, broker, queue_id, offset)

    async def _committer(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> str:
        """The group whose position a client sets: of a broadcast one its own. Raises as `commit`."""
        self._admit(context, Action.SUBSCRIBE, topic=readable(topic), group=check_group(group))
        check_queue_id(queue_id)
        if not 0 <= offset < 1 << 63:
            raise BadRequest(f"the offset {offset} is out of range", Fault.ILLEGAL_OFFSET)
        if await self._routing.known(group) is None:
            # Asked first: a group is not made for a queue that is not there.
            await self._broker.bounds(context, topic, broker, queue_id)
        return await self._broadcast.join(context, await self._routing.group(group))

    async def begin_read(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> int:
        """A member of a group continues at an offset: `HoldsResets.begin_read`."""
        if self._holds_resets is None:
            return offset
        with self._watch_offsets:
            self._admit(context, Action.SUBSCRIBE, topic=topic, group=check_group(group))
            reader = await self._broadcast.of(context, group)
            return await self._holds_resets.begin_read(context, reader, topic, broker, queue_id, offset)

    async def commit_read(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> int | None:
        """As `commit`, by a member that reads the queue: `HoldsResets.commit_read`.

        None: it is kept; always, where the broker does not hold resets.
        """
        if self._holds_resets is None:
            await self.commit(context, group, topic, broker, queue_id, offset)
            return None
        with self._watch_offsets:
            reader = await self._committer(context, group, topic, broker, queue_id, offset)
            return await self._holds_resets.commit_read(context, reader, topic, broker, queue_id, offset)

    async def reset_queue(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> None:
        """Set a group to an offset on one queue, as `reset` sets it on all of them. Raises as `reset`."""
        with self._watch_reset:
            self._admit(context, Action.UPDATE, group=check_group(group), topic=topic)
            if self._holds_resets is None:
                await self._broker.commit(context, group, topic, broker, queue_id, offset)
            else:
                await self._holds_resets.reset_queue(context, group, topic, broker, queue_id, offset)

    async def reset(self, context: Context, group: str, topic: str, to: StartFrom | int) -> QueueOffsets:
        """Set the group on every queue to the first, the last, or the offset at a wall time in ms.

        Of a broadcast group: every client that has a cursor. What was set, as `Directory.reset` says it.
        """
        with self._watch_reset:
            self._admit(context, Action.UPDATE, group=group, topic=topic)
            if isinstance(to, int) and not 0 <= to < 1 << 63:
                raise BadRequest(f"the time {to} ms is out of range")
            reset = Reset(context, group, topic)
            async with self.on_reset.during(reset):
                reset.offsets.update(await self._broker.reset(group, topic, to))
                for member in await self._broadcast.members(group):
                    with contextlib.suppress(GroupNotFound):  # forgotten meanwhile
                        await self._broker.reset(member.member_group, topic, to)
            return reset.offsets
