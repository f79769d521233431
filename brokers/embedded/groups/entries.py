"""The state of one message below its group's frontier that is not finished yet."""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from struct import Struct
from typing import ClassVar

_HEAD = Struct(">QQIBBB")
"""due ms, pop ms, attempt, flags, length of the attempt id, length of the holder; then those, and the lane"""
_HELD = 1
_IN_LANE = 2
_RENEWALS_SHIFT = 2
MOST_RENEWALS = 63
"""As many as the other bits of the flags can tell; older programs do not look at these bits."""
_LONGEST_TEXT = 200
_NAMES_AHEAD_MS = 1_000
_LONGEST_LANE = 1_024


class Entry:
    """One delivery, or the delay between two. Immutable: every step creates a new one.

    `due_ms`: until then the message is hidden. `pop_ms` identifies the delivery; the next one has a
    greater value (0: there was none yet). `attempt` counts deliveries. `held`: a client has it, and its
    receipt is valid until `due_ms`; else it was returned, waits for its turn or for its delay. `lane`:
    the message group's lane in an ordered group. `attempt_id`, `holder`: of the receive that took it.
    `renewals`: how often its invisible time was changed. Messages taken together share one entry.
    """

    __slots__ = ("attempt", "attempt_id", "due_ms", "held", "holder", "lane", "pop_ms", "renewals")

    def __init__(
        self,
        due_ms: int,
        pop_ms: int,
        attempt: int,
        held: bool,
        attempt_id: str = "",
        holder: str = "",
        lane: Lane | None = None,
        renewals: int = 0,
    ) -> None:
        self.due_ms = due_ms
        self.pop_ms = pop_ms
        self.attempt = attempt
        self.held = held
        self.attempt_id = attempt_id
        self.holder = holder
        self.lane = lane
        self.renewals = renewals

    def __repr__(self) -> str:
        state = "held" if self.held else "free"
        return f"<Entry {state} until {self.due_ms} attempt {self.attempt} popped {self.pop_ms}>"

    def due(self, due_ms: int, renewals: int, lane: Lane | None = None) -> Entry:
        """The same delivery with another time; in this lane, if there is one."""
        lane, renewals = lane or self.lane, min(renewals, MOST_RENEWALS)
        return Entry(
            due_ms, self.pop_ms, self.attempt, self.held, self.attempt_id, self.holder, lane, renewals
        )

    def is_same(self, other: Entry) -> bool:
        """Whether it is the same step of the same delivery, perhaps as it was read again."""
        if self is other:
            return True
        mine = self.pop_ms, self.due_ms, self.renewals, self.attempt, self.attempt_id, self.holder
        others = other.pop_ms, other.due_ms, other.renewals, other.attempt, other.attempt_id, other.holder
        return mine == others and self.held and other.held

    def encode(self) -> bytes:
        """The stored form."""
        return self.front() + self.lane_name()

    def front(self) -> bytes:
        """What stands in the store before the lane: alike for all that are taken together."""
        attempt_id, holder = self.attempt_id.encode(), self.holder.encode()
        flags = (_HELD if self.held else 0) | (_IN_LANE if self.tells_lane() else 0)
        flags |= self.renewals << _RENEWALS_SHIFT
        head = _HEAD.pack(self.due_ms, self.pop_ms, self.attempt, flags, len(attempt_id), len(holder))
        return b"".join((head, attempt_id, holder))

    def lane_name(self) -> bytes:
        """The name of the lane, if it is short enough to be told; a long one is found in the message."""
        return self.lane.name if self.lane is not None and self.tells_lane() else b""

    def tells_lane(self) -> bool:
        return self.lane is not None and len(self.lane.name) <= _LONGEST_LANE


class Lane:
    """The unfinished messages of one message group in one queue, for an ordered group.

    Finished ones leave `offsets` when they reach its head. `queued` is the lane's offset in
    `ready`, or one of the two values below; other offsets found there are obsolete.
    """

    __slots__ = ("name", "offsets", "queued", "waiting")
    NOTHING: ClassVar[int] = -1
    BUSY: ClassVar[int] = -2
    """A pop decides what to take of it."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.offsets: deque[int] = deque()
        self.queued = self.NOTHING
        self.waiting = Entry(0, 0, 0, False, lane=self)
        """The entry of all its messages that were never delivered."""

    def __repr__(self) -> str:
        return f"<Lane {self.name!r} offsets {len(self.offsets)}>"


def decode_entry(value: bytes) -> Entry:
    """The decoded entry; its lane, if it has one, has only a name."""
    due_ms, pop_ms, attempt, flags, length, more = _HEAD.unpack_from(value)
    begin = _HEAD.size
    middle = begin + length
    attempt_id, holder = value[begin:middle].decode(), value[middle : middle + more].decode()
    lane = Lane(value[middle + more :]) if flags & _IN_LANE else None
    held, renewals = bool(flags & _HELD), flags >> _RENEWALS_SHIFT
    return Entry(due_ms, pop_ms, attempt, held, attempt_id, holder, lane, renewals)


def not_later(entry: Entry, now_ms: int) -> Entry:
    """The entry, or one that is due earlier if the wall clock was set back meanwhile.

    A delivery time in the future comes from a wrong clock, and must not block the message for as long. A
    time within the next second may be right: each delivery of a message has a later time than the previous
    one. Nor was the clock wrong if the entry is due before its own time: that was raised above an older one.
    """
    if entry.pop_ms <= now_ms + _NAMES_AHEAD_MS or entry.due_ms < entry.pop_ms:
        return entry
    due_ms = now_ms + max(entry.due_ms - entry.pop_ms, 0)
    return entry.due(due_ms, entry.renewals)


def short_text(text: str) -> str:
    """A client's text, or a replacement when it is too long for an entry or not UTF-8."""
    if len(text) <= _LONGEST_TEXT // 4 and text.isascii():
        return text
    packed = text.encode("utf-8", "surrogatepass")
    if len(packed) <= _LONGEST_TEXT and text.isprintable():
        return text
    return "#" + blake2b(packed, digest_size=16).hexdigest()
