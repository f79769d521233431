"""What a group knows of one message below its frontier that is not finished yet."""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokers.embedded.ordered import Lane

_HEAD = Struct(">QQIBB")
_LONGEST_TEXT = 200


class Entry:
    """One delivery, or the rest between two. Never changed: every step makes a new one.

    `due_ms`: until then nobody gets the message. `pop_ms` names the delivery; the next one has a
    greater one (0: there was none yet). `attempt` counts deliveries. `held`: a client has it, its
    receipt is good until `due_ms`; else it was given back, waits for its turn or rests. `lane`:
    the message group's line in an ordered group. `attempt_id`, `holder`: of the receive that took it.
    Messages taken together share one entry.
    """

    __slots__ = ("attempt", "attempt_id", "due_ms", "held", "holder", "lane", "pop_ms")

    def __init__(
        self,
        due_ms: int,
        pop_ms: int,
        attempt: int,
        held: bool,
        attempt_id: str = "",
        holder: str = "",
        lane: Lane | None = None,
    ) -> None:
        self.due_ms = due_ms
        self.pop_ms = pop_ms
        self.attempt = attempt
        self.held = held
        self.attempt_id = attempt_id
        self.holder = holder
        self.lane = lane

    def __repr__(self) -> str:
        state = "held" if self.held else "free"
        return f"<Entry {state} until {self.due_ms} attempt {self.attempt} popped {self.pop_ms}>"

    def encode(self) -> bytes:
        """As it stands in the store; the lane is found again in the message."""
        attempt_id, holder = self.attempt_id.encode(), self.holder.encode()
        head = _HEAD.pack(self.due_ms, self.pop_ms, self.attempt, self.held, len(attempt_id))
        return head + attempt_id + holder


def decode_entry(value: bytes) -> Entry:
    due_ms, pop_ms, attempt, held, length = _HEAD.unpack_from(value)
    begin = _HEAD.size
    attempt_id = value[begin : begin + length].decode()
    return Entry(due_ms, pop_ms, attempt, bool(held), attempt_id, value[begin + length :].decode())


def not_later(entry: Entry, now_ms: int) -> Entry:
    """The entry, or one that is due earlier if the wall clock went back while nobody looked.

    A delivery of the future is one of a clock that was wrong; it must not block for as long.
    """
    if entry.pop_ms <= now_ms:
        return entry
    due_ms = now_ms + max(entry.due_ms - entry.pop_ms, 0)
    return Entry(due_ms, entry.pop_ms, entry.attempt, entry.held, entry.attempt_id, entry.holder, entry.lane)


def short_text(text: str) -> str:
    """A client's text, or what stands for it when it is too long for an entry or is no UTF-8."""
    if len(text) <= _LONGEST_TEXT // 4 and text.isascii():
        return text
    packed = text.encode("utf-8", "surrogatepass")
    if len(packed) <= _LONGEST_TEXT and text.isprintable():
        return text
    return "#" + blake2b(packed, digest_size=16).hexdigest()
