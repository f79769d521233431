"""Moves what pops of a group left unfinished to where the group's classic consumers pull from.

A group that popped has finished the messages between its unfinished ones, and its position is before the
first of those: a consumer that pulled from there would get all of them again. With the unfinished
ones in `%RETRY%group`, the position can be where the pops were. The copy and the end of the delivery are one
batch: whenever the process ends, a message is in one of the two places.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from brokers.capabilities import Reclaimed, ReclaimsRetries
from brokers.embedded.catalog.catalog import Group, Topic
from brokers.embedded.engine.facet import Facet
from brokers.embedded.groups.dead_letters import topic_in
from brokers.embedded.groups.entries import Entry
from brokers.embedded.groups.group_topic import GroupTopic
from brokers.embedded.groups.ledger import Ledger
from brokers.embedded.port.send_back import MOST_TIMES, retry_config, retry_properties
from popgate.context import Context
from popgate.naming import retry_topic
from popgate.wire.messages.properties import KEYS, RETRY_TOPIC, UNIQ_KEY, find_property
from popgate.wire.messages.records import Record, encode_record

_UNIQ_KEY, _KEYS, _RETRY_TOPIC = UNIQ_KEY.encode(), KEYS.encode(), RETRY_TOPIC.encode()
_MOST = 256
_MOST_BYTES = 4 * 1024 * 1024
"""What one step moves at most: it is one batch, and others wait for it."""

_Found = tuple[Ledger, int, Entry | None]
"""An unfinished message: without an entry it was never delivered."""


class ReclaimFacet(Facet, ReclaimsRetries):
    """`ReclaimsRetries` of the embedded broker."""

    async def reclaim(self, context: Context, group: str, topic: str, *, held: bool = False) -> Reclaimed:
        engine = self._engine
        engine.check_open()
        held_topic, held_group = engine.catalogue.topic(topic), engine.catalogue.group(group)
        config = held_group.config
        if config.broadcast or engine.lites.bound(topic, group) is not None:
            return Reclaimed(0, more=False)
        if not _has_any(engine.shares.peek(held_topic, held_group)):
            return Reclaimed(0, more=False)
        engine.check_writable()
        now_ms = engine.steady.now_ms()
        moved = size = 0
        more = False
        try:
            engine.fall_due(now_ms)
            share = engine.shares.share(held_topic, held_group)
            # A copy that comes into a queue of the very share is behind what is looked at here.
            unfinished = list(islice(_unfinished(share, now_ms, held=held), _MOST + 1))
            for at, (ledger, offset, entry) in enumerate(unfinished):
                if at == _MOST or size >= _MOST_BYTES:
                    more = True
                    break
                record = engine.log.get(ledger.queue.topic, ledger.queue.queue_id, offset)
                if record is not None and self._move(ledger, offset, entry, record, now_ms):
                    moved += 1
                    size += len(record)
                    if entry is not None:
                        ledger.remember_moved(offset)
                if offset in ledger.entries:
                    ledger.finish(offset, now_ms)
                if offset >= ledger.frontier:
                    ledger.pass_over(offset + 1)
            for ledger in {ledger: None for ledger, *_ in unfinished}:
                ledger.tidy()
        except Exception as error:
            engine.abandon(error)
            raise
        engine.wake_freed()
        engine.arm()
        await engine.settled()
        return Reclaimed(moved, more)

    # -- inside -------------------------------------------------------------------------------

    def _move(self, ledger: Ledger, offset: int, entry: Entry | None, record: bytes, now_ms: int) -> bool:
        """Copy a message into `%RETRY%group`, or hold the copy back until it is due; False: it is damaged."""
        engine, queue = self._engine, ledger.queue
        message = engine.log.decoded(queue.topic, queue.queue_id, offset, record)
        if message is None:
            return False
        target = engine.catalogue.ensure_topic(retry_config(ledger.group.name), bounded=False)
        properties = retry_properties(message, _sent_to(ledger, message), "")
        delivered = entry.attempt if entry is not None else 0
        times = _times(ledger.group, message, delivered)
        message_id = find_property(properties, _UNIQ_KEY) or b""
        wall_ms = engine.clock.now_ms()
        wait_ms = entry.due_ms - now_ms if entry is not None else 0
        if wait_ms > 0:
            held_back = _encoded(target, message, properties, times, wall_ms, engine.store_host)
            engine.timers.add(target, 0, held_back, wall_ms + wait_ms, message_id)
            return True
        engine.log.append_new(
            target,
            0,
            message.body,
            properties,
            message_id=message_id,
            keys=(find_property(properties, _KEYS) or b"").split(),
            now_ms=wall_ms,
            sys_flag=message.sys_flag,
            flag=message.flag,
            born_ms=message.born_ms,
            born_host=message.born_host,
            store_host=engine.store_host,
            reconsume_times=times,
            prepared_offset=message.prepared_offset,
        )
        return True


def _has_any(share: GroupTopic) -> bool:
    """Whether there may be something to move. Cheap: it is asked again and again of groups that rest."""
    if share.retries is not None:
        for ledger in share.retries.ledgers.values():
            if ledger.entries or ledger.frontier < ledger.queue.visible:
                return True
    ordered = share.group.config.ordered
    return not ordered and any(ledger.entries for ledger in share.ledgers.values())


def _unfinished(share: GroupTopic, now_ms: int, *, held: bool) -> Iterator[_Found]:
    """What is to be moved: of a queue in the order of its offsets."""
    if not share.group.config.ordered:
        for ledger in share.ledgers.values():
            yield from _delivered(ledger, now_ms, held=held)
    retries = share.retries
    if retries is None:
        return
    retries.begin()
    for ledger in retries.ledgers.values():
        yield from _delivered(ledger, now_ms, held=held)
        for offset in range(max(ledger.frontier, ledger.queue.minimum), ledger.queue.visible):
            yield ledger, offset, None


def _delivered(ledger: Ledger, now_ms: int, *, held: bool) -> Iterator[_Found]:
    for offset, entry in ledger.entries.items():
        if offset < ledger.frontier and (held or not entry.held or entry.due_ms <= now_ms):
            yield ledger, offset, entry


def _sent_to(ledger: Ledger, message: Record) -> bytes:
    """The topic that the group reads: of its own retries the one that they say, if they do."""
    read = ledger.share.main.topic if ledger.share.main is not None else ledger.queue.topic
    if read.name == retry_topic(ledger.group.name):
        return topic_in(message.properties, read.packed_name)
    return read.packed_name


def _times(group: Group, message: Record, delivered: int) -> int:
    """How often the copy came before: not so often that it would be dead unseen."""
    most = max(group.config.max_attempts - 1, 0)
    return min(message.reconsume_times + delivered, max(most, message.reconsume_times), MOST_TIMES)


def _encoded(
    target: Topic, message: Record, properties: bytes, times: int, now_ms: int, store_host: bytes
) -> bytes:
    return encode_record(
        target.packed_name,
        0,
        0,
        0,
        message.body,
        properties,
        message.sys_flag,
        message.flag,
        message.born_ms,
        message.born_host,
        now_ms,
        store_host,
        times,
        message.prepared_offset,
    )
