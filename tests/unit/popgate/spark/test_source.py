"""popgate.spark.source: what Spark is told and asks, without a JVM."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.types import BinaryType, StructType

from popgate.spark import source as source_module
from popgate.spark.errors import SparkSourceError
from popgate.spark.source import RangePartition, RocketMQDataSource, RocketMQStreamReader

SCHEMA = StructType().add("body", BinaryType())


def stream(**given: str) -> RocketMQStreamReader:
    source = RocketMQDataSource({"endpoints": "a:1", "topic": "t", **given})
    return source.streamReader(schema=SCHEMA)


def test_the_schema_is_that_of_the_style() -> None:
    def schema(**given: str) -> str:
        return RocketMQDataSource({"endpoints": "a:1", "topic": "t", **given}).schema()

    # In plain words it would be another type where spark.sql.timestampType says so.
    assert "message_type string, delivery_timestamp timestamp_ltz" in schema()
    assert schema(schemastyle="legacy") == (
        "topic string, flag int, body binary, properties string, brokerName string, queueId int,"
        " queueOffset bigint, bornTimestamp timestamp_ltz, storeTimestamp timestamp_ltz"
    )
    assert stream(schemaStyle="default")
    with pytest.raises(SparkSourceError, match="did you mean queueId"):
        RocketMQDataSource({"endpoints": "a:1", "topic": "t", "schemaStyle": "legacy"}).reader(
            schema=StructType().add("queue_id", "integer")
        )


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "7", "maxBytesPerTrigger": "1k"}, ReadMaxRows(7)),
        ({"maxBytesPerTrigger": "1k", "minOffsetsPerTrigger": "3"}, ReadMaxBytes(1024)),
        ({"minOffsetsPerTrigger": "3"}, ReadMinRows(3)),
    ],
)
def test_spark_is_told_of_one_limit(given: dict[str, str], limit: ReadLimit) -> None:
    assert stream(**given).getDefaultReadLimit() == limit


@pytest.mark.parametrize(
    ("limit", "whole"),
    [(ReadAllAvailable(), True), (ReadMaxRows(7), False), (ReadMaxBytes(7), False), (ReadMinRows(7), False)],
)
def test_only_who_wants_everything_gets_it_at_once(
    limit: ReadLimit, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = stream(maxOffsetsPerTrigger="7")
    asked: list[tuple[dict[str, Any], bool]] = []

    def latest(start: dict[str, Any], *, whole: bool) -> dict[str, Any]:
        asked.append((start, whole))
        return start

    monkeypatch.setattr(reader._stream, "latest", latest)
    reader.latestOffset({"v": 1}, limit)
    assert asked == [({"v": 1}, whole)]


def test_a_batch_that_is_done_moves_the_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, done = stream(group="readers"), list[dict[str, Any]]()
    monkeypatch.setattr(reader._stream, "commit", done.append)
    reader.commit({"v": 1})
    assert done == [{"v": 1}]


def test_a_batch_without_messages_has_a_task_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no partition, Spark reads one that it makes itself."""
    monkeypatch.setattr(source_module, "batch_plan", lambda options, warn: [])
    reader = RocketMQDataSource({"endpoints": "a:1", "topic": "t"}).reader(schema=SCHEMA)
    [partition] = reader.partitions()
    assert isinstance(partition, RangePartition)
    assert list(reader.read(partition)) == []
