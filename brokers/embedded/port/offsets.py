"""Positions of groups: committed offsets, progress, resets, and locks of queues."""

from __future__ import annotations

from collections.abc import Sequence

from brokers.embedded.catalog.catalog import QueueState
from brokers.embedded.engine.facet import Facet
from brokers.embedded.engine.pending_resets import ResetQueue
from brokers.embedded.groups.group_topic import GroupTopic
from brokers.embedded.groups.ledger import Ledger
from brokers.resets import HoldsResets
from popgate.context import Context
from popgate.errors import IllegalOffset
from popgate.model import Bounds, Progress, QueueOffsets, StartFrom


class OffsetsFacet(Facet, HoldsResets):
    """The part of the port's `Offsets` and `Directory` that is about groups' positions."""

    async def committed(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int
    ) -> int | None:
        engine = self._engine
        engine.check_open()
        held_topic, held_group = engine.catalogue.topic(topic), engine.catalogue.group(group)
        engine.queue(held_topic, broker, queue_id)
        share = engine.shares.get(held_topic.id, held_group.id)
        ledger = share.ledgers.get(queue_id) if share is not None else None
        return ledger.committed() if ledger is not None and not ledger.unread else None

    async def commit(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> None:
        ledger = self._ledger_for(group, topic, broker, queue_id, offset)
        self._engine.pending_resets.end(_reset_queue(ledger))
        await self._set(ledger, offset)

    async def begin_read(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> int:
        engine = self._engine
        engine.check_open()
        held_topic, held_group = engine.catalogue.topic(topic), engine.catalogue.find_group(group)
        engine.queue(held_topic, broker, queue_id)
        if held_group is None:
            return offset  # it is made on first use
        queue = ResetQueue(held_group.id, held_topic.id, queue_id)
        if not engine.pending_resets.is_pending(queue, engine.steady.now_ms()):
            return offset
        engine.check_writable()
        engine.pending_resets.end(queue)
        await engine.settled()
        position = await self.committed(context, group, topic, broker, queue_id)
        return offset if position is None else position

    async def commit_read(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> int | None:
        ledger = self._ledger_for(group, topic, broker, queue_id, offset)
        queue = _reset_queue(ledger)
        pending = self._engine.pending_resets.is_pending(queue, self._engine.steady.now_ms())
        if pending and ledger.committed() != offset:
            return ledger.committed()
        self._engine.pending_resets.end(queue)
        await self._set(ledger, offset)
        return None

    async def reset_queue(
        self, context: Context, group: str, topic: str, broker: str, queue_id: int, offset: int
    ) -> None:
        ledger = self._ledger_for(group, topic, broker, queue_id, offset)
        self._engine.pending_resets.begin(_reset_queue(ledger), self._engine.steady.now_ms())
        await self._set(ledger, offset)

    def _ledger_for(self, group: str, topic: str, broker: str, queue_id: int, offset: int) -> Ledger:
        """Where a position is to be set. Raises IllegalOffset, GroupNotFound, TopicNotFound, BadRequest."""
        engine = self._engine
        engine.check_writable()
        held_topic, held_group = engine.catalogue.topic(topic), engine.catalogue.group(group)
        queue = engine.queue(held_topic, broker, queue_id)
        if not queue.minimum <= offset <= queue.visible:
            raise IllegalOffset(offset, queue.minimum, queue.visible)
        share = engine.shares.share(held_topic, held_group)
        share.begin(only=queue_id)
        return share.ledgers[queue_id]

    async def _set(self, ledger: Ledger, offset: int) -> None:
        engine = self._engine
        if ledger.frontier != offset or ledger.entries or ledger.unread:
            ledger.seek(offset, engine.steady.now_ms())
        engine.wake_freed()
        await engine.settled()

    async def progress(self, group: str, topic: str) -> list[Progress]:
        engine = self._engine
        engine.check_open()
        held_topic, held_group = engine.catalogue.topic(topic), engine.catalogue.group(group)
        share = engine.shares.peek(held_topic, held_group)
        progress = self._progress_of(share)
        return progress if share.retries is None else progress + self._progress_of(share.retries)

    def _progress_of(self, share: GroupTopic) -> list[Progress]:
        engine = self._engine
        now_ms = engine.steady.now_ms()
        retry = share.main is not None
        progress = []
        for queue in share.topic.queues:
            bounds = Bounds(queue.minimum, queue.visible)
            ledger = share.ledgers.get(queue.queue_id)
            if ledger is None:
                start = queue.minimum if share.ledgers else share.start_of(queue)
                progress.append(
                    Progress(engine.settings.name, queue.queue_id, start, start, 0, 0, bounds, retry)
                )
                continue
            held, waiting = ledger.count(now_ms)
            frontier = max(ledger.frontier, queue.minimum)
            progress.append(
                Progress(
                    engine.settings.name,
                    queue.queue_id,
                    ledger.committed(),
                    frontier,
                    held,
                    waiting,
                    bounds,
                    retry,
                )
            )
        return progress

    async def topics_of(self, group: str) -> list[str]:
        engine = self._engine
        engine.check_open()
        held_group = engine.catalogue.group(group)
        return sorted(engine.shares.topics_of(held_group))

    async def reset(self, group: str, topic: str, to: StartFrom | int) -> QueueOffsets:
        engine = self._engine
        engine.check_writable()
        held_topic, held_group = engine.catalogue.topic(topic), engine.catalogue.group(group)
        share = engine.shares.share(held_topic, held_group)
        shares = [share] if share.retries is None else [share, share.retries]
        # All are known before the first queue is changed.
        offsets = [
            [self._offset_of(queue, to) for queue in group_topic.topic.queues] for group_topic in shares
        ]
        now_ms = engine.steady.now_ms()
        for group_topic, places in zip(shares, offsets, strict=True):
            group_topic.begin()
            for queue_id, offset in enumerate(places):
                group_topic.ledgers[queue_id].seek(offset, now_ms)
        for ledger in share.ledgers.values():
            engine.pending_resets.begin(_reset_queue(ledger), now_ms)
        engine.wake_freed()
        await engine.settled()
        return {(engine.settings.name, queue_id): offset for queue_id, offset in enumerate(offsets[0])}

    def _offset_of(self, queue: QueueState, to: StartFrom | int) -> int:
        if to is StartFrom.FIRST:
            return queue.minimum
        if to is StartFrom.LAST:
            return queue.visible
        return self._engine.log.offset_at(queue, int(to))

    async def lock(
        self, context: Context, group: str, client_id: str, queues: Sequence[tuple[str, str, int]]
    ) -> list[tuple[str, str, int]]:
        self._engine.check_open()
        return [
            (topic, broker, queue_id)
            for topic, broker, queue_id in queues
            if self._is_ours(topic, broker, queue_id)
            and self._engine.locks.take(group, client_id, (topic, queue_id))
        ]

    async def unlock(
        self, context: Context, group: str, client_id: str, queues: Sequence[tuple[str, str, int]]
    ) -> None:
        self._engine.check_open()
        for topic, _, queue_id in queues:
            self._engine.locks.give_up(group, client_id, (topic, queue_id))

    def _is_ours(self, topic: str, broker: str, queue_id: int) -> bool:
        known = self._engine.catalogue.find_topic(topic)
        return (
            known is not None
            and broker in ("", self._engine.settings.name)
            and 0 <= queue_id < len(known.queues)
        )


def _reset_queue(ledger: Ledger) -> ResetQueue:
    return ResetQueue(ledger.group.id, ledger.queue.topic.id, ledger.queue.queue_id)
