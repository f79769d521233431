"""The pop ledger: the state of one group in one queue.

`frontier` is the first offset that was never examined; every message below it without an entry is
finished. An entry says who holds the message and until when, or that it waits for another attempt. Nothing
is written when an entry expires: the message is available again, and its next delivery writes an entry that
replaces the old one. Every step adds to the store's batch and changes memory without awaiting in between.

A delivery is identified by its time, and no two deliveries of a message may have the same time, or an old
handle would finish a new delivery. While a message has an entry, the next time is greater than its last
one. A `seek` removes the entries, so the ledger stores the latest time that it ever used with its
frontier: even if the wall clock is set back meanwhile, no time is used twice.

This class has what all ledgers share: the steps of one message. `unordered_ledger` and `ordered_ledger`
choose the messages of a pop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

from brokers.embedded.catalog.catalog import Group, QueueState
from brokers.embedded.groups.dead_letters import DeadLetters
from brokers.embedded.groups.entries import Entry, not_later
from brokers.embedded.groups.invisibility_heap import InvisibilityHeap
from brokers.embedded.groups.pop_attempt import PopAttempt, cost_of
from brokers.embedded.log.message_log import MessageLog
from brokers.embedded.runtime.counters import Counters
from brokers.embedded.settings import EmbeddedSettings
from brokers.embedded.storage.keys import (
    INFLIGHT,
    PROGRESS,
    UNREAD,
    inflight_key,
    progress_key,
    progress_value,
)
from brokers.embedded.storage.store import Store
from popgate.model import FilterKind

if TYPE_CHECKING:
    from brokers.embedded.groups.group_topic import GroupTopic


@dataclass(slots=True, eq=False)
class LedgerParts:
    """What all ledgers work with.

    `freed` counts per ledger what became free since it was last read, `unfinished` the entries of all.
    """

    store: Store
    log: MessageLog
    schedule: InvisibilityHeap
    dead_letters: DeadLetters
    settings: EmbeddedSettings
    tallies: Counters = field(default_factory=Counters)
    freed: dict[Ledger, int] = field(default_factory=dict)
    unfinished: int = 0


class Ledger(ABC):
    """`ready`: offsets that are free again after a delivery, the longest free first.
    `refused`: free ones that did not pass a filter; they wait for a pop with another filter.
    """

    __slots__ = (
        *("entries", "first_pop_ms", "frontier", "group", "kept_pop_ms", "last_pop_ms", "parts"),
        *("queue", "ready", "refused", "share", "unread"),
    )
    ordered: bool

    def __init__(self, share: GroupTopic, queue: QueueState, frontier: int) -> None:
        self.share = share
        self.parts: LedgerParts = share.parts
        self.group: Group = share.group
        self.queue = queue
        self.frontier = frontier
        self.entries: dict[int, Entry] = {}
        self.ready: deque[int] = deque()
        self.refused: dict[tuple[FilterKind, str], list[int]] = {}
        self.first_pop_ms = 0
        """Deliveries get no earlier name than this, so that old handles mean none of them."""
        self.last_pop_ms = 0
        """The latest name that a delivery got."""
        self.kept_pop_ms = 0
        """The same, as it stands in the store."""
        self.unread = False
        """The group has said where it is on another queue of the topic, and done nothing here."""

    def __repr__(self) -> str:
        place = f"{self.group.name} {self.queue.topic.name}/{self.queue.queue_id}"
        return f"<{type(self).__name__} {place} frontier {self.frontier} entries {len(self.entries)}>"

    def recall_names(self, last_pop_ms: int) -> None:
        """Take up where a ledger in the store left off: no delivery gets one of the names it gave."""
        if last_pop_ms == UNREAD:
            self.unread, last_pop_ms = True, 0
        self.last_pop_ms = self.kept_pop_ms = last_pop_ms
        self.first_pop_ms = last_pop_ms + 1 if last_pop_ms else 0

    # -- how a pop chooses ----------------------------------------------------------------------

    @abstractmethod
    def take(self, want: PopAttempt) -> None:
        """Take for a pop what it wants, as far as there is room."""

    @abstractmethod
    def has_work(self) -> bool:
        """Whether a pop with the right filter may find something."""

    @abstractmethod
    def is_full(self) -> bool:
        """Whether so much is unfinished that nothing new is looked at."""

    def is_idle(self) -> bool:
        """Whether the store has all of it, and nothing of it is held or rests."""
        return not self.entries and self.last_pop_ms <= self.kept_pop_ms

    def notice(self, count: int) -> None:
        """`count` more messages can be read."""
        if self.has_work():
            self._tell_free(count)

    @abstractmethod
    def _make_ready(self, offset: int, now_ms: int) -> None:
        """A message is free."""

    @abstractmethod
    def _put_back(self, offset: int) -> None:
        """A message that is free, and was looked at, comes before the others."""

    @abstractmethod
    def _is_free(self, offset: int) -> bool:
        """Whether a message is among the free ones. Slow, and rarely needed."""

    @abstractmethod
    def _skip(self, want: PopAttempt, offset: int, entry: Entry) -> None:
        """A free message does not pass the filter."""

    @abstractmethod
    def _will_be_due(self, entry: Entry, offset: int) -> None:
        """A message was taken."""

    # -- looking ------------------------------------------------------------------------------

    def committed(self) -> int:
        """Everything below is finished, or gone."""
        # Entries stand in the order of their offsets: they are made in it, and only ever replaced.
        lowest = next(iter(self.entries), self.frontier)
        return max(min(lowest, self.frontier), self.queue.minimum)

    def count(self, now_ms: int) -> tuple[int, int]:
        """How many messages are held, and how many rest or wait."""
        held = sum(entry.held and entry.due_ms > now_ms for entry in self.entries.values())
        return held, sum(offset < self.frontier for offset in self.entries) - held

    def was_moved(self, offset: int, pop_ms: int) -> bool:
        """Whether this delivery was the last one of a message that lies in another topic now."""
        return self.parts.dead_letters.was_moved(self._key(offset), pop_ms)

    # -- steps of one message -------------------------------------------------------------------

    def finish(self, offset: int, now_ms: int) -> None:
        """The group is done with this message, or it is gone."""
        was_full = self.is_full()
        del self.entries[offset]
        self.parts.unfinished -= 1
        self.parts.store.delete(INFLIGHT, self._key(offset))
        if was_full:
            self._tell_free()

    def hide(self, offset: int, entry: Entry, due_ms: int, now_ms: int, *, suspend: bool = False) -> Entry:
        """Hold a held message until `due_ms`; it is still the same delivery.

        With `suspend` the delivery is given up and was no attempt, and the message rests until then.
        """
        if suspend:
            again = Entry(due_ms, entry.pop_ms, entry.attempt - 1, False, "", "", entry.lane)
        else:
            again = entry.due(due_ms, entry.renewals + 1)
        self._set(offset, again)
        if due_ms <= now_ms:
            self.fall_due(offset, again, now_ms)
        else:
            self.parts.schedule.add(due_ms, self, again, (offset,))
        return again

    def free(self, offset: int, entry: Entry, now_ms: int) -> None:
        """Undo a delivery that reached no consumer: it is not counted, and the message is free."""
        self._set(offset, Entry(now_ms, entry.pop_ms, entry.attempt - 1, False, "", "", entry.lane))
        if entry.due_ms > now_ms or not self._is_free(offset):
            self._make_ready(offset, now_ms)

    def bury(self, offset: int, now_ms: int, *, spent: bool = False) -> int:
        """Move a message to the dead letters, now; the looks that it cost. Raises having changed nothing.

        `spent`: its attempts are used up.
        """
        record = self.parts.log.get(self.queue.topic, self.queue.queue_id, offset)
        if record is not None:
            self._copy_to_dead_letters(offset, record, spent=spent)
        self.finish(offset, now_ms)
        return cost_of(record)

    def fall_due(self, offset: int, entry: Entry, now_ms: int) -> int:
        """An entry's time is over: the message is free again, or dead when its attempts are used up.

        Returns what it cost, in looks.
        """
        if entry.attempt >= self._most_attempts():
            return self.bury(offset, now_ms, spent=True)
        self._make_ready(offset, now_ms)
        return 1

    def remember_moved(self, offset: int) -> None:
        """An unfinished message was copied to another topic: who acknowledges it here is late."""
        self.parts.dead_letters.remember_moved(self._key(offset), self.entries[offset].pop_ms)

    def raise_floor(self, now_ms: int) -> None:
        """Retention removed the messages below the queue's minimum: drop their entries."""
        minimum = self.queue.minimum
        for offset in list(takewhile(lambda offset: offset < minimum, self.entries)):
            self.finish(offset, now_ms)

    def seek(self, offset: int, now_ms: int) -> None:
        """Continue at `offset`; entries of held and delayed messages are dropped."""
        store = self.parts.store
        for known in self.entries:
            store.delete(INFLIGHT, self._key(known))
        self.close()
        self.first_pop_ms = max(now_ms, self.last_pop_ms) + 1
        self._move_frontier(offset)
        self._tell_free()

    def pass_over(self, offset: int) -> None:
        """Skip the messages between the frontier and `offset`: their entries are removed."""
        self._move_frontier(offset)

    def tidy(self) -> None:
        """Forget which finished messages were free: so many were finished that it would be told wrongly."""
        self.ready = deque(offset for offset in self.ready if offset in self.entries)
        for refuser, offsets in self.refused.items():
            self.refused[refuser] = [offset for offset in offsets if offset in self.entries]

    def close(self) -> None:
        """Forget all entries in memory; what the schedule still has of them is void."""
        self.parts.unfinished -= len(self.entries)
        self.entries.clear()
        self.ready.clear()
        self.refused.clear()

    def adopt(self, entries: dict[int, Entry], now_ms: int) -> None:
        """Begin with entries that were in the store, or in a ledger of the other kind."""
        for offset in sorted(entries):
            if offset < self.frontier:
                entry = self.entries[offset] = not_later(entries[offset], now_ms)
                self.parts.unfinished += 1
                self.last_pop_ms = max(self.last_pop_ms, entry.pop_ms)
                self.parts.schedule.add(entry.due_ms, self, entry, (offset,))

    # -- inside -------------------------------------------------------------------------------

    def _take_again(self, want: PopAttempt, offset: int, record: bytes | None) -> bool:
        """Take one message that is free, or settle why not; False when it does not fit."""
        old = self.entries.get(offset)
        if old is None:
            return True
        if record is None or old.attempt >= self._most_attempts():
            want.changed = True
            want.looks -= cost_of(record)
            if record is not None:
                self._copy_to_dead_letters(offset, record, spent=True)
            self.finish(offset, want.now_ms)
            return True
        decoded = self.parts.log.decoded(self.queue.topic, self.queue.queue_id, offset, record)
        if decoded is None:
            want.changed = True
            want.looks -= cost_of(record)
            self.finish(offset, want.now_ms)
            return True
        if not want.passing.everything and not want.passing.matches(decoded.properties):
            want.looks -= cost_of(record)
            self._skip(want, offset, old)
            return True
        if not want.fits(len(record)):
            return False
        pop_ms = max(want.now_ms, old.pop_ms + 1, self.first_pop_ms)
        if pop_ms > self.last_pop_ms:
            self.last_pop_ms = pop_ms
        attempt_id = want.attempt_id if self.ordered else ""
        entry = Entry(want.due_ms, pop_ms, old.attempt + 1, True, attempt_id, want.holder, old.lane)
        queue = self.queue
        value, head = want.texts(entry, queue.queue_id, ordered=self.ordered)
        self._set(offset, entry, value)
        if entry.attempt > 1:
            self.share.redelivered += 1
            self.parts.tallies.redelivered += 1
        want.holds.append((self, entry, [offset]))
        want.deliver(self.share.shown_topic, offset, decoded, entry, head)
        self._will_be_due(entry, offset)
        return True

    def _copy_to_dead_letters(self, offset: int, record: bytes, *, spent: bool) -> None:
        """A damaged one stays where it is, and is reported."""
        topic = self.queue.topic
        if self.parts.log.decoded(topic, self.queue.queue_id, offset, record) is not None:
            self.parts.dead_letters.add(self.group, topic, record, spent=spent)
            if spent:
                self.remember_moved(offset)
            self.share.dead_lettered += 1
            self.parts.tallies.dead_lettered += 1

    def _reconsider(self, want: PopAttempt) -> None:
        """What other filters refused may pass this one."""
        if self.refused:
            for refuser in [refuser for refuser in self.refused if refuser != want.filter_key]:
                for offset in reversed(self.refused.pop(refuser)):
                    self._put_back(offset)

    def _most_attempts(self) -> int:
        return max(self.group.config.max_attempts, 1)

    def _key(self, offset: int) -> bytes:
        queue = self.queue
        return inflight_key(self.group.id, queue.topic.id, queue.queue_id, offset)

    def _set(self, offset: int, entry: Entry, value: bytes = b"") -> None:
        self.entries[offset] = entry
        self.parts.store.put(INFLIGHT, self._key(offset), value or entry.encode())

    def _tell_free(self, count: int = 1) -> None:
        freed = self.parts.freed
        freed[self] = freed.get(self, 0) + count

    def _move_frontier(self, offset: int) -> None:
        self.frontier = offset
        self.unread = False
        self.kept_pop_ms = self.last_pop_ms
        self.parts.store.put(
            PROGRESS,
            progress_key(self.group.id, self.queue.topic.id, self.queue.queue_id),
            progress_value(offset, self.last_pop_ms),
        )

    def _keep_names(self) -> None:
        """At the end of a pop: what it named is in the store, also when the frontier stayed."""
        if self.last_pop_ms > self.kept_pop_ms:
            self._move_frontier(self.frontier)
