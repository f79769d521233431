"""Rows encoded as messages, and the error for a row that cannot be one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from popgate.spark.errors import Code, SparkSourceError
from popgate.wire.messages.batches import first_item, size_in_batch


class Outgoing(NamedTuple):
    """A row as a message: `block` is that of its properties, its id among them.

    `queue_id` None: any; `broker` empty: the one that has it. `alone`: it does not go into a batch, which
    holds no delays, priorities and lite topics.
    """

    number: int
    topic: str
    body: bytes
    block: bytes
    group: str = ""
    broker: str = ""
    queue_id: int | None = None
    alone: bool = False


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows in a row for any queue of one topic, as a send has them (`popgate/wire/messages/batches.py`).

    The first one has the number `first`; row n of them stands in `data` from `ends[n]` to `ends[n + 1]`.
    """

    first: int
    topic: str
    data: bytes
    ends: Sequence[int]

    def __len__(self) -> int:
        return len(self.ends) - 1

    def row(self, at: int) -> Outgoing:
        """One of them as it would be alone."""
        item = first_item(self.data[self.ends[at] : self.ends[at + 1]])
        return Outgoing(self.first + at, self.topic, item.body, item.properties)

    def part(self, begin: int, stop: int) -> bytes:
        """Some of them, as a send has them."""
        return self.data[self.ends[begin] : self.ends[stop]]

    def size(self, begin: int, stop: int) -> int:
        """Bytes of the bodies and blocks of some of them."""
        return self.ends[stop] - self.ends[begin] - size_in_batch(stop - begin)

    def fitting(self, begin: int, size: int) -> int:
        """Where those end that, from `begin` on, have so many bytes at most."""
        rows = range(begin + 1, len(self.ends))
        return begin + bisect_right(rows, size, key=lambda stop: self.size(begin, stop))


def illegal_row(number: int, partition: int, column: str, why: str) -> SparkSourceError:
    """`why` ends the sentence that begins with the column. Rows are counted from 0 in their partition."""
    return SparkSourceError(Code.ILLEGAL_ROW, f"row {number} of partition {partition}: column {column} {why}")
