"""popgate.spark.sink: what Spark is given, without a JVM."""

from __future__ import annotations

import inspect
import logging
import pickle

import pytest
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import BinaryType, StringType, StructType

from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.sink import RocketMQStreamWriter, RocketMQWriter, Written
from popgate.spark.sink_options import read_sink_options
from popgate.spark.source import RocketMQDataSource

ROWS = StructType().add("body", BinaryType())
GIVEN = {"endpoints": "a:1", "topic": "t"}


def batch(schema: StructType = ROWS, *, overwrite: bool = False) -> RocketMQWriter:
    return RocketMQWriter(schema, read_sink_options(GIVEN), overwrite=overwrite)


def stream() -> RocketMQStreamWriter:
    return RocketMQStreamWriter(ROWS, read_sink_options(GIVEN))


def test_spark_gives_arrow_batches_and_arguments_by_name() -> None:
    source = RocketMQDataSource(dict(GIVEN))
    assert isinstance(source.writer(schema=ROWS, overwrite=False), DataSourceArrowWriter)
    assert isinstance(source.streamWriter(schema=ROWS, overwrite=False), DataSourceStreamArrowWriter)
    # The whole result of a query in complete mode comes so.
    assert isinstance(source.streamWriter(schema=ROWS, overwrite=True), DataSourceStreamArrowWriter)
    for ours, theirs in (
        (RocketMQWriter, DataSourceArrowWriter),
        (RocketMQStreamWriter, DataSourceStreamArrowWriter),
    ):
        for name in ("write", "commit", "abort"):
            told = list(inspect.signature(getattr(ours, name)).parameters)
            assert told == list(inspect.signature(getattr(theirs, name)).parameters)


def test_what_cannot_be_written_is_refused_before_a_task_begins() -> None:
    with pytest.raises(SparkSourceError, match="did you mean tag") as refused:
        batch(StructType().add("body", BinaryType()).add("tags", StringType()))
    assert refused.value.code is Code.ILLEGAL_SCHEMA
    with pytest.raises(SparkSourceError, match="a topic is never emptied") as refused:
        batch(overwrite=True)
    assert refused.value.code is Code.UNSUPPORTED


def test_all_tasks_of_a_write_have_one_name_for_it_and_other_writes_others() -> None:
    one = batch()
    tasks = [pickle.loads(pickle.dumps(one)) for _ in range(2)]
    assert {task._run for task in tasks} == {one._run}
    assert batch()._run != one._run


def test_an_abort_takes_nothing_back_and_may_follow_a_commit(caplog: pytest.LogCaptureFixture) -> None:
    messages = [Written(3), None, Written(4)]
    writer = stream()
    writer.commit(messages, 7)
    with caplog.at_level(logging.WARNING):
        writer.abort(messages, 7)
        batch().abort(messages)
    assert [record.getMessage() for record in caplog.records] == [
        "a write was given up; at least 7 rows of it were sent, and stay"
    ] * 2
