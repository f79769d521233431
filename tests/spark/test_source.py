"""The source in a real Spark, before a whole gateway: found by name, batches, projection, streams that go on.

Before the embedded broker, and before a real RocketMQ.

Few tests: what the source decides and decodes is tested in tests/unit, where no Spark is needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from popgate.blocking import BlockingConnection
from popgate.queue_client import QueueClient
from popgate.testing.gateway import GatewayProcess
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.messages.records import decode_records
from tests.spark.conftest import JAVA_PROXY, LONGEST_S, ON_ALL, ON_BOTH, SPARK_S, own
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.timeout(LONGEST_S)]
Named = Callable[[str], str]
Send = Callable[[str, int, int], None]
Finished = Callable[[Any], list[int]]


COLORS = {"color": "red", "parity": "odd"}


def bodies(numbers: range) -> list[bytes]:
    return sorted(b"body %d" % number for number in numbers)


@ON_ALL
def test_a_topic_is_a_table(spark: Any, gateway: GatewayProcess, named: Named, send: Send) -> None:
    topic = named("table")
    send(topic, 0, 20)

    reader = spark.read.format("rocketmq").options(endpoints=gateway.endpoint, topic=topic)
    frame = reader.load()
    rows = {bytes(row.body): row for row in frame.collect()}

    assert sorted(rows) == bodies(range(20))
    row = rows[b"body 7"]
    assert (row.topic, row.queue_id, row.queue_offset, row.tag) == (topic, 1, 3, "t3")
    assert (row["keys"], row.message_id, row.properties) == (["a", "b7"], "ID7", COLORS)
    assert (row.message_group, row.priority, row.flag, row.reconsume_times) == (None, None, 0, 0)
    assert (row.message_type, row.delivery_timestamp) == ("NORMAL", None)
    assert row.store_timestamp is not None

    # Spark keeps the plan of a frame.
    send(topic, 20, 22)
    assert (frame.count(), reader.load().count()) == (20, 22)
    legacy = spark.read.format("rocketmq").options(endpoints=gateway.endpoint, topic=topic)
    row = legacy.option("schemaStyle", "legacy").load().where("queueOffset = 3 and queueId = 1").first()
    assert (row.topic, bytes(row.body), row.flag) == (topic, b"body 7", 0)
    assert json.loads(row.properties).items() >= {"TAGS": "t3", "UNIQ_KEY": "ID7", **COLORS}.items()
    assert reader.option("endingTimestamp", "1").load().count() == 0


@ON_BOTH
def test_over_grpc_a_topic_has_the_same_rows(
    spark: Any, gateway: GatewayProcess, named: Named, send: Send
) -> None:
    topic = named("over-grpc")
    send(topic, 0, 200)

    def rows(**options: str) -> list[dict[str, Any]]:
        reader = spark.read.format("rocketmq").options(endpoints=gateway.endpoint, topic=topic, **options)
        found = [row.asDict() for row in reader.load().collect()]
        # It tells the port of nobody.
        found = [{**row, "born_host": row["born_host"].rpartition(":")[0]} for row in found]
        return sorted(found, key=lambda row: (row["queue_id"], row["queue_offset"]))

    assert rows(transport="grpc") == rows()
    some = rows(transport="grpc", tag="t1", pullBatchSize="7")
    assert [bytes(row["body"]) for row in some] == [b"body %d" % number for number in range(1, 200, 4)]


@ON_ALL
def test_what_is_read_is_what_the_schema_names(
    spark: Any, gateway: GatewayProcess, named: Named, send: Send
) -> None:
    topic = named("lean")
    send(topic, 0, 20)
    reader = spark.read.schema("body binary, queue_id int").format("rocketmq")
    frame = reader.options(endpoints=gateway.endpoint, topic=topic, tag="t1 || t2", minPartitions="3").load()

    assert frame.columns == ["body", "queue_id"]
    found = sorted((bytes(row.body), row.queue_id) for row in frame.collect())
    assert found == sorted((b"body %d" % n, n % 2) for n in range(20) if n % 4 in (1, 2))


@ON_ALL
def test_what_passes_an_expression_of_sql92_is_read(
    spark: Any, gateway: GatewayProcess, named: Named, send: Send
) -> None:
    topic = named("sifted")
    send(topic, 0, 20)
    reader = spark.read.schema("body binary").format("rocketmq")
    reader.options(endpoints=gateway.endpoint, topic=topic, sql92="parity = 'odd' AND color IS NOT NULL")
    assert sorted(bytes(row.body) for row in reader.load().collect()) == bodies(range(1, 20, 2))


def test_sql_reads_views_and_tables(
    spark: Any, gateway: GatewayProcess, send: Send, finished: Finished, tmp_path: Path
) -> None:
    """Spark keeps no options of a table for a Python source: its queries have them."""
    send("queried", 0, 6)
    given = f"endpoints {{0}}'{gateway.endpoint}', topic {{0}}'queried', startingOffsets {{0}}'earliest'"
    spark.sql(f"CREATE TEMPORARY VIEW seen USING rocketmq OPTIONS ({given.format('')})")
    assert spark.sql("SELECT count(*) FROM seen WHERE tag = 't1'").first()[0] == 2
    spark.sql("CREATE TABLE tabled (body binary) USING rocketmq")
    options = given.format("=")
    assert spark.sql(f"SELECT body FROM tabled WITH ({options})").count() == 6
    assert spark.sql(f"SELECT body FROM tabled WITH ({options}, transport='grpc')").count() == 6
    stream = spark.sql(f"SELECT body FROM STREAM tabled WITH ({options}, maxOffsetsPerTrigger='4')")
    writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    assert finished(writer.option("checkpointLocation", str(tmp_path / "checkpoint"))) == [4, 2]


def test_of_a_compacted_topic_what_is_left_is_read(
    spark: Any, gateway: GatewayProcess, finished: Finished, tmp_path: Path
) -> None:
    """Offsets keep their numbers, and those that are empty are no data loss."""
    with BlockingConnection.connect(gateway.endpoint, timeout_s=SPARK_S) as connection:
        fields = {"topic": "compacted", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        told = {**fields, "attributes": "+cleanup.policy=COMPACTION"}
        assert connection.call(RequestCode.UPDATE_AND_CREATE_TOPIC, told).code == ResponseCode.SUCCESS
        client = QueueClient(connection)
        [queue] = client.queues("compacted")
        client.send(
            queue, [(b"%d" % number, f"KEYS\x01{key}\x02".encode()) for number, key in enumerate("abacba")]
        )

        def left() -> list[int]:
            answer = client.pull(queue, 0, most=32)
            return [record.offset for record in decode_records(answer.body)]

        wait_until(lambda: left() == [3, 4, 5], SPARK_S, seen=left)

    options = {"endpoints": gateway.endpoint, "topic": "compacted"}
    rows = spark.read.format("rocketmq").options(**options).load().collect()
    assert sorted((row.queue_offset, bytes(row.body), row["keys"]) for row in rows) == [
        (3, b"3", ["c"]),
        (4, b"4", ["b"]),
        (5, b"5", ["a"]),
    ]
    stream = spark.readStream.schema("queue_offset bigint").format("rocketmq").options(**options)
    frame = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger="2").load()
    out = str(tmp_path / "out")
    writer = frame.writeStream.format("parquet").option("path", out)
    assert finished(writer.option("checkpointLocation", str(tmp_path / "checkpoint"))) == [1, 2]
    assert sorted(row.queue_offset for row in spark.read.parquet(out).collect()) == [3, 4, 5]


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
    with pytest.raises(PySparkException, match=r"ROCKETMQ_UNSUPPORTED_OPTION\].*rules"):
        writer.option("rules", "x").mode("append").save()
    writer = spark.range(1).selectExpr("cast(string(id) as binary) body").write.format("rocketmq")
    writer.options(endpoints=gateway.endpoint, topic="table", deliveryGuarantee="transactional")
    with pytest.raises(PySparkException, match=r"ROCKETMQ_MISSING_OPTION\].*sinkId.*transactional"):
        writer.mode("append").save()


@ON_ALL
def test_scenario_39_a_stream_goes_on_where_its_checkpoint_is(
    spark: Any,
    site: str,
    gateway: GatewayProcess,
    named: Named,
    send: Send,
    finished: Finished,
    tmp_path: Path,
) -> None:
    topic, group = named("flow"), own("flow-readers")
    out = str(tmp_path / "out")

    def run() -> list[int]:
        stream = spark.readStream.schema("body binary, queue_offset bigint").format("rocketmq")
        # RocketMQ's own proxy lists no topics.
        chosen = {"topic": topic} if site == JAVA_PROXY else {"subscribePattern": own("flo.")}
        stream.options(endpoints=gateway.endpoint, startingOffsets="earliest", **chosen)
        stream.option("group", group)
        frame = stream.option("maxOffsetsPerTrigger", "8").load()
        writer = frame.writeStream.format("parquet").option("path", out)
        return finished(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))

    def found() -> list[bytes]:
        return sorted(bytes(row.body) for row in spark.read.parquet(out).collect())

    send(topic, 0, 20)
    assert run() == [8, 8, 4]
    assert found() == bodies(range(20))
    send(topic, 20, 26)
    assert run() == [6]
    assert found() == bodies(range(26))
    # Spark says a batch late that it is done.
    with BlockingConnection.connect(gateway.endpoint, timeout_s=SPARK_S) as connection:
        client = QueueClient(connection)
        positions = client.committed(group, client.queues(topic))
    assert 16 <= sum(positions.values()) <= 20


@ON_BOTH
def test_over_grpc_a_stream_goes_on_where_its_checkpoint_is(
    spark: Any, gateway: GatewayProcess, named: Named, send: Send, finished: Finished, tmp_path: Path
) -> None:
    topic, group, out = named("grpc-flow"), own("grpc-flow-readers"), str(tmp_path / "out")

    def run(transport: str) -> list[int]:
        stream = spark.readStream.schema("body binary, queue_offset bigint").format("rocketmq")
        stream.options(endpoints=gateway.endpoint, startingOffsets="earliest", topic=topic, group=group)
        frame = stream.options(maxOffsetsPerTrigger="8", transport=transport).load()
        writer = frame.writeStream.format("parquet").option("path", out)
        return finished(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))

    send(topic, 0, 20)
    assert run("grpc") == [8, 8, 4]
    send(topic, 20, 26)
    # A query may change it.
    assert run("grpc") == [6]
    send(topic, 26, 30)
    assert run("remoting") == [4]
    assert sorted(bytes(row.body) for row in spark.read.parquet(out).collect()) == bodies(range(30))


@ON_ALL
def test_scenario_39_a_stream_that_fails_before_its_first_commit_begins_where_it_began(
    spark: Any, gateway: GatewayProcess, named: Named, send: Send, finished: Finished, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    topic = named("late")
    send(topic, 0, 4)
    found: list[bytes] = []

    def run(sink: Callable[[Any, int], None]) -> None:
        stream = spark.readStream.schema("body binary").format("rocketmq")
        frame = stream.options(endpoints=gateway.endpoint, topic=topic, startingOffsets="latest").load()
        writer = frame.writeStream.foreachBatch(sink)
        finished(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))

    def fail(frame: Any, batch: int) -> None:
        raise ValueError("no room in the sink")

    with pytest.raises(StreamingQueryException, match="no room in the sink"):
        run(fail)
    send(topic, 4, 10)
    run(lambda frame, batch: found.extend(bytes(row.body) for row in frame.collect()))

    assert sorted(found) == bodies(range(4, 10))
