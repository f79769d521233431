"""The source `rocketmq` of Spark, for batch and streaming queries.

Planning is in `popgate.spark.read.driver`, the sink in `popgate.spark.sink`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from popgate.queue_client import QueuePlace
from popgate.spark.options.sink_options import read_sink_options
from popgate.spark.options.source_columns import check_columns, schema_text
from popgate.spark.options.source_options import SourceOptions, is_legacy, read_source_options
from popgate.spark.read.driver import Stream, batch_plan
from popgate.spark.read.read_plan import Range
from popgate.spark.sink import RocketMQStreamWriter, RocketMQWriter
from popgate.spark.worker import settle

_log: Final = logging.getLogger(__name__)


class RocketMQDataSource(DataSource):
    """`format("rocketmq")`: `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        return schema_text(legacy=is_legacy(self.options))

    # Spark gives these arguments by name.
    def reader(self, schema: StructType) -> RocketMQReader:
        options = read_source_options(self.options, streaming=False)
        return RocketMQReader(_checked(schema, options), options)

    def streamReader(self, schema: StructType) -> RocketMQStreamReader:  # noqa: N802 - Spark's name
        options = read_source_options(self.options, streaming=True)
        return RocketMQStreamReader(_checked(schema, options), options)

    def writer(self, schema: StructType, overwrite: bool) -> RocketMQWriter:
        return RocketMQWriter(schema, read_sink_options(self.options), overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> RocketMQStreamWriter:
        return RocketMQStreamWriter(schema, read_sink_options(self.options))


class RangePartition(InputPartition):
    """Ranges that one task reads: texts and numbers only, because it is pickled."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__([(*each.queue, each.begin, each.end) for each in ranges])

    @property
    def ranges(self) -> list[Range]:
        return [
            Range(QueuePlace(topic, broker, queue_id), begin, end)
            for topic, broker, queue_id, begin, end in self.value
        ]


class TickPartition(InputPartition):
    """A row of an idle stream; the time in ms since 1970."""


class RocketMQReader(DataSourceReader):
    """A batch query: the messages between two positions at planning time."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._schema, self._options = schema, options

    def partitions(self) -> list[InputPartition]:
        # Without any, Spark would have one of its own read, which has no ranges.
        return [RangePartition(each) for each in batch_plan(self._options, _log.warning) or [[]]]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(partition, self._schema, self._options)


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Offsets are those of `popgate.spark.offsets`; a replay of a batch reads the same ranges."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._schema, self._options = schema, options
        self._stream = Stream(options, _log.warning)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._stream.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        # Spark takes one limit, and gives it back unread: the stream knows all of them.
        numbers = self._options.numbers
        if (most := numbers["maxOffsetsPerTrigger"]) is not None:
            return ReadMaxRows(most)
        if (most_bytes := numbers["maxBytesPerTrigger"]) is not None:
            return ReadMaxBytes(most_bytes)
        least = numbers["minOffsetsPerTrigger"]
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._stream.end_here()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        # A trigger of its own may ask for everything, whatever the default limit is.
        return self._stream.latest(start, whole=isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return self._stream.reported

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        planned: list[InputPartition] = [RangePartition(each) for each in self._stream.plan(start, end)]
        at_ms = self._stream.tick(start, end)
        return planned if at_ms is None else [*planned, TickPartition(at_ms)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(partition, self._schema, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        # Where the query is stands in its checkpoint alone.
        self._stream.commit(end)


def _checked(schema: StructType, options: SourceOptions) -> StructType:
    columns = ((field.name, field.dataType.simpleString(), field.nullable) for field in schema.fields)
    check_columns(columns, legacy=options.legacy, ticks=options.idle_tick_s > 0)
    return schema


def _read(partition: InputPartition, schema: StructType, options: SourceOptions) -> Iterator[Any]:
    """In a worker of an executor."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Here, so that whoever only looks the source up does not load Arrow.
    from popgate.spark.read.partition_reader import batches, tick_row

    settle()
    arrow = to_arrow_schema(schema, timezone="UTC")
    if isinstance(partition, TickPartition):
        yield tick_row(partition.value, arrow)
        return
    assert isinstance(partition, RangePartition)  # noqa: S101 - what `partitions` made
    yield from batches(partition.ranges, arrow, options, _log.warning)
