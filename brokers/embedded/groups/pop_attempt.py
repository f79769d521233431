"""One attempt of a pop to take messages: what it requests, and what it has taken so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokers.embedded.groups.entries import Entry, short_text
from popgate.ids.receipt import OF_TOPIC, ORDERED
from popgate.model import Filter, Pop, StoredMessage
from popgate.wire.messages.records import Record, host_text

if TYPE_CHECKING:
    from brokers.embedded.groups.ledger import Ledger

_LOOK_BITS = 12
"""A look is one record, or 4 KiB of it."""


class PopAttempt:
    """Filled by ledgers, one after the other, until it is `full` or no messages are left.

    `room` and `bytes_left` shrink with taken messages, `looks` with examined ones. `more`:
    a ledger stopped because of `looks`; `changed`: something was added to the batch,
    `repeated`: an earlier receive had taken all of them already, `refused`: free messages
    were left because they do not pass the filter.
    """

    __slots__ = (
        *("attempt_id", "broker", "bytes_left", "changed", "due_ms", "filter_key", "full", "holder", "holds"),
        *(
            "looks",
            "made",
            "more",
            "now_ms",
            "one_per_group",
            "passing",
            "refused",
            "repeated",
            "room",
            "taken",
            "topic_type",
        ),
    )

    def __init__(self, request: Pop, broker: str, holder: str, *, now_ms: int, looks: int) -> None:
        self.passing: Filter = request.filter
        self.filter_key = (request.filter.kind, request.filter.expression)
        self.broker = broker
        self.room = request.max_messages
        self.bytes_left = request.max_bytes
        self.looks = looks
        self.now_ms = now_ms
        self.due_ms = now_ms + request.invisible_ms
        self.holder = short_text(holder)
        self.attempt_id = short_text(request.attempt_id)
        self.one_per_group = request.one_per_message_group
        self.taken: list[StoredMessage] = []
        self.holds: list[tuple[Ledger, Entry, list[int]]] = []
        self.made: dict[tuple[int, int, int, bool], tuple[bytes, str]] = {}
        self.full = False
        self.more = False
        self.changed = False
        self.repeated = False
        self.refused = False
        self.topic_type = OF_TOPIC

    def __repr__(self) -> str:
        return f"<PopAttempt room {self.room} taken {len(self.taken)}>"

    def turn_to(self, topic_type: int) -> None:
        """Messages taken from now on are of another kind of topic, which their receipts contain."""
        self.topic_type = topic_type
        self.made = {}

    def fits(self, size: int) -> bool:
        """Whether a record of `size` bytes may be taken; the first always may. If not, this is full."""
        if size <= self.bytes_left or not self.taken:
            return True
        self.full = True
        return False

    def texts(self, entry: Entry, queue_id: int, *, ordered: bool) -> tuple[bytes, str]:
        """What a new entry is in the store, and the head of its receipts; made once for all alike."""
        key = (entry.pop_ms, entry.attempt, queue_id, entry.tells_lane())
        made = self.made.get(key)
        if made is None:
            head = receipt_head(entry, self.broker, queue_id, ordered=ordered, topic_type=self.topic_type)
            made = entry.front(), head
            self.made[key] = made
        if entry.lane is None:
            return made
        return made[0] + entry.lane_name(), made[1]

    def deliver(self, topic: str, offset: int, record: Record, entry: Entry, receipt_head: str) -> None:
        """Take a message: `receipt_head` is what all receipts of this entry and queue have in common."""
        commit_offset = record.commit_offset
        self.taken.append(
            StoredMessage(
                topic,
                self.broker,
                record.queue_id,
                offset,
                commit_offset,
                record.sys_flag,
                record.flag,
                record.born_ms,
                host_text(record.born_host),
                record.store_ms,
                host_text(record.store_host),
                record.body,
                record.properties,
                entry.attempt,
                f"{offset} {receipt_head}{offset} {commit_offset}",
                entry.due_ms,
            )
        )
        self.room -= 1
        self.bytes_left -= record.size


def receipt_head(
    entry: Entry, broker: str, queue_id: int, *, ordered: bool, topic_type: int = OF_TOPIC
) -> str:
    """Fields 2 to 7 of a receipt, with the blanks around them. Source: protocol facts 4.1."""
    revive = ORDERED if ordered else 0
    return f"{entry.pop_ms} {max(entry.due_ms - entry.pop_ms, 0)} {revive} {topic_type} {broker} {queue_id} "


def cost_of(record: bytes | None) -> int:
    """What it costs to look at a record in vain, in looks: large ones cost more."""
    return 1 if record is None else 1 + (len(record) >> _LOOK_BITS)
