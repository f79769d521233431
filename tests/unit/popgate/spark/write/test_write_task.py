"""popgate.spark.write.write_task: a task as a whole, with a sender that the test holds."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, cast

import pyarrow as pa
import pytest

from popgate.spark.errors import SparkSourceError
from popgate.spark.options.sink_options import SinkOptions, read_sink_options
from popgate.spark.write.message_ids import Identity
from popgate.spark.write.outgoing_rows import Outgoing
from popgate.spark.write.sender import Sender
from popgate.spark.write.write_task import written

IDENTITY = Identity(("stream", "q", "1"), "", 4)


class Kept:
    """Rows, and whether they were finished or given up."""

    def __init__(self, options: SinkOptions, partition: int) -> None:
        assert partition == 4
        self.rows: list[Outgoing] = []
        self.ended: list[Any] = []

    def __enter__(self) -> Kept:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.append(kind)

    def add_all(self, rows: Iterable[Outgoing]) -> None:
        self.rows.extend(rows)

    def finish(self) -> int:
        self.ended.append("finished")
        return len(self.rows)


def write(*bodies: list[bytes | None]) -> tuple[int, Kept]:
    options = read_sink_options({"endpoints": "a:1", "topic": "t"})
    kept = Kept(options, 4)
    batches = [pa.RecordBatch.from_pydict({"body": pa.array(each, pa.binary())}) for each in bodies]
    made = cast("Sender", kept)
    try:
        return written(batches, options, IDENTITY, make_sender=lambda *_: made), kept
    except SparkSourceError:
        assert kept.ended == [SparkSourceError]
        raise


def test_all_rows_are_sent_and_waited_for() -> None:
    count, kept = write([b"a", b"b"], [], [b"c"])
    assert count == 3
    assert [row.body for row in kept.rows] == [b"a", b"b", b"c"]
    assert kept.ended == ["finished", None]


def test_a_task_without_rows_sends_nothing() -> None:
    assert write()[0] == 0


def test_after_a_row_that_is_none_nothing_is_finished() -> None:
    with pytest.raises(SparkSourceError, match="row 1 of partition 4: column body is null"):
        write([b"a", None])
