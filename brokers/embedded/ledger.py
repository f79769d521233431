"""The pop ledger: what one group has of one queue.

`frontier` is the first offset never looked at; below it every message without an entry is
finished. An entry says who has the message until when, or that it rests. Nothing is written when
an entry's time is over: the message is just `ready` again, and its next delivery is an entry that
replaces the old one. All steps add to the store's batch and change memory in one go.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from brokers.embedded.deadletters import DeadLetters
from brokers.embedded.entries import Entry, not_later
from brokers.embedded.keys import INFLIGHT, PROGRESS, inflight_key, progress_key
from brokers.embedded.log import MessageLog
from brokers.embedded.schedule import Schedule
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.store import Store
from brokers.embedded.taking import Want
from brokers.embedded.topics import Group, QueueState
from popgate.model import FilterKind
from popgate.wire.records import decode_record

if TYPE_CHECKING:
    from brokers.embedded.shares import Share


@dataclass(slots=True, eq=False)
class LedgerParts:
    """What all ledgers work with. `freed` counts per ledger what became free since it was last read."""

    store: Store
    log: MessageLog
    schedule: Schedule
    dead_letters: DeadLetters
    settings: EmbeddedSettings
    freed: dict[Ledger, int] = field(default_factory=dict)


class Ledger:
    """The ledger of an unordered group."""

    __slots__ = (
        *("entries", "first_pop_ms", "frontier", "group", "new_first", "parts"),
        *("queue", "ready", "refused", "returned", "share"),
    )
    ordered = False

    def __init__(self, share: Share, queue: QueueState, frontier: int) -> None:
        self.share = share
        self.parts: LedgerParts = share.parts
        self.group: Group = share.group
        self.queue = queue
        self.frontier = frontier
        self.entries: dict[int, Entry] = {}
        self.returned: list[int] = []
        """A heap of those that were taken and given back before anybody had them."""
        self.ready: deque[int] = deque()
        """Those that are free again after a delivery, the longest first."""
        self.refused: dict[tuple[FilterKind, str], list[int]] = {}
        """Free ones that did not pass a filter: they wait for a pop with another one."""
        self.new_first = False
        """Whose turn it is when one message is wanted, and there are both kinds."""
        self.first_pop_ms = 0
        """Deliveries get no earlier name than this, so that old handles mean none of them."""

    def __repr__(self) -> str:
        place = f"{self.group.name} {self.queue.topic.name}/{self.queue.queue_id}"
        return f"<{type(self).__name__} {place} frontier {self.frontier} entries {len(self.entries)}>"

    def adopt(self, entries: dict[int, Entry], now_ms: int) -> None:
        """Begin with entries that were in the store, or in a ledger of the other kind."""
        for offset in sorted(entries):
            if offset < self.frontier:
                entry = self.entries[offset] = not_later(entries[offset], now_ms)
                self.parts.schedule.add(entry.due_ms, self, entry, (offset,))

    # -- looking ------------------------------------------------------------------------------

    def has_work(self) -> bool:
        """Whether a pop with the right filter may find something."""
        return bool(self.ready or self.returned) or self._has_new()

    def _has_new(self) -> bool:
        return self.frontier < self.queue.visible and not self.is_full()

    def is_full(self) -> bool:
        """Whether so much is unfinished that nothing new is looked at."""
        return len(self.entries) >= self.parts.settings.max_in_flight

    def notice(self, count: int) -> None:
        """`count` more messages can be read."""
        if self.has_work():
            self._tell_free(count)

    def committed(self) -> int:
        """Everything below is finished, or gone."""
        lowest = min(self.entries, default=self.frontier)
        return max(min(lowest, self.frontier), self.queue.minimum)

    def count(self, now_ms: int) -> tuple[int, int]:
        """How many messages are held, and how many rest or wait."""
        held = sum(entry.held and entry.due_ms > now_ms for entry in self.entries.values())
        return held, self._unfinished() - held

    # -- taking -------------------------------------------------------------------------------

    def take(self, want: Want) -> None:
        """Take what is free again and what is new, as far as there is room.

        When there is too much of both, each gets its part, so that messages which fail for ever do
        not keep the others back.
        """
        self._reconsider(want)
        if self.returned:
            self._take_free(want, want.room)
        if self.ready and not self._has_new():
            self._take_free(want, want.room)
        elif self.ready and want.room == 1:
            self.new_first = not self.new_first
            if not self.new_first:
                self._take_free(want, 1)
        elif self.ready:
            self._take_free(want, want.room // 2)
        if want.room > 0 and not want.full and want.looks > 0 and self._has_new():
            self._take_new(want)
        self._take_free(want, want.room)
        if want.room > 0 and want.looks <= 0 and not want.full and self.has_work():
            want.more = True

    def _reconsider(self, want: Want) -> None:
        """What other filters refused may pass this one."""
        if self.refused:
            for refuser in [refuser for refuser in self.refused if refuser != want.filter_key]:
                for offset in self.refused.pop(refuser):
                    self._put_back(offset)

    def _take_free(self, want: Want, at_most: int) -> None:
        """Take up to `at_most` of those that are free again; those given back come first."""
        before = want.room
        while want.room > before - at_most and want.looks > 0 and not want.full:
            wanted = min(at_most - (before - want.room), want.looks)
            picked: list[int] = []
            while self.returned and len(picked) < wanted:
                picked.append(heappop(self.returned))
            while self.ready and len(picked) < wanted:
                picked.append(self.ready.popleft())
            if not picked:
                return
            want.looks -= len(picked)
            settled = 0
            try:
                records = self.parts.log.get_many(self.queue.topic, self.queue.queue_id, picked)
                for offset, record in zip(picked, records, strict=True):
                    if not self._take_again(want, offset, record):
                        break
                    settled += 1
            finally:
                for offset in reversed(picked[settled:]):
                    self._put_back(offset)

    def _put_back(self, offset: int) -> None:
        entry = self.entries.get(offset)
        if entry is not None and entry.attempt == 0:
            heappush(self.returned, offset)
        elif entry is not None:
            self.ready.appendleft(offset)

    def _take_again(self, want: Want, offset: int, record: bytes | None) -> bool:
        """Take one message that is free, or settle why not; False when it does not fit."""
        old = self.entries.get(offset)
        if old is None:
            return True
        if record is None:
            self._remove(offset, want.now_ms)  # retention was here
            want.changed = True
            return True
        if old.attempt >= max(self.group.config.max_attempts, 1):
            self._bury(offset, record, want.now_ms)
            want.changed = True
            return True
        found = decode_record(record)
        if not want.passing.everything and not want.passing.matches(found.properties):
            self._skip(want, offset, old)
            return True
        if not want.fits(len(record)):
            return False
        entry = Entry(
            want.due_ms,
            max(want.now_ms, old.pop_ms + 1, self.first_pop_ms),
            old.attempt + 1,
            True,
            want.attempt_id if self.ordered else "",
            want.holder,
            old.lane,
        )
        queue = self.queue
        value, head = want.texts(entry, queue.queue_id, ordered=self.ordered)
        self._set(offset, entry, value)
        want.holds.append((self, entry, [offset]))
        want.deliver(queue.topic.name, offset, found, entry, head)
        self._will_be_due(entry, offset)
        return True

    def _will_be_due(self, entry: Entry, offset: int) -> None:
        self.parts.schedule.add(entry.due_ms, self, entry, (offset,))

    def _skip(self, want: Want, offset: int, entry: Entry) -> None:
        """A delivered message that does not pass the filter any more is kept, for one that it passes."""
        self.refused.setdefault(want.filter_key, []).append(offset)
        want.refused = True

    def _take_new(self, want: Want) -> None:
        queue, entries = self.queue, self.entries
        begin = self.frontier if self.frontier > queue.minimum else queue.minimum
        room = min(want.room, self.parts.settings.max_in_flight - len(entries))
        if room <= 0:
            return
        passing = want.passing
        everything = passing.everything
        looks = min(room, want.looks) if everything else want.looks
        entry = Entry(want.due_ms, max(want.now_ms, self.first_pop_ms), 1, True, holder=want.holder)
        topic_id, topic, queue_id = queue.topic.id, queue.topic.name, queue.queue_id
        value, head = want.texts(entry, queue_id, ordered=False)
        group_id, put = self.group.id, self.parts.store.put
        offsets: list[int] = []
        end = min(begin + looks, queue.visible)
        behind = end
        for offset, record in self.parts.log.read(queue.topic, queue_id, begin, end):
            found = decode_record(record)
            if everything or passing.matches(found.properties):
                if not want.fits(len(record)):
                    behind = offset
                    break
                offsets.append(offset)
                entries[offset] = entry
                put(INFLIGHT, inflight_key(group_id, topic_id, queue_id, offset), value)
                want.deliver(topic, offset, found, entry, head)
                if len(offsets) == room:
                    behind = offset + 1
                    break
        want.looks -= behind - begin
        if offsets:
            self.parts.schedule.add(entry.due_ms, self, entry, offsets)
            want.holds.append((self, entry, offsets))
        if behind != self.frontier:
            self._move_frontier(behind)
            want.changed = True

    # -- steps of one message -------------------------------------------------------------------

    def finish(self, offset: int, now_ms: int) -> None:
        """The group is done with this message."""
        was_full = self.is_full()
        self._remove(offset, now_ms)
        if was_full:
            self._tell_free()

    def hide(self, offset: int, entry: Entry, due_ms: int, now_ms: int) -> Entry:
        """Hold a held message until `due_ms`; it is still the same delivery."""
        again = Entry(due_ms, entry.pop_ms, entry.attempt, True, entry.attempt_id, entry.holder, entry.lane)
        self._set(offset, again)
        if due_ms <= now_ms:
            self.fall_due(offset, again, now_ms)
        else:
            self.parts.schedule.add(due_ms, self, again, (offset,))
        return again

    def free(self, offset: int, entry: Entry, now_ms: int) -> None:
        """Undo a delivery that reached nobody: it was no attempt, and the message is free now."""
        self._set(offset, Entry(now_ms, entry.pop_ms, entry.attempt - 1, False, "", "", entry.lane))
        if entry.due_ms > now_ms or not self._is_free(offset):
            self._make_ready(offset, now_ms)

    def bury(self, offset: int, now_ms: int) -> None:
        """Move a message to the dead letters, now."""
        record = self.parts.log.get(self.queue.topic, self.queue.queue_id, offset)
        if record is None:
            self._remove(offset, now_ms)
        else:
            self._bury(offset, record, now_ms)

    def fall_due(self, offset: int, entry: Entry, now_ms: int) -> None:
        """An entry's time is over: the message is free again, or dead when its attempts are used up."""
        if entry.attempt >= max(self.group.config.max_attempts, 1):
            self.bury(offset, now_ms)
        else:
            self._make_ready(offset, now_ms)

    def raise_floor(self, now_ms: int) -> None:
        """Retention removed the messages below the queue's minimum: nobody can finish them now."""
        minimum = self.queue.minimum
        for offset in [offset for offset in self.entries if offset < minimum]:
            self._remove(offset, now_ms)

    def seek(self, offset: int, now_ms: int) -> None:
        """Begin anew at `offset`; what was held or rested is forgotten."""
        store = self.parts.store
        for known in self.entries:
            store.delete(INFLIGHT, self._key(known))
        self.close()
        self.first_pop_ms = now_ms + 1
        self._move_frontier(offset)
        self._tell_free()

    def close(self) -> None:
        """Forget all entries in memory; what the schedule still has of them is void."""
        self.entries.clear()
        self.returned.clear()
        self.ready.clear()
        self.refused.clear()

    # -- inside -------------------------------------------------------------------------------

    def _unfinished(self) -> int:
        return len(self.entries)

    def _key(self, offset: int) -> bytes:
        return inflight_key(self.group.id, self.queue.topic.id, self.queue.queue_id, offset)

    def _set(self, offset: int, entry: Entry, value: bytes = b"") -> None:
        self.entries[offset] = entry
        self.parts.store.put(INFLIGHT, self._key(offset), value or entry.encode())

    def _remove(self, offset: int, now_ms: int) -> None:
        del self.entries[offset]
        queue = self.queue
        self.parts.store.delete(INFLIGHT, inflight_key(self.group.id, queue.topic.id, queue.queue_id, offset))

    def _bury(self, offset: int, record: bytes, now_ms: int) -> None:
        self.parts.dead_letters.add(self.group, self.queue.topic, record)
        self._remove(offset, now_ms)

    def _make_ready(self, offset: int, now_ms: int) -> None:
        if self.entries[offset].attempt == 0:
            heappush(self.returned, offset)
        else:
            self.ready.append(offset)
        self._tell_free()

    def _is_free(self, offset: int) -> bool:
        """Whether a message stands among those that are free. Slow, and rarely needed."""
        return (
            offset in self.ready
            or offset in self.returned
            or any(offset in refused for refused in self.refused.values())
        )

    def _tell_free(self, count: int = 1) -> None:
        freed = self.parts.freed
        freed[self] = freed.get(self, 0) + count

    def _move_frontier(self, offset: int) -> None:
        self.frontier = offset
        self.parts.store.put(
            PROGRESS,
            progress_key(self.group.id, self.queue.topic.id, self.queue.queue_id),
            offset.to_bytes(8, "big"),
        )
