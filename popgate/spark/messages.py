"""What a row of the sink becomes, and how a row that cannot be a message is refused."""

from __future__ import annotations

from typing import NamedTuple

from popgate.spark.errors import Code, SparkSourceError


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


def illegal_row(number: int, partition: int, column: str, why: str) -> SparkSourceError:
    """`why` ends the sentence that begins with the column. Rows are counted from 0 in their partition."""
    return SparkSourceError(Code.ILLEGAL_ROW, f"row {number} of partition {partition}: column {column} {why}")
