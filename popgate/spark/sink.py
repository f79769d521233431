"""The sink `rocketmq` of Spark. Rows are acknowledged before their task ends: nothing is left to commit."""

from __future__ import annotations

import gc
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.identities import BATCH_ID, QUERY_ID, identity_of
from popgate.spark.sink_columns import check_sink_columns
from popgate.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

_log: Final = logging.getLogger(__name__)
_Messages = Sequence[WriterCommitMessage | None]


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    rows: int


class _Writing:
    """What both writers do in a task."""

    def __init__(self, schema: StructType, options: SinkOptions, *, streaming: bool) -> None:
        check_sink_columns(((field.name, field.dataType.simpleString()) for field in schema.fields), options)
        self._options, self._streaming = options, streaming
        # Tasks get a copy: all of one write have the same, also those that are run again.
        self._run = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        # Here, so that whoever only looks the sink up does not load Arrow.
        from popgate.spark.writing import written

        # Spark collects garbage after each task; what is loaded by now need not be looked at each time.
        if gc.get_freeze_count() == 0:
            gc.freeze()
        task = TaskContext.get()
        told = {name: task.getLocalProperty(name) or "" for name in (BATCH_ID, QUERY_ID)} if task else {}
        identity = identity_of(
            told,
            self._options,
            run=self._run,
            partition=task.partitionId() if task else 0,
            streaming=self._streaming,
        )
        return Written(written(iterator, self._options, identity))


class RocketMQWriter(_Writing, DataSourceArrowWriter):
    """One batch."""

    def __init__(self, schema: StructType, options: SinkOptions, *, overwrite: bool) -> None:
        super().__init__(schema, options, streaming=False)
        if overwrite:
            raise SparkSourceError(
                Code.UNSUPPORTED,
                'a topic is never emptied: write with mode("append")',
            )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: everything is acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _tell_abort(messages)


class RocketMQStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """A stream. In complete mode the whole result is sent each time."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        super().__init__(schema, options, streaming=True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Nothing: everything is acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        _tell_abort(messages)


def _tell_abort(messages: _Messages) -> None:
    """What was sent stays sent. Spark calls this after a commit that failed, too, with all that is there."""
    rows = sum(each.rows for each in messages if isinstance(each, Written))
    _log.warning("a write was given up; at least %d rows of it were sent, and stay", rows)
