"""The sink in a real Spark, before a whole gateway: columns, a stream that goes on and comes again.

Before the embedded broker, which stores an id once within its window, and before a RocketMQ, which does not.

Few tests: what the sink checks, encodes and sends again is tested in tests/unit, where no Spark is needed.
"""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from popgate.testing.gateway import GatewayProcess
from tests.spark.conftest import EMBEDDED, LONGEST_S, ON_ALL, ON_BOTH, own
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.timeout(LONGEST_S)]
Named = Callable[[str], str]
Send = Callable[[str, int, int], None]
Finished = Callable[[Any], list[int]]
COMPACTION = {"cleanup.policy": "COMPACTION"}


def table(spark: Any, gateway: GatewayProcess, topic: str) -> Any:
    return spark.read.format("rocketmq").options(endpoints=gateway.endpoint, topic=topic).load()


def make(gateway: GatewayProcess, name: str, **settings: Any) -> None:
    data, kind = json.dumps({"name": name, **settings}).encode(), {"content-type": "application/json"}
    request = urllib.request.Request(f"{gateway.admin}/api/topics", data, kind)
    urllib.request.urlopen(request, timeout=PATIENCE_S).close()


def forget_last(checkpoint: Path) -> None:
    """As after a crash between the sink's last acknowledgement and Spark's note of it."""
    commits = checkpoint / "commits"
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)


@pytest.fixture
def stores_ids_once(site: str) -> bool:
    """Whether the broker leaves out what it has already."""
    return site == EMBEDDED


@ON_ALL
def test_what_is_written_is_read_with_all_its_columns(
    spark: Any, gateway: GatewayProcess, named: Named, stores_ids_once: bool
) -> None:
    even, odd = named("written-0"), named("written-1")
    placed, ranked, keyed = named("placed"), named("ranked"), named("keyed")
    rows = spark.range(0, 300, numPartitions=2).selectExpr(
        f"if(id % 2 = 0, '{even}', '{odd}') topic",
        "concat('body ', id) body",
        "if(id % 3 = 0, concat('t', id % 7), null) tag",
        "if(id % 5 = 0, null, array('all', string(id))) keys",
        "if(id % 4 = 0, concat('g', id % 3), null) message_group",
        "map('number', string(id), 'from', 'spark') properties",
    )
    writer = rows.write.format("rocketmq").options(endpoints=gateway.endpoint, sendBatchRows="50")
    writer.mode("append").save()

    columns = (
        "topic",
        "cast(body as string) body",
        "tag",
        "keys",
        "message_group",
        "map_entries(properties) p",
    )
    found = table(spark, gateway, f"{even},{odd}").selectExpr(*columns).collect()
    expected = rows.selectExpr(*columns).collect()
    assert Counter(map(str, found)) == Counter(map(str, expected))
    types = table(spark, gateway, f"{even},{odd}").groupBy("message_type", "message_group").count()
    assert {(row.message_type, row.message_group) for row in types.collect()} == {
        ("NORMAL", None),
        *(("FIFO", f"g{number}") for number in range(3)),
    }
    numbered = spark.range(0, 8, numPartitions=1).selectExpr("string(id) body", "int(id % 2) queue_id")
    writer = numbered.write.format("rocketmq").options(endpoints=gateway.endpoint, topic=placed)
    writer.mode("append").save()
    rows = table(spark, gateway, placed).selectExpr("cast(body as string) body", "queue_id").collect()
    assert sorted(map(tuple, rows)) == sorted(map(tuple, numbered.collect()))
    urgent = spark.range(0, 6, numPartitions=1).selectExpr("string(id) body", "int(1 + id % 3) priority")
    writer = urgent.write.format("rocketmq").options(endpoints=gateway.endpoint, topic=ranked)
    writer.mode("append").save()
    rows = table(spark, gateway, ranked).where("message_type = 'PRIORITY'")
    found = rows.selectExpr("cast(body as string) body", "priority").collect()
    assert sorted(map(tuple, found)) == sorted(map(tuple, urgent.collect()))
    repeated = spark.range(0, 40, numPartitions=2).selectExpr("'x' body", "id % 10 key")
    writer = repeated.write.format("rocketmq").options(endpoints=gateway.endpoint, topic=keyed)
    writer.option("dedupeKeyColumn", "key").mode("append").save()
    rows = table(spark, gateway, keyed)
    assert rows.count() == (10 if stores_ids_once else 40)
    assert rows.dropDuplicates(["message_id"]).count() == 10


@ON_ALL
def test_plain_rows_are_written_with_all_their_columns(
    spark: Any, gateway: GatewayProcess, named: Named
) -> None:
    """Which are made into messages by columns, as Spark gives them: with and without anything in them."""
    tables = {
        "some": (
            "if(id % 3 = 0, concat('größe ', id % 7), null) tag",
            "if(id % 5 = 0, null, array('all', string(id))) keys",
            "if(id % 2 = 0, map('number', string(id), 'größe', '10 €'), null) properties",
        ),
        "none": (
            "cast(null as string) tag",
            "cast(array() as array<string>) keys",
            "cast(map() as map<string, string>) properties",
        ),
        "text": ("'paid' tag", "string(id) keys", "map('a', 'b') properties"),
    }
    columns = ("topic", "cast(body as string) body", "tag", "keys", "map_entries(properties) p")

    def told(row: Any) -> str:
        """What has nothing in it is not there."""
        return str({name: value or None for name, value in row.asDict().items()})

    for name, others in tables.items():
        topic, other = named(f"plain-{name}"), named(f"plain-more-{name}")
        rows = spark.range(0, 400, numPartitions=2).selectExpr(
            f"if(id < 300, '{topic}', '{other}') topic", "concat('body ', id) body", *others
        )
        writer = rows.write.format("rocketmq").options(endpoints=gateway.endpoint, sendBatchRows="150")
        writer.mode("append").save()
        if name == "text":
            rows = rows.selectExpr("topic", "body", "tag", "array(keys) keys", "properties")
        there = table(spark, gateway, f"{topic},{other}").selectExpr(*columns).collect()
        wanted = rows.selectExpr(*columns).collect()
        assert Counter(map(told, there)) == Counter(map(told, wanted))


@ON_BOTH
def test_over_grpc_each_row_arrives_once_and_groups_keep_their_order(
    spark: Any, gateway: GatewayProcess, named: Named
) -> None:
    rows = spark.range(0, 600, numPartitions=2)
    body, tag = "concat('body ', id) body", "if(id % 3 = 0, 'three', null) tag"
    tables = {
        "plain": (body, tag, "map('größe', string(id)) properties"),
        "grouped": (body, "concat('g', id div 300, id % 5) message_group"),
        "mixed": (
            *(body, tag, "array('all', string(id)) keys"),
            "if(id % 7 = 0, null, concat('g', id % 5)) message_group",
            "int(if(id = 14, 2, null)) priority",
        ),
    }
    for kind, columns in tables.items():
        written = rows.selectExpr(*columns)
        writer = written.write.format("rocketmq").options(
            endpoints=gateway.endpoint, topic=named(f"grpc-{kind}")
        )
        writer.options(transport="grpc", sendBatchRows="50").mode("append").save()
        there = table(spark, gateway, named(f"grpc-{kind}"))
        names = [name for name in written.columns if name not in ("body", "properties")]
        found, wanted = (
            Counter(map(str, each.selectExpr("cast(body as string) body", *names).collect()))
            for each in (there, written)
        )
        assert found == wanted
    there = table(spark, gateway, named("grpc-plain")).selectExpr("body", "properties['größe'] number")
    assert all(bytes(row.body).decode() == f"body {row.number}" for row in there.collect())
    order: dict[str, list[int]] = {}
    there = table(spark, gateway, named("grpc-grouped")).orderBy("broker_name", "queue_id", "queue_offset")
    for row in there.collect():
        order.setdefault(row.message_group, []).append(int(bytes(row.body).split()[1]))
    assert len(order) == 10
    assert all(numbers == sorted(numbers) for numbers in order.values())


@ON_ALL
def test_a_stream_into_a_topic_goes_on_and_a_batch_that_comes_again_makes_no_copies(
    spark: Any,
    gateway: GatewayProcess,
    named: Named,
    stores_ids_once: bool,
    send: Send,
    finished: Finished,
    tmp_path: Path,
) -> None:
    read, written = named("in"), named("out")

    def run() -> list[int]:
        """In batches of about twelve."""
        stream = spark.readStream.schema("body binary, tag string").format("rocketmq")
        stream.options(endpoints=gateway.endpoint, topic=read, startingOffsets="earliest")
        frame = stream.option("maxOffsetsPerTrigger", "12").load()
        writer = frame.writeStream.format("rocketmq").options(endpoints=gateway.endpoint, topic=written)
        return finished(writer.option("checkpointLocation", str(tmp_path)))

    def found() -> Counter[tuple[bytes, str]]:
        """Of each id one."""
        rows = table(spark, gateway, written).dropDuplicates(["message_id"]).select("body", "tag").collect()
        return Counter((bytes(row.body), row.tag) for row in rows)

    def sent(count: int) -> Counter[tuple[bytes, str]]:
        return Counter((b"body %d" % number, f"t{number % 4}") for number in range(count))

    send(read, 0, 20)
    assert run()
    send(read, 20, 26)
    assert run() == [6]
    assert found() == sent(26)
    forget_last(tmp_path)
    assert run() == [6]
    assert found() == sent(26)
    assert table(spark, gateway, written).count() == (26 if stores_ids_once else 32)


def test_the_last_count_of_each_key_stays_in_complete_mode(
    spark: Any, gateway: GatewayProcess, send: Send, finished: Finished, tmp_path: Path
) -> None:
    """In a compacted topic, to which the whole result goes each time."""
    read, state = own("counted"), own("state")
    make(gateway, state, attributes=COMPACTION)

    def run() -> list[int]:
        stream = spark.readStream.schema("body binary, tag string").format("rocketmq")
        stream.options(endpoints=gateway.endpoint, topic=read, startingOffsets="earliest")
        counts = stream.load().groupBy("tag").count().selectExpr("tag keys", "string(count) body")
        writer = counts.writeStream.format("rocketmq").options(endpoints=gateway.endpoint, topic=state)
        return finished(writer.outputMode("complete").option("checkpointLocation", str(tmp_path)))

    def last() -> dict[str, str]:
        rows = table(spark, gateway, state).selectExpr("keys[0] key", "string(body) body", "queue_offset")
        return {row.key: row.body for row in sorted(rows.collect(), key=lambda row: row.queue_offset)}

    send(read, 0, 20)
    assert run() == [20]
    send(read, 20, 26)
    assert run() == [6]
    assert last() == {"t0": "7", "t1": "7", "t2": "6", "t3": "6"}
    forget_last(tmp_path)
    assert run() == [6]
    assert last() == {"t0": "7", "t1": "7", "t2": "6", "t3": "6"}


@ON_BOTH
def test_a_stream_with_a_ledger_opens_each_batch_once_and_so_does_for_each_batch(
    spark: Any, gateway: GatewayProcess, send: Send, finished: Finished, tmp_path: Path
) -> None:
    booked, books, once_topic, halves_topic = (own(name) for name in ("booked", "books", "once", "halves"))
    make(gateway, books, queues=1, attributes=COMPACTION)
    make(gateway, halves_topic, types=["TRANSACTION"])
    send(booked, 0, 20)
    stream = spark.readStream.schema("body binary, tag string").format("rocketmq")
    stream.options(endpoints=gateway.endpoint, topic=booked, startingOffsets="earliest")
    frame = stream.option("maxOffsetsPerTrigger", "12").load()
    ledger = {"endpoints": gateway.endpoint, "ledgerTopic": books}

    once = frame.writeStream.format("rocketmq").options(**ledger, topic=once_topic, sinkId=once_topic)
    once.options(deliveryGuarantee="effectively-once", checkpointLocation=str(tmp_path / "once"))
    assert finished(once) == [12, 8]

    def write(batch: Any, _number: int) -> None:
        written = batch.write.format("rocketmq").options(**ledger, topic=halves_topic, sinkId=halves_topic)
        written.option("deliveryGuarantee", "transactional").mode("append").save()

    halves = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "halves"))
    assert finished(halves) == [12, 8]

    def bodies(topic: str) -> Counter[bytes]:
        return Counter(bytes(row.body) for row in table(spark, gateway, topic).select("body").collect())

    assert bodies(once_topic) == bodies(halves_topic) == Counter(b"body %d" % number for number in range(20))
    rows = table(spark, gateway, books).selectExpr("keys", "cast(body as string) body").collect()
    opened = [json.loads(row.body) for row in rows if row.body and '"kind":"open"' in row.body]
    # The last opening of each, after compaction; had one been made twice, it would say so.
    assert {row.get("batch") for row in opened} >= {0}
    assert not any(row["again"] for row in opened)
    for name in ("once", "halves"):
        forget_last(tmp_path / name)
    assert finished(once) == finished(halves) == [8]
    assert bodies(once_topic) == bodies(halves_topic) == Counter(b"body %d" % number for number in range(20))


def test_a_numbered_write_in_a_namespace_sends_each_row_once(spark: Any, gateway: GatewayProcess) -> None:
    shop, mall = own("shop"), own("mall")
    make(gateway, f"{shop}%books", queues=1, attributes=COMPACTION)
    in_shop, in_mall = (
        {"endpoints": gateway.endpoint, "rocketmq.client.namespace": namespace} for namespace in (shop, mall)
    )
    numbered = {**in_shop, "ledgerTopic": "books", "deliveryGuarantee": "effectively-once", "txnAppId": "app"}
    for version, begin, end in ((1, 0, 5), (1, 0, 5), (0, 100, 105), (2, 5, 9)):
        rows = spark.range(begin, end, numPartitions=2).selectExpr("'bills' topic", "string(id) body")
        rows.write.format("rocketmq").options(**numbered, txnVersion=version).mode("append").save()

    def there(options: dict[str, str]) -> Any:
        frame = spark.read.format("rocketmq").options(**options, subscribePattern="bil.*").load()
        return frame.select("topic", "body")

    there(in_shop).write.format("rocketmq").options(**in_mall).mode("append").save()
    expected = sorted(("bills", b"%d" % number) for number in range(9))
    for options in (in_shop, in_mall):
        assert sorted((row.topic, bytes(row.body)) for row in there(options).collect()) == expected
