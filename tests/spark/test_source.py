"""The source in a real Spark, before a whole gateway: found by name, batches, projection, streams that go on.

Few tests: what the source decides and decodes is tested in tests/unit, where no Spark is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from popgate.testing.gateway import GatewayProcess
from tests.spark.conftest import LONGEST_S

pytestmark = [pytest.mark.timeout(LONGEST_S)]
Send = Callable[[str, int, int], None]
Finished = Callable[[Any], list[int]]


def bodies(numbers: range) -> list[bytes]:
    return sorted(b"body %d" % number for number in numbers)


def test_a_topic_is_a_table(spark: Any, gateway: GatewayProcess, send: Send) -> None:
    send("table", 0, 20)

    frame = spark.read.format("rocketmq").options(endpoints=gateway.endpoint, topic="table").load()
    rows = {bytes(row.body): row for row in frame.collect()}

    assert sorted(rows) == bodies(range(20))
    row = rows[b"body 7"]
    assert (row.topic, row.queue_id, row.queue_offset, row.tag) == ("table", 1, 3, "t3")
    assert (row["keys"], row.message_id, row.properties) == (["a", "b7"], "ID7", {"color": "red"})
    assert (row.message_group, row.priority, row.flag, row.reconsume_times) == (None, None, 0, 0)
    assert row.store_timestamp is not None


def test_what_is_read_is_what_the_schema_names(spark: Any, gateway: GatewayProcess, send: Send) -> None:
    send("lean", 0, 20)
    reader = spark.read.schema("body binary, queue_id int").format("rocketmq")
    frame = reader.options(endpoints=gateway.endpoint, topic="lean", tag="t1 || t2", minPartitions="3").load()

    assert frame.columns == ["body", "queue_id"]
    found = sorted((bytes(row.body), row.queue_id) for row in frame.collect())
    assert found == sorted((b"body %d" % n, n % 2) for n in range(20) if n % 4 in (1, 2))


def test_what_cannot_be_is_refused_with_its_code(spark: Any, gateway: GatewayProcess) -> None:
    from pyspark.errors import PySparkException

    reader = spark.read.format("rocketmq").options(endpoints=gateway.endpoint, topic="nowhere")
    with pytest.raises(PySparkException, match=r"ROCKETMQ_GATEWAY\] TOPIC_NOT_FOUND.*nowhere"):
        reader.load().collect()
    with pytest.raises(PySparkException, match=r"ROCKETMQ_UNKNOWN_OPTION.*did you mean startingOffsets\?"):
        reader.option("startingOffset", "earliest").load().collect()
    writer = spark.range(1).selectExpr("cast(string(id) as binary) body").write.format("rocketmq")
    writer.options(endpoints=gateway.endpoint, topic="table")
    with pytest.raises(PySparkException, match=r"ROCKETMQ_UNSUPPORTED\].*mode\(\"append\"\)"):
        writer.mode("overwrite").save()
    with pytest.raises(PySparkException, match=r"ROCKETMQ_UNSUPPORTED_OPTION\].*transactional"):
        writer.option("deliveryGuarantee", "transactional").mode("append").save()


def test_scenario_39_a_stream_goes_on_where_its_checkpoint_is(
    spark: Any, gateway: GatewayProcess, send: Send, finished: Finished, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")

    def run() -> list[int]:
        stream = spark.readStream.schema("body binary, queue_offset bigint").format("rocketmq")
        stream.options(endpoints=gateway.endpoint, topic="flow", startingOffsets="earliest")
        frame = stream.option("maxOffsetsPerTrigger", "8").load()
        writer = frame.writeStream.format("parquet").option("path", out)
        return finished(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))

    def found() -> list[bytes]:
        return sorted(bytes(row.body) for row in spark.read.parquet(out).collect())

    send("flow", 0, 20)
    assert run() == [8, 8, 4]
    assert found() == bodies(range(20))
    send("flow", 20, 26)
    assert run() == [6]
    assert found() == bodies(range(26))


def test_scenario_39_a_stream_that_fails_before_its_first_commit_begins_where_it_began(
    spark: Any, gateway: GatewayProcess, send: Send, finished: Finished, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    send("late", 0, 4)
    found: list[bytes] = []

    def run(sink: Callable[[Any, int], None]) -> None:
        stream = spark.readStream.schema("body binary").format("rocketmq")
        frame = stream.options(endpoints=gateway.endpoint, topic="late", startingOffsets="latest").load()
        writer = frame.writeStream.foreachBatch(sink)
        finished(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))

    def fail(frame: Any, batch: int) -> None:
        raise ValueError("no room in the sink")

    with pytest.raises(StreamingQueryException, match="no room in the sink"):
        run(fail)
    send("late", 4, 10)
    run(lambda frame, batch: found.extend(bytes(row.body) for row in frame.collect()))

    assert sorted(found) == bodies(range(4, 10))
