"""The receipt handle: which delivery of which message a client holds.

The text is RocketMQ's pop check point, single-space separated decimals; the ninth field is
added for gRPC clients. Source: protocol facts 4.1 (`ReceiptHandle`, `ExtraInfoUtil`). A tenth field, the mark
of the message (`protocols.grpc.codec.handles`), is not part of the receipt.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from popgate.errors import IllegalReceipt

ORDERED: Final = 999
"""The revive queue id that marks an ordered pop."""
OF_TOPIC: Final = 0
OF_RETRY_V1: Final = 1
OF_RETRY_V2: Final = 2
"""The topic types: of the topic itself, of the group's pop retry topic by its older or its newer name."""

NO_BROKER = "INVALID_RECEIPT_HANDLE: cannot find broker"
NO_RECALL_HANDLE = "recall handle is invalid"
"""RocketMQ's message for a receipt handle of an unknown broker, and for an invalid recall handle
(`GatewayError.known_as`)."""
_LONGEST: Final = 512
_plain_queue: Final = re.compile(
    r"([0-9]{1,18}) ([0-9]{1,18}) ([0-9]{1,18}) ([0-9]{1,9}) ([012]) ([!-~]+) ([0-9]{1,9})"
).fullmatch
is_mark = re.compile(r"[0-9a-f]{1,8}(\.[0-9a-f]{1,8})?").fullmatch
"""Whether a text may be the tenth field of a handle: one or two CRC-32 in hexadecimal digits."""


class Receipt(NamedTuple):
    """A parsed handle. `pop_ms` is the broker's wall time of the pop, `invisible_ms` a duration.

    `topic_type`: 0 the topic itself, 1 its pop retry topic (v1), 2 (v2). `commit_offset` -1: unknown.
    """

    start_offset: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    topic_type: int
    broker: str
    queue_id: int
    offset: int
    commit_offset: int = -1

    @property
    def ordered(self) -> bool:
        return self.revive_queue == ORDERED

    @property
    def due_ms(self) -> int:
        """When the time written in the handle is over, by the broker's wall clock."""
        return self.pop_ms + self.invisible_ms

    def encode(self) -> str:
        return (
            f"{self.start_offset} {self.pop_ms} {self.invisible_ms} {self.revive_queue} "
            f"{self.topic_type} {self.broker} {self.queue_id} {self.offset} {self.commit_offset}"
        )


def parse_receipt(handle: str) -> Receipt:
    """Parse a handle of eight or nine fields; a mark behind nine is ignored.

    Raises IllegalReceipt for anything else: too long, too few fields, not a decimal, out of range.
    """
    if len(handle) <= _LONGEST and handle.isascii():
        # What one pop took of one queue has handles that are alike but for their last two numbers.
        parts = handle.rsplit(" ", 2)
        if len(parts) == 3:
            queue, offset, commit = parts
            if offset.isdigit() and commit.isdigit() and len(offset) < 19 and len(commit) < 19:
                fields = _fields_of_queue(queue)
                if fields is not None:
                    return tuple.__new__(Receipt, (*fields, int(offset), int(commit)))
    return _parse_carefully(handle)


@lru_cache(maxsize=512)
def _fields_of_queue(text: str) -> tuple[int, int, int, int, int, str, int] | None:
    """The fields up to the queue's number; None for what is not exactly these."""
    match = _plain_queue(text)
    if match is None:
        return None
    start, pop_ms, invisible_ms, revive, kind, broker, queue_id = match.groups()
    return int(start), int(pop_ms), int(invisible_ms), int(revive), int(kind), broker, int(queue_id)


def _parse_carefully(handle: str) -> Receipt:
    if len(handle) > _LONGEST:
        raise IllegalReceipt(handle, f"longer than {_LONGEST} characters")
    fields = handle.split(" ")
    if len(fields) == 10 and is_mark(fields[9]):
        fields.pop()
    if not 8 <= len(fields) <= 9:
        raise IllegalReceipt(handle, f"it has {len(fields)} fields, not 8 or 9")
    numbers = fields[:5] + fields[6:]
    if not all(n.isascii() and (n.isdigit() or (n[:1] == "-" and n[1:].isdigit())) for n in numbers):
        raise IllegalReceipt(handle, "a field that must be a decimal is none")
    start, pop_ms, invisible_ms, revive, kind, queue_id, offset, *rest = map(int, numbers)
    commit = rest[0] if rest else -1
    if not (
        0 <= start < 1 << 63
        and 0 <= pop_ms < 1 << 63
        and 0 <= invisible_ms < 1 << 63
        and 0 <= revive < 1 << 31
        and kind in (OF_TOPIC, OF_RETRY_V1, OF_RETRY_V2)
        and 0 <= queue_id < 1 << 31
        and 0 <= offset < 1 << 63
        and -1 <= commit < 1 << 63
        and fields[5]
    ):
        raise IllegalReceipt(handle, "a field is out of range")
    return Receipt(start, pop_ms, invisible_ms, revive, kind, fields[5], queue_id, offset, commit)
