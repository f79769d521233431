"""The status of groups for operators and metrics: their positions, and what they hold."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from heapq import nsmallest
from itertools import islice

from brokers.embedded.engine.facet import Facet
from brokers.embedded.groups.entries import Entry, Lane
from brokers.embedded.groups.group_topic import GroupTopic
from brokers.embedded.groups.ledger import Ledger
from brokers.embedded.groups.ordered_ledger import OrderedLedger
from brokers.embedded.groups.receipts import encode_handle
from brokers.embedded.groups.unordered_ledger import UnorderedLedger
from brokers.embedded.lite.cursor import LITE_QUEUE, Cursor
from brokers.embedded.lite_port.status import held_of, record_of, standing_of, waiting_behind
from popgate.errors import BadRequest
from popgate.ids.message_id import encode_offset_message_id
from popgate.lite import takes_lite_topics
from popgate.model import GroupStatus, Held
from popgate.naming import pop_retry_topic_v2
from popgate.wire.messages.hosts import host_text
from popgate.wire.messages.properties import KEYS, SHARDING_KEY, TAGS, UNIQ_KEY, split_properties
from popgate.wire.messages.records import Record

_MOST_HELD = 256
_PAIRS = 1 << 64
"""Numbers of a group's shares: the ids of a topic and of a group, of 32 bits each."""
_MOST_COUNTED = 4_096
"""Entries of an ordered queue that are looked at for a figure; those held stand in front."""


class GroupStatusFacet(Facet):
    """The part of the port's `Directory` that looks at deliveries."""

    async def held(self, group: str, topic: str, limit: int) -> list[Held]:
        engine = self._engine
        engine.check_open()
        held_topic, held_group = engine.catalogue.topic(topic), engine.catalogue.group(group)
        limit = min(limit, _MOST_HELD)
        if takes_lite_topics(held_group.config, held_topic.name):
            return [self._held_lite(*place) for place in await held_of(engine, held_topic, held_group, limit)]
        share = engine.shares.get(held_topic.id, held_group.id)
        now_ms = engine.steady.now_ms()
        entries: list[tuple[int, int, Ledger, Entry]] = []
        for ledger in _ledgers_of(share):
            entries += [
                (entry.pop_ms, offset, ledger, entry)
                for offset, entry in ledger.entries.items()
                if entry.held and entry.due_ms > now_ms
            ]
            entries = nsmallest(limit, entries, key=lambda row: row[:2])
            await asyncio.sleep(0)  # a ledger may have very many entries
        lanes: dict[int, list[int]] = {}
        held = []
        for _, offset, ledger, entry in entries:
            if ledger.entries.get(offset) is entry:
                held.append(self._held(ledger, offset, entry, lanes))
        return held

    async def standing(self, group: str, topic: str) -> GroupStatus:
        engine = self._engine
        engine.check_open()
        held_topic, held_group = engine.catalogue.topic(topic), engine.catalogue.group(group)
        if takes_lite_topics(held_group.config, held_topic.name):
            return await standing_of(engine, held_topic, held_group)
        return self._standing(engine.shares.peek(held_topic, held_group))

    async def standings(self, start: int, queues: int) -> tuple[list[GroupStatus], int | None]:
        engine = self._engine
        engine.check_open()
        if not 0 <= start < _PAIRS:
            raise BadRequest(f"standings are asked for from a number below {_PAIRS} on, not from {start}")
        result: list[GroupStatus] = []
        at: int | None = start
        while queues > 0 and at is not None:
            pairs, at = engine.shares.pairs(at, 1)
            for held_topic, held_group in pairs:
                queues -= 1 + len(held_topic.queues)
                # Retries stand with their topic, also while neither is in memory.
                if not held_topic.name.startswith(pop_retry_topic_v2(held_group.name, "")):
                    result.append(self._standing(engine.shares.peek(held_topic, held_group)))
        return result, at

    # -- inside -------------------------------------------------------------------------------

    def _held(self, ledger: Ledger, offset: int, entry: Entry, lanes: dict[int, list[int]]) -> Held:
        queue, log, name = ledger.queue, self._engine.log, self._engine.settings.name
        record = log.get(queue.topic, queue.queue_id, offset)
        decoded = log.decoded(queue.topic, queue.queue_id, offset, record) if record is not None else None
        texts = split_properties(decoded.properties) if decoded is not None else {}
        return Held(
            topic=ledger.share.shown_topic,
            broker=name,
            queue_id=queue.queue_id,
            offset=offset,
            message_id=_message_id(decoded, texts),
            message_group=_text(texts, SHARDING_KEY),
            tag=_text(texts, TAGS),
            keys=tuple(_text(texts, KEYS).split()),
            receipt=encode_handle(ledger, offset, entry, name),
            holder=entry.holder,
            since_ms=entry.pop_ms,
            until_ms=entry.due_ms,
            attempt=entry.attempt,
            renewals=entry.renewals,
            waiting_behind=_waiting_behind(ledger, offset, entry, lanes),
        )

    def _held_lite(self, place: Cursor, offset: int, entry: Entry) -> Held:
        """`queue_id` and `offset` are where the message is; gone ones have their place in the lite topic."""
        name = self._engine.settings.name
        decoded = record_of(self._engine, place, offset)
        texts = split_properties(decoded.properties) if decoded is not None else {}
        return Held(
            topic=place.lite.topic.name,
            broker=name,
            queue_id=decoded.queue_id if decoded is not None else LITE_QUEUE,
            offset=decoded.offset if decoded is not None else offset,
            message_id=_message_id(decoded, texts),
            message_group=_text(texts, SHARDING_KEY),
            tag=_text(texts, TAGS),
            keys=tuple(_text(texts, KEYS).split()),
            receipt=place.receipt(offset, entry, name),
            holder=place.holder,
            since_ms=entry.pop_ms,
            until_ms=entry.due_ms,
            attempt=entry.attempt,
            renewals=entry.renewals,
            waiting_behind=waiting_behind(self._engine, place, offset),
            lite_topic=place.lite.name,
        )

    def _standing(self, share: GroupTopic) -> GroupStatus:
        """Of a topic that was never read: all of it is unread, from where the group would start."""
        now_ms = self._engine.steady.now_ms()
        lag = unread = free = in_flight = refused = 0
        full = False
        if not share.ledgers:
            unread = sum(queue.unread_from(share.start_of(queue)) for queue in share.topic.queues)
            lag = unread
        for ledger in _ledgers_of(share):
            kept = len(ledger.entries)
            here_refused = sum(map(len, ledger.refused.values()))
            if isinstance(ledger, OrderedLedger):
                new = ledger.queue.unread_from(ledger.scanned)
                here_free = len(ledger.ready)
                here_held = sum(
                    entry.held and entry.due_ms > now_ms
                    for entry in islice(ledger.entries.values(), _MOST_COUNTED)
                )
            else:
                new = ledger.queue.unread_from(ledger.frontier)
                returned = len(ledger.returned) if isinstance(ledger, UnorderedLedger) else 0
                here_free = len(ledger.ready) + returned
                here_held = kept - here_free - here_refused
            here_free += here_refused
            lag += new + kept
            unread += new
            free += min(here_free, kept)
            in_flight += max(here_held, 0)
            refused += min(here_refused, kept)
            full = full or ledger.is_full()
        others = [share] if share.retries is None else [share, share.retries]
        topic, group = share.topic, share.group
        return GroupStatus(
            group=group.name,
            topic=topic.name,
            lag=lag,
            unread=unread,
            free=free,
            in_flight=in_flight,
            behind=max(lag - unread - free - in_flight, 0),
            refused=refused,
            receivers=self._engine.waiting.count(topic.id, group.id),
            full=full,
            redelivered=sum(counted.redelivered for counted in others),
            dead_lettered=sum(counted.dead_lettered for counted in others),
        )


def _ledgers_of(share: GroupTopic | None) -> list[Ledger]:
    """With those of the group's retries of the topic."""
    if share is None:
        return []
    retries = share.retries
    return [*share.ledgers.values(), *(retries.ledgers.values() if retries is not None else ())]


def _waiting_behind(ledger: Ledger, offset: int, entry: Entry, lanes: dict[int, list[int]]) -> int:
    lane: Lane | None = entry.lane
    if lane is not None:
        offsets = lanes.get(id(lane))
        if offsets is None:
            offsets = lanes[id(lane)] = [
                lane_offset for lane_offset in lane.offsets if lane_offset in ledger.entries
            ]
        return len(offsets) - bisect_right(offsets, offset)
    return max(ledger.queue.visible - ledger.frontier, 0) if ledger.is_full() else 0


def _message_id(decoded: Record | None, texts: dict[bytes, bytes]) -> str:
    if decoded is None:
        return ""
    return _text(texts, UNIQ_KEY) or encode_offset_message_id(
        host_text(decoded.store_host), decoded.commit_offset
    )


def _text(texts: dict[bytes, bytes], name: str) -> str:
    return texts.get(name.encode(), b"").decode("utf-8", "replace")
