"""A group's position in a lite topic: what it receives next, and what it holds.

The messages of a lite topic are delivered in order: none while an earlier one is held or waits for another
attempt, except several in one response. So a position is one small value in the store, whatever the history.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, islice

from brokers.embedded.catalog.catalog import Group
from brokers.embedded.groups.dead_letters import DeadLetters
from brokers.embedded.groups.entries import MOST_RENEWALS, Entry, not_later
from brokers.embedded.groups.pop_attempt import PopAttempt, cost_of
from brokers.embedded.lite.catalog import LiteCatalog, LiteTopic
from brokers.embedded.lite.keys import PLACE_DUE, due_key, encode_place, place_key
from brokers.embedded.log.message_log import as_stored
from brokers.embedded.runtime.counters import Counters
from brokers.embedded.storage.due_queue import DueQueue
from brokers.embedded.storage.keys import LITE
from brokers.embedded.storage.store import Store
from popgate.ids.receipt import ORDERED, Receipt
from popgate.wire.messages.records import Record

LITE_QUEUE = 1 << 20
"""In the place of the queue in receipts; no queue has this number. The last field is the lite id."""
MOST_HELD = 32
"""Messages of one lite topic that a group holds at a time."""
_READ_AT_ONCE = 8
"""Records may be large."""


@dataclass(slots=True)
class CursorParts:
    """What all places work with."""

    store: Store
    lites: LiteCatalog
    due: DueQueue
    dead_letters: DeadLetters
    tallies: Counters


class Cursor:
    """`frontier`: the first offset never delivered. `entries`: unfinished messages below it.

    Steps change memory; `settle` at their end puts the new state into the store's batch.
    """

    __slots__ = (
        *("attempt_id", "due_ms", "entries", "frontier", "group", "holder", "last_pop_ms", "lite"),
        *("parts", "repeats", "turn"),
    )

    def __init__(self, parts: CursorParts, group: Group, lite: LiteTopic, frontier: int) -> None:
        self.parts = parts
        self.group = group
        self.lite = lite
        self.frontier = frontier
        self.entries: dict[int, Entry] = {}
        self.last_pop_ms = 0
        """The latest name that a delivery got; no other one gets it."""
        self.due_ms = 0
        """When the schedule has something to do here, 0: never."""
        self.attempt_id = ""
        self.holder = ""
        self.repeats: dict[int, int] | None = None
        """How many more times the receive that holds a message was given it, because it was repeated."""
        self.turn = -1

    def __repr__(self) -> str:
        return f"<Cursor {self.group.name} {self.lite!r} frontier {self.frontier} held {len(self.entries)}>"

    def busy(self, turn: int) -> bool:
        return self.turn == turn

    def blocked(self, now_ms: int) -> bool:
        """Whether something is held or rests."""
        return any(entry.due_ms > now_ms for entry in self.entries.values())

    def has_work(self, now_ms: int) -> bool:
        """Whether a pop would find something."""
        if self.entries:
            return not self.blocked(now_ms)
        return max(self.frontier, self.lite.minimum) < self.lite.visible

    def next_due_ms(self, now_ms: int) -> int:
        """When the first of what is held or rests is free again, 0: nothing is or does."""
        return min((entry.due_ms for entry in self.entries.values() if entry.due_ms > now_ms), default=0)

    def adopt(self, entries: dict[int, Entry], now_ms: int) -> None:
        """Restore from the store; a wall clock that was set back meanwhile blocks nothing."""
        self.entries = {offset: not_later(entry, now_ms) for offset, entry in entries.items()}

    def was_moved(self, offset: int, pop_ms: int) -> bool:
        """Whether this delivery was the last one of a message that lies in another topic now."""
        return self.parts.dead_letters.was_moved(self._key(offset), pop_ms)

    # -- taking ---------------------------------------------------------------------------------

    def take(self, want: PopAttempt, broker: str) -> list[int]:
        """Take for a pop what it wants; the offsets."""
        if self.blocked(want.now_ms):
            return []
        self.turn = self.parts.store.turn
        taken: list[int] = []
        pop_ms = max(want.now_ms, self.last_pop_ms + 1)
        first, end = max(self.frontier, self.lite.minimum), self.lite.visible
        coming = chain(sorted(self.entries), range(first, end))
        room = min(want.room, MOST_HELD)
        while len(taken) < room and not want.full and want.looks > 0:
            offsets = list(islice(coming, min(_READ_AT_ONCE, room - len(taken))))
            if not offsets:
                break
            for offset, read in zip(offsets, self.parts.lites.read(self.lite, offsets), strict=True):
                if not self._take_one(want, offset, read, pop_ms, broker):
                    break
                if offset in self.entries:
                    taken.append(offset)
        if taken:
            self.last_pop_ms = pop_ms
            self.attempt_id, self.holder = want.attempt_id, want.holder
            self.repeats = None
        return taken

    def _take_one(
        self, want: PopAttempt, offset: int, read: tuple[bytes, Record] | None, pop_ms: int, broker: str
    ) -> bool:
        """Take one message, or settle why not; False when it does not fit."""
        old = self.entries.get(offset)
        attempt = old.attempt if old is not None else 0
        if read is None or attempt >= self._most_attempts():
            want.looks -= cost_of(read[0] if read is not None else None)
            want.changed = True
            if read is not None:
                self._copy_to_dead_letters(offset, read[0], spent=True)
            self.frontier = max(self.frontier, offset + 1)
            self.finish(offset)
            return True
        if not want.fits(read[1].size):
            return False
        entry = Entry(want.due_ms, pop_ms, attempt + 1, True)
        self.frontier = max(self.frontier, offset + 1)
        self.entries[offset] = entry
        if entry.attempt > 1:
            self.parts.tallies.redelivered += 1
        self._deliver(want, offset, read[1], entry, broker)
        return True

    def take_same(self, want: PopAttempt, broker: str) -> list[int]:
        """A repeated receive: what the first one still holds."""
        if want.attempt_id != self.attempt_id:
            return []
        held = [offset for offset in sorted(self.entries) if self._is_held(offset, want.now_ms)]
        held = held[: want.room]
        taken = []
        for offset, read in zip(held, self.parts.lites.read(self.lite, held), strict=True):
            if read is not None:
                self._deliver(want, offset, read[1], self.entries[offset], broker)
                taken.append(offset)
        if taken:
            repeats = self.repeats = self.repeats or {}
            for offset in taken:
                repeats[offset] = repeats.get(offset, 0) + 1
        return taken

    def let_go(self, offset: int) -> bool:
        """One receive has not got a held message; returns whether no other one of its attempt has it."""
        repeats = self.repeats or {}
        others = repeats.get(offset, 0)
        if others:
            repeats[offset] = others - 1
        return not others

    def _deliver(self, want: PopAttempt, offset: int, decoded: Record, entry: Entry, broker: str) -> None:
        message = as_stored(decoded, broker)
        message.attempt = entry.attempt
        message.receipt = self.receipt(offset, entry, broker)
        message.invisible_until_ms = entry.due_ms
        want.taken.append(message)
        want.room -= 1
        want.bytes_left -= decoded.size

    def receipt(self, offset: int, entry: Entry, broker: str) -> str:
        """The current handle of a delivery."""
        hidden_ms = max(entry.due_ms - entry.pop_ms, 0)
        return Receipt(
            offset, entry.pop_ms, hidden_ms, ORDERED, 0, broker, LITE_QUEUE, offset, self.lite.id
        ).encode()

    # -- steps of one message -------------------------------------------------------------------

    def finish(self, offset: int) -> None:
        """The group is done with this message."""
        self.turn = self.parts.store.turn
        self.entries.pop(offset, None)

    def hide(self, offset: int, due_ms: int, now_ms: int, *, suspend: bool = False) -> Entry:
        """Hold a held message until `due_ms`; with `suspend` it is given up, and was no attempt."""
        self.turn = self.parts.store.turn
        old = self.entries[offset]
        attempt = old.attempt - 1 if suspend else old.attempt
        renewals = 0 if suspend else min(old.renewals + 1, MOST_RENEWALS)
        entry = Entry(due_ms, old.pop_ms, attempt, not suspend, renewals=renewals)
        self.entries[offset] = entry
        if due_ms <= now_ms and attempt >= self._most_attempts():
            self.bury(offset, spent=True)
        return entry

    def free(self, offset: int, now_ms: int) -> None:
        """Undo a delivery that reached no consumer: it is not counted, and the message is free."""
        self.turn = self.parts.store.turn
        old = self.entries[offset]
        self.entries[offset] = Entry(now_ms, old.pop_ms, old.attempt - 1, False)

    def bury(self, offset: int, *, spent: bool = False) -> int:
        """Move a message to the dead letters; the looks that it cost. `spent`: its attempts are used up."""
        [read] = self.parts.lites.read(self.lite, [offset])
        if read is not None:
            self._copy_to_dead_letters(offset, read[0], spent=spent)
        self.finish(offset)
        return cost_of(read[0] if read is not None else None)

    def fall_due(self, now_ms: int) -> int:
        """Times are over: what has used up its attempts is dead, the rest is free; the looks that it cost."""
        cost = 1
        for offset in [offset for offset, entry in self.entries.items() if entry.due_ms <= now_ms]:
            if self.entries[offset].attempt >= self._most_attempts():
                cost += self.bury(offset, spent=True)
        return cost

    def seek(self, offset: int) -> None:
        """Continue at `offset`; entries of held and delayed messages are dropped."""
        self.turn = self.parts.store.turn
        self.entries.clear()
        self.frontier = offset
        self.attempt_id = self.holder = ""

    def settle(self, now_ms: int) -> None:
        """At the end of a step: put what the place is now, and when it has to be looked at."""
        store, lite, group = self.parts.store, self.lite, self.group
        due_ms = self.next_due_ms(now_ms)
        if due_ms != self.due_ms:
            if self.due_ms:
                self.parts.due.remove(due_key(self.due_ms, PLACE_DUE, lite.topic.id, lite.id, group.id))
            if due_ms:
                self.parts.due.add(due_key(due_ms, PLACE_DUE, lite.topic.id, lite.id, group.id), b"")
            self.due_ms = due_ms
        self.turn = store.turn
        value = encode_place(
            lite.name, self.frontier, self.last_pop_ms, due_ms, self.attempt_id, self.holder, self.entries
        )
        store.put(LITE, place_key(group.id, lite.topic.id, lite.id), value)

    def delete(self) -> None:
        """The lite topic goes, and the group's place with it."""
        store, lite, group = self.parts.store, self.lite, self.group
        if self.due_ms:
            self.parts.due.remove(due_key(self.due_ms, PLACE_DUE, lite.topic.id, lite.id, group.id))
        self.due_ms = 0
        self.entries.clear()
        store.delete(LITE, place_key(group.id, lite.topic.id, lite.id))

    # -- inside -------------------------------------------------------------------------------

    def _copy_to_dead_letters(self, offset: int, record: bytes, *, spent: bool) -> None:
        dead_letters = self.parts.dead_letters
        dead_letters.add(self.group, self.lite.topic, record, spent=spent)
        if spent:
            dead_letters.remember_moved(self._key(offset), self.entries[offset].pop_ms)
        self.parts.tallies.dead_lettered += 1

    def _key(self, offset: int) -> bytes:
        """Names the message and the group."""
        return place_key(self.group.id, self.lite.topic.id, self.lite.id) + offset.to_bytes(8, "big")

    def _is_held(self, offset: int, now_ms: int) -> bool:
        entry = self.entries[offset]
        return entry.held and entry.due_ms > now_ms

    def _most_attempts(self) -> int:
        return max(self.group.config.max_attempts, 1)
