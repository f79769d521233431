"""The ledger of an ordered group: order within each message group.

The messages of a message group form a lane, in the order of their offsets; messages without a
message group share one lane of the queue. Only the head of a lane can be delivered, together with the
messages that follow it, as long as none in between is held: an earlier message that is held or waits
for another attempt blocks the later ones of its own lane and no other lane.

The ledger looks ahead: messages beyond the frontier are in their lanes in memory only. When one of
them is delivered out of turn, the frontier moves past those before it, which get entries of the kind "waits".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokers.embedded.catalog.catalog import QueueState
from brokers.embedded.groups.entries import Entry, Lane, not_later
from brokers.embedded.groups.ledger import Ledger
from brokers.embedded.groups.pop_attempt import PopAttempt, cost_of
from brokers.embedded.storage.keys import INFLIGHT
from popgate.model import StoredMessage
from popgate.wire.messages.properties import SHARDING_KEY, find_property

if TYPE_CHECKING:
    from brokers.embedded.groups.group_topic import GroupTopic

_SHARDING_KEY = SHARDING_KEY.encode()
_CHUNK = 64


class OrderedLedger(Ledger):
    """`scanned`: all messages below are in their lanes. `ready` has the heads that can be delivered."""

    __slots__ = ("lanes", "scanned", "taken")
    ordered = True

    def __init__(self, share: GroupTopic, queue: QueueState, frontier: int) -> None:
        super().__init__(share, queue, frontier)
        self.lanes: dict[bytes, Lane] = {}
        self.scanned = frontier
        self.taken: list[int] = []
        """What the pop under way took: it falls due together."""

    def adopt(self, entries: dict[int, Entry], now_ms: int) -> None:
        for offset in sorted(entries):
            if offset >= self.frontier:
                continue
            old = entries[offset]
            name = old.lane.name if old.lane is not None else self._find_lane_name(offset)
            if name is None:  # retention was here, or it is damaged
                self.parts.store.delete(INFLIGHT, self._key(offset))
                continue
            lane = self._join(name, offset)
            self.parts.unfinished += 1
            if old.pop_ms == 0:
                self.entries[offset] = lane.waiting
                continue
            entry = old.due(old.due_ms, old.renewals, lane)
            self.entries[offset] = entry = not_later(entry, now_ms)
            self.last_pop_ms = max(self.last_pop_ms, entry.pop_ms)
            self.parts.schedule.add(entry.due_ms, self, entry, (offset,))
            self.share.remember(entry.attempt_id, self.queue.queue_id, offset)
        for lane in list(self.lanes.values()):
            self._advance(lane, now_ms)

    def _find_lane_name(self, offset: int) -> bytes | None:
        place = self.queue.queue_id, offset
        names = self.share.lane_names
        return names[place] if place in names else lane_of(self, offset)[0]

    # -- looking ------------------------------------------------------------------------------

    def has_work(self) -> bool:
        return bool(self.ready) or self._has_new()

    def _has_new(self) -> bool:
        return self.scanned < self.queue.visible and not self.is_full()

    def is_full(self) -> bool:
        return len(self.entries) >= self.parts.settings.max_order_window

    def is_idle(self) -> bool:
        # Messages beyond the frontier were looked at ahead: they are looked at again.
        looked_ahead = not self.entries or min(self.entries) >= self.frontier
        return looked_ahead and self.last_pop_ms <= self.kept_pop_ms

    def notice(self, count: int) -> None:
        """Add new messages to their lanes, so that those of held message groups wake no consumer."""
        if not self.ready:
            self._look_ahead(self.parts.settings.max_scan, self.parts.settings.max_scan, {})
        super().notice(count)

    def _look_ahead(self, most: int, looks: int, seen: dict[int, bytes]) -> int:
        """Read up to `most` messages on into the lanes, keeping them in `seen`; the looks that it cost."""
        begin = self.scanned = max(self.scanned, self.queue.minimum)
        room = min(most, looks, self.parts.settings.max_order_window - len(self.entries))
        end = self.parts.log.reach(self.queue, begin, room)
        if end <= begin or room <= 0:
            return 0
        cost = 0
        for offset, record in self.parts.log.read(self.queue.topic, self.queue.queue_id, begin, end):
            self.scanned = offset + 1
            decoded = self.parts.log.decoded(self.queue.topic, self.queue.queue_id, offset, record)
            if decoded is not None:
                lane = self._join(_lane_name(decoded.properties), offset)
                self.entries[offset] = lane.waiting
                self.parts.unfinished += 1
                seen[offset] = record
                if lane.offsets[0] == offset:
                    self._advance(lane, 0)
            cost += cost_of(record)
            room -= 1
            if cost >= looks or not room:
                return cost
        self.scanned = end
        return cost

    def _join(self, name: bytes, offset: int) -> Lane:
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = Lane(name)
        lane.offsets.append(offset)
        return lane

    # -- taking -------------------------------------------------------------------------------

    def take(self, want: PopAttempt) -> None:
        """Take the heads of lanes, and of each lane the messages that may follow its head.

        As long as enough lanes seem ready, no new messages are read. If some heads are then not taken (they
        became dead letters, or do not pass the filter), more are read after others were taken: messages of
        taken lanes are added to those, because they would otherwise wait for them to be finished.
        """
        behind = self.frontier
        whole: list[Lane] = []
        first = len(want.taken)
        seen: dict[int, bytes] = {}
        ahead = max(want.looks // 2, 1)
        self._reconsider(want)
        try:
            while want.room > 0 and not want.full and want.looks > 0:
                if len(self.ready) < want.room and ahead > 0:
                    begin = self.scanned
                    ahead -= self._look_ahead(max(_CHUNK, 2 * want.room), ahead, seen)
                    if whole and self.scanned > begin:
                        behind = max(behind, self._take_along(want, begin, seen, whole))
                        if want.room <= 0 or want.full or want.looks <= 0:
                            break
                if self.ready:
                    behind = max(behind, self._take_head(want, seen, whole))
                elif not self._has_new():
                    break
                elif ahead <= 0:
                    want.looks = 0
        finally:
            if self.taken:
                self.parts.schedule.add(want.due_ms, self, None, self.taken)
                self.taken = []
            self._pass(behind, want)
        self._keep_names()
        if len(want.taken) - first > 1:
            want.taken[first:] = sorted(want.taken[first:], key=_offset_of)
        if want.looks <= 0 and want.room > 0 and not want.full and self.has_work():
            want.more = True

    def _take_head(self, want: PopAttempt, seen: dict[int, bytes], whole: list[Lane]) -> int:
        """Take from the next lane its head and what may go with it; behind which offset that was.

        A lane of which nothing is left is added to `whole`.
        """
        lane = self._lane_queued_as(self.ready.popleft())
        if lane is None:
            return 0
        behind, nothing_left = self._take_lane(want, lane, 0, seen)
        if nothing_left:
            whole.append(lane)
        return behind

    def _take_along(self, want: PopAttempt, begin: int, seen: dict[int, bytes], whole: list[Lane]) -> int:
        """Take messages from `begin` on in lanes that were taken completely."""
        behind = 0
        for lane in whole:
            if lane.offsets[-1] >= begin:
                behind = max(behind, self._take_lane(want, lane, begin, seen)[0])
        return behind

    def _take_lane(
        self, want: PopAttempt, lane: Lane, begin: int, seen: dict[int, bytes]
    ) -> tuple[int, bool]:
        """Take of a lane what may be taken; behind which offset that was, and whether it was all there is.

        What is below `begin` was taken by the same pop already.
        """
        behind = 0
        lane.queued = Lane.BUSY
        left = Lane.NOTHING
        got_some = begin > 0
        nothing_left = False
        try:
            for offset in lane.offsets:
                entry = self.entries.get(offset)
                if entry is None or offset < begin:
                    continue  # finished, or taken
                if entry.due_ms > want.now_ms or want.room <= 0 or want.looks <= 0:
                    break
                record = seen.pop(offset, None) or self._read(offset)
                if not self._take_again(want, offset, record):
                    break
                behind = offset + 1
                taken = self.entries.get(offset)
                if taken is entry:  # it does not pass the filter any more
                    if not got_some:
                        left = offset
                        self.refused.setdefault(want.filter_key, []).append(offset)
                    break
                if taken is not None:
                    got_some = True
                    if want.one_per_group:
                        break
            else:
                nothing_left = got_some
        finally:
            lane.queued = left
            self._advance(lane, want.now_ms)
        return behind, nothing_left

    def _read(self, offset: int) -> bytes | None:
        return self.parts.log.get(self.queue.topic, self.queue.queue_id, offset)

    def _make_ready(self, offset: int, now_ms: int) -> None:
        self._advance(self._lane(self.entries[offset]), now_ms)

    def _is_free(self, offset: int) -> bool:
        return False  # a lane knows whether its head stands among them

    def _put_back(self, offset: int) -> None:
        if self._lane_queued_as(offset) is not None:
            self.ready.appendleft(offset)

    def _lane_queued_as(self, offset: int) -> Lane | None:
        """The lane whose head this offset in `ready` is."""
        entry = self.entries.get(offset)
        lane = entry.lane if entry is not None else None
        return lane if lane is not None and lane.queued == offset else None

    def _skip(self, want: PopAttempt, offset: int, entry: Entry) -> None:
        if entry.pop_ms == 0:
            self.finish(offset, want.now_ms)  # never delivered and not wanted
            want.changed = True
        else:
            want.refused = True

    def _pass(self, behind: int, want: PopAttempt) -> None:
        """Move the frontier past the taken messages; waiting ones below it get their entries."""
        if behind <= self.frontier:
            return
        entries = self.entries
        put = self.parts.store.put
        passed = range(max(self.frontier, self.queue.minimum), behind)
        # Where compaction left holes there are more offsets than entries.
        for offset in passed if len(passed) <= len(entries) else [at for at in entries if at in passed]:
            entry = entries.get(offset)
            if entry is not None and entry.pop_ms == 0:
                put(INFLIGHT, self._key(offset), entry.encode())
        self._move_frontier(behind)
        want.changed = True

    # -- steps of one message -------------------------------------------------------------------

    def finish(self, offset: int, now_ms: int) -> None:
        entry = self.entries[offset]
        super().finish(offset, now_ms)
        self.share.forget(entry.attempt_id, self.queue.queue_id, offset)
        self._advance(self._lane(entry), now_ms)

    def seek(self, offset: int, now_ms: int) -> None:
        super().seek(offset, now_ms)
        self.scanned = offset

    def pass_over(self, offset: int) -> None:
        super().pass_over(offset)
        self.scanned = max(self.scanned, offset)

    def close(self) -> None:
        for offset, entry in self.entries.items():
            self.share.forget(entry.attempt_id, self.queue.queue_id, offset)
        super().close()
        self.lanes.clear()

    # -- inside -------------------------------------------------------------------------------

    def _lane(self, entry: Entry) -> Lane:
        assert entry.lane is not None  # noqa: S101 - all entries of this ledger have one
        return entry.lane

    def _will_be_due(self, entry: Entry, offset: int) -> None:
        self.taken.append(offset)

    def _set(self, offset: int, entry: Entry, value: bytes = b"") -> None:
        old = self.entries.get(offset)
        if old is not None and (old.attempt_id != entry.attempt_id or old.pop_ms != entry.pop_ms):
            self.share.forget(old.attempt_id, self.queue.queue_id, offset)
        self.share.remember(entry.attempt_id, self.queue.queue_id, offset)
        super()._set(offset, entry, value)

    def _advance(self, lane: Lane, now_ms: int) -> None:
        """Forget finished messages at the head; if the next one is free, it can be delivered."""
        if lane.queued == Lane.BUSY:
            return
        offsets, entries = lane.offsets, self.entries
        while offsets and offsets[0] not in entries:
            offsets.popleft()
        if not offsets:
            if self.lanes.get(lane.name) is lane:
                del self.lanes[lane.name]
            return
        head = offsets[0]
        if lane.queued != head and entries[head].due_ms <= now_ms:
            lane.queued = head
            self.ready.append(head)
            self._tell_free()


def lane_of(ledger: Ledger, offset: int) -> tuple[bytes | None, int]:
    """The lane of a message, from the message itself: its entry was made while the group was not ordered.

    None when retention was here, or it is damaged; and the looks that it cost.
    """
    log, topic, queue_id = ledger.parts.log, ledger.queue.topic, ledger.queue.queue_id
    record = log.get(topic, queue_id, offset)
    decoded = log.decoded(topic, queue_id, offset, record) if record is not None else None
    return _lane_name(decoded.properties) if decoded is not None else None, cost_of(record)


def _lane_name(properties: bytes) -> bytes:
    return find_property(properties, _SHARDING_KEY) or b""


def _offset_of(message: StoredMessage) -> int:
    return message.offset
