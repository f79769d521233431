"""The ledger of an unordered group: a pop takes messages that are available again, then new ones."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from brokers.embedded.catalog.catalog import QueueState
from brokers.embedded.groups.entries import Entry
from brokers.embedded.groups.ledger import Ledger
from brokers.embedded.groups.pop_attempt import PopAttempt, cost_of
from brokers.embedded.storage.keys import INFLIGHT, inflight_key
from popgate.errors import PeerWireError
from popgate.wire.messages.records import decode_record

if TYPE_CHECKING:
    from brokers.embedded.groups.group_topic import GroupTopic

_FEW = 32
"""Free messages read at a time: their records may be large."""


class UnorderedLedger(Ledger):
    """`returned`: a heap of messages that were taken and returned before any consumer had them.

    `new_first`: whether a new or a free message is next when one is requested and there are both.
    """

    __slots__ = ("new_first", "returned")
    ordered = False

    def __init__(self, share: GroupTopic, queue: QueueState, frontier: int) -> None:
        super().__init__(share, queue, frontier)
        self.returned: list[int] = []
        self.new_first = False

    def has_work(self) -> bool:
        return bool(self.ready or self.returned) or self._has_new()

    def is_full(self) -> bool:
        return len(self.entries) >= self.parts.settings.max_in_flight

    def take(self, want: PopAttempt) -> None:
        """Take free and new messages, as far as there is room.

        With too many of both, each kind gets a share, so that messages which always fail do
        not block the others.
        """
        self._reconsider(want)
        if self.returned:
            self._take_free(want, min(want.room, len(self.returned)))
        if self.ready and want.room > 0:
            if not self._has_new():
                self._take_free(want, want.room)
            elif want.room > 1:
                self._take_free(want, want.room // 2)
            else:
                self.new_first = not self.new_first
                if not self.new_first:
                    self._take_free(want, 1)
        if want.room > 0 and want.looks > 0 and not want.full and self._has_new():
            self._take_new(want)
        if self.ready or self.returned:
            self._take_free(want, want.room)
        self._keep_names()
        if want.looks <= 0 and want.room > 0 and not want.full and self.has_work():
            want.more = True

    def tidy(self) -> None:
        super().tidy()
        self.returned = [offset for offset in self.returned if offset in self.entries]
        heapify(self.returned)

    def close(self) -> None:
        super().close()
        self.returned.clear()

    # -- inside -------------------------------------------------------------------------------

    def _has_new(self) -> bool:
        return self.frontier < self.queue.visible and not self.is_full()

    def _take_free(self, want: PopAttempt, at_most: int) -> None:
        """Take up to `at_most` free messages; returned ones come first."""
        least_room = want.room - at_most
        while want.room > least_room and want.looks > 0 and not want.full:
            wanted = min(want.room - least_room, _FEW)
            picked: list[int] = []
            while self.returned and len(picked) < wanted:
                picked.append(heappop(self.returned))
            while self.ready and len(picked) < wanted:
                picked.append(self.ready.popleft())
            if not picked:
                return
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

    def _take_new(self, want: PopAttempt) -> None:
        """Read on from the frontier; what does not pass the filter is finished."""
        queue, entries = self.queue, self.entries
        begin = self.frontier if self.frontier > queue.minimum else queue.minimum
        room = min(want.room, self.parts.settings.max_in_flight - len(entries))
        passing = want.passing
        everything = passing.everything
        pop_ms = want.now_ms if want.now_ms > self.first_pop_ms else self.first_pop_ms
        entry = Entry(want.due_ms, pop_ms, 1, True, "", want.holder)
        topic_id, topic, queue_id = queue.topic.id, self.share.shown_topic, queue.queue_id
        value, head = want.texts(entry, queue_id, ordered=False)
        group_id, put = self.group.id, self.parts.store.put
        offsets: list[int] = []
        end = behind = self.parts.log.reach(queue, begin, room if everything else want.looks)
        for offset, record in self.parts.log.read(queue.topic, queue_id, begin, end):
            try:
                decoded = decode_record(record)
            except PeerWireError as error:
                self.parts.log.damages.leave(topic, (topic_id, queue_id, offset), error)
                want.looks -= cost_of(record)
                want.more = True  # what is behind it was not looked at
                continue
            if everything or passing.matches(decoded.properties):
                if not want.fits(len(record)):
                    behind = offset
                    break
                offsets.append(offset)
                entries[offset] = entry
                put(INFLIGHT, inflight_key(group_id, topic_id, queue_id, offset), value)
                want.deliver(topic, offset, decoded, entry, head)
                if len(offsets) == room:
                    behind = offset + 1
                    break
            else:
                want.looks -= cost_of(record)
                if want.looks <= 0:
                    behind = offset + 1
                    break
        if offsets:
            self.parts.unfinished += len(offsets)
            if pop_ms > self.last_pop_ms:
                self.last_pop_ms = pop_ms
            self.parts.schedule.add(entry.due_ms, self, entry, offsets)
            want.holds.append((self, entry, offsets))
        if behind != self.frontier:
            self._move_frontier(behind)
            want.changed = True

    def _skip(self, want: PopAttempt, offset: int, entry: Entry) -> None:
        """Keep a free message that does not pass this filter for a pop with another filter."""
        self.refused.setdefault(want.filter_key, []).append(offset)
        want.refused = True

    def _will_be_due(self, entry: Entry, offset: int) -> None:
        self.parts.schedule.add(entry.due_ms, self, entry, (offset,))

    def _make_ready(self, offset: int, now_ms: int) -> None:
        if self.entries[offset].attempt == 0:
            heappush(self.returned, offset)
        else:
            self.ready.append(offset)
        self._tell_free()

    def _put_back(self, offset: int) -> None:
        entry = self.entries.get(offset)
        if entry is not None and entry.attempt == 0:
            heappush(self.returned, offset)
        elif entry is not None:
            self.ready.appendleft(offset)

    def _is_free(self, offset: int) -> bool:
        return (
            offset in self.ready
            or offset in self.returned
            or any(offset in refused for refused in self.refused.values())
        )
