"""The sink `rocketmq` of Spark. All rows of a task are acknowledged before it ends.

With at-least-once there is nothing left to commit. With a ledger the driver opens a batch when it plans it,
and marks it as done when Spark commits it (`popgate.spark.guarantees`).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from popgate.spark.errors import Code, SparkSourceError, illegal_option
from popgate.spark.guarantees.commit import Outcome, Part, commit_batch, drop_batch
from popgate.spark.guarantees.ledger import Ledger
from popgate.spark.guarantees.openings import Opened
from popgate.spark.options.sink_columns import check_sink_columns
from popgate.spark.options.sink_options import BY_VERSION, SinkOptions
from popgate.spark.worker import settle
from popgate.spark.write.message_ids import BATCH_ID, QUERY_ID, batch_of, identity_of

if TYPE_CHECKING:
    import pyarrow as pa

_log: Final = logging.getLogger(__name__)
_Messages = Sequence[WriterCommitMessage | None]


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """A task's message to the driver: the rows that it sent, and its result for a batch with a ledger."""

    rows: int
    opened: Opened | None = None
    batch: tuple[str, int] = ("", -1)
    outcome: Outcome | None = None


class _WriterBase:
    """Common to the tasks of both writers."""

    def __init__(self, schema: StructType, options: SinkOptions, *, streaming: bool) -> None:
        if streaming and options.version >= 0:
            raise illegal_option(
                BY_VERSION,
                str(options.version),
                "Spark numbers the batches of a stream: leave it out, and give sinkId in place of txnAppId",
            )
        check_sink_columns(((field.name, field.dataType.simpleString()) for field in schema.fields), options)
        self._options, self._streaming = options, streaming
        # Tasks get a copy: all of one write have the same, also those that are run again.
        self._run = uuid.uuid4().hex
        self._opened: Opened | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The writer is pickled where a batch is planned, just before its tasks begin, and nowhere else.
        if self._options.has_ledger and self._opened is None:
            self._opened = Ledger(self._options).open()
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        # Here, so that whoever only looks the sink up does not load Arrow.
        from popgate.spark.write.write_task import written

        settle()
        task = TaskContext.get()
        properties = (
            {name: task.getLocalProperty(name) or "" for name in (BATCH_ID, QUERY_ID)} if task else {}
        )
        identity = identity_of(
            properties,
            self._options,
            run=self._run,
            partition=task.partitionId() if task else 0,
            streaming=self._streaming,
        )
        if not self._options.has_ledger:
            return Written(written(iterator, self._options, identity))
        from popgate.spark.guarantees.replay import written_once

        if self._opened is None:
            raise SparkSourceError(
                Code.UNSUPPORTED,
                "this Spark gives tasks a writer that no ledger was opened for: leave deliveryGuarantee out",
            )
        batch = batch_of(properties, self._options)
        outcome = written_once(iterator, self._options, identity, self._opened, batch)
        return Written(outcome.sent, self._opened, batch, outcome)

    def _commit(self, messages: _Messages) -> None:
        parts = [each for each in messages if isinstance(each, Written)]
        if self._options.has_ledger:
            commit_batch(self._options, [part_of(each) for each in parts])
            if self._options.version >= 0 and any(each.outcome and each.outcome.skipped for each in parts):
                _log.warning(
                    "version %d of %s, or a higher one, was written before; nothing was sent now",
                    *(self._options.version, self._options.sink_id),
                )

    def _abort(self, messages: _Messages) -> None:
        """Sent messages stay. Spark also calls this after a failed commit, with all messages."""
        parts = [each for each in messages if isinstance(each, Written)]
        if self._options.transactional:
            drop_batch(self._options, [part_of(each) for each in parts], _log.warning)
        else:
            rows = sum(each.rows for each in parts)
            _log.warning("a write was given up; at least %d rows of it were sent, and stay", rows)


class RocketMQWriter(_WriterBase, DataSourceArrowWriter):
    """One batch."""

    def __init__(self, schema: StructType, options: SinkOptions, *, overwrite: bool) -> None:
        super().__init__(schema, options, streaming=False)
        if overwrite:
            raise SparkSourceError(
                Code.UNSUPPORTED,
                'a topic is never emptied: write with mode("append")',
            )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class RocketMQStreamWriter(_WriterBase, DataSourceStreamArrowWriter):
    """A stream. In complete mode the whole result is sent each time."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        super().__init__(schema, options, streaming=True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        self._abort(messages)


def part_of(written: Written) -> Part:
    """A task's result for a batch with a ledger."""
    assert written.opened is not None and written.outcome is not None  # noqa: S101, PT018 - `write` made it
    return Part(written.opened, written.batch, written.outcome)
