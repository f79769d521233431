"""Tasks of Spark's sink before a whole gateway, without Spark: what becomes of rows, which are refused."""

from __future__ import annotations

import json
import pickle
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType

from popgate.blocking import BlockingConnection
from popgate.queue_client import QueueClient
from popgate.spark.connections import close_idle
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.options.sink_options import read_sink_options
from popgate.spark.options.source_options import read_source_options
from popgate.spark.read.driver import batch_plan
from popgate.spark.read.partition_reader import batches
from popgate.spark.sink import RocketMQWriter
from popgate.spark.write.message_ids import Identity
from popgate.spark.write.write_task import written
from popgate.testing.gateway import GatewayProcess
from popgate.wire.messages.records import Record, decode_records
from tests.support.waiting import PATIENCE_S, wait_until

MAP = pa.map_(pa.string(), pa.string())
TYPES = {"properties": MAP, "delivery_timestamp": pa.timestamp("us", "UTC")}


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayProcess]:
    with GatewayProcess(listen=("remoting://127.0.0.1:0",)) as running:
        yield running
        close_idle()


def make(gateway: GatewayProcess, name: str, **settings: Any) -> None:
    data, kind = json.dumps({"name": name, **settings}).encode(), {"content-type": "application/json"}
    request = urllib.request.Request(f"{gateway.admin}/api/topics", data, kind)
    urllib.request.urlopen(request, timeout=PATIENCE_S).close()


def write(gateway: GatewayProcess, topic: str, batch: str = "0", **columns: list[Any]) -> int:
    """By one task of a batch of a stream."""
    arrays = {name: pa.array(values, TYPES.get(name, pa.string())) for name, values in columns.items()}
    options = read_sink_options({"endpoints": gateway.endpoint, "topic": topic})
    return written([pa.RecordBatch.from_pydict(arrays)], options, Identity(("stream", "q", batch), "", 0))


def refusal(gateway: GatewayProcess, topic: str, **columns: list[Any]) -> tuple[Code, str]:
    with pytest.raises(SparkSourceError) as refused:
        write(gateway, topic, **columns)
    return refused.value.code, str(refused.value)


def records(gateway: GatewayProcess, topic: str) -> list[Record]:
    """By queue and offset."""
    there: list[Record] = []
    with BlockingConnection.connect(gateway.endpoint, timeout_s=PATIENCE_S) as connection:
        client = QueueClient(connection)
        for queue, end in client.maximums(client.queues(topic)).items():
            at = 0
            while at < end:
                answer = client.pull(queue, at, most=1000)
                there += decode_records(answer.body)
                at = answer.next_offset
    return there


def bodies(gateway: GatewayProcess, topic: str) -> list[str]:
    return [record.body.decode() for record in records(gateway, topic)]


def test_a_time_in_the_past_is_now_and_one_too_far_ahead_is_refused(gateway: GatewayProcess) -> None:
    make(gateway, "later", types=["DELAY"])
    now = datetime.now(UTC)
    times = [now - timedelta(days=1), datetime(1950, 1, 1, tzinfo=UTC), now + timedelta(seconds=1)]
    assert write(gateway, "later", body=["past", "1950", "soon"], delivery_timestamp=times) == 3
    wait_until(lambda: sorted(bodies(gateway, "later")) == ["1950", "past", "soon"])
    [soon] = [record for record in records(gateway, "later") if record.body == b"soon"]
    assert soon.store_ms >= int(times[2].timestamp() * 1000)
    times = [now, now + timedelta(days=9_000)]
    code, sentence = refusal(gateway, "later", body=["a", "b"], delivery_timestamp=times)
    assert (code, "the longest delay is" in sentence, "row 1 of partition 0" in sentence) == (
        *(Code.GATEWAY, True, True),
    )


def test_rows_at_a_limit_are_taken_and_those_beyond_are_refused(gateway: GatewayProcess) -> None:
    assert write(gateway, "large", body=["x" * (4 << 20)]) == 1
    taken = [("k", "v" * (16 * 1024 - 1))]
    assert write(gateway, "large", body=["p"] * 80, properties=[taken] * 80) == 80
    assert len(records(gateway, "large")) == 81
    for columns, code, says in (
        ({"body": ["a", "x" * ((4 << 20) + 1)]}, Code.GATEWAY, "the limit is 4194304"),
        ({"body": ["a", "x" * (17 << 20)]}, Code.ILLEGAL_ROW, "column body is too large"),
        ({"body": ["a", "p"], "properties": [None, [("k", "v" * (16 * 1024))]]}, Code.GATEWAY, "is 16384"),
        ({"body": ["a", "p"], "properties": [None, [("k", "v" * 40_000)]]}, Code.GATEWAY, "is 32767"),
        (
            {"body": ["a", "p"], "properties": [None, [("k", "v" * (2 << 20))]]},
            *(Code.ILLEGAL_ROW, "column properties is too large"),
        ),
    ):
        answer, sentence = refusal(gateway, "large", **columns)
        assert (answer, says in sentence) == (code, True), sentence
        assert "row 1" in sentence or "rows 0 to 1" in sentence


def test_message_groups_are_in_order_and_empty_bodies_delete_in_compacted_topics(
    gateway: GatewayProcess,
) -> None:
    make(gateway, "grouped", types=["FIFO"])
    groups = [f"g{number % 7}" for number in range(700)]
    assert write(gateway, "grouped", body=list(map(str, range(700))), message_group=groups) == 700
    there = list(map(int, bodies(gateway, "grouped")))
    for group in range(7):
        own = [number for number in there if number % 7 == group]
        assert own == sorted(own)
    make(gateway, "deleted", attributes={"cleanup.policy": "COMPACTION"})
    assert write(gateway, "deleted", body=["a", ""], keys=["k", "k"]) == 2
    assert bodies(gateway, "deleted") == ["a", ""]
    assert "has no key" in refusal(gateway, "deleted", body=["a"])[1]
    assert "the message body is empty" in refusal(gateway, "not-compacted", body=[""])[1]


def test_what_is_read_in_a_namespace_is_written_back_in_another(gateway: GatewayProcess) -> None:
    def given(namespace: str) -> dict[str, str]:
        return {"endpoints": gateway.endpoint, "rocketmq.client.namespace": namespace}

    def send(namespace: str, rows: pa.RecordBatch) -> int:
        return written([rows], read_sink_options(given(namespace)), Identity(("batch", "r"), "", 0))

    def read(namespace: str) -> pa.RecordBatch:
        options = read_source_options({**given(namespace), "subscribePattern": "ns-.*"}, streaming=False)
        ranges = [each for task in batch_plan(options, fail) for each in task]
        return pa.Table.from_batches(batches(ranges, rows.schema, options, fail)).combine_chunks()

    def fail(sentence: str) -> None:
        raise AssertionError(sentence)

    rows = pa.RecordBatch.from_pydict({"topic": ["ns-a", "ns-b"] * 2, "body": [b"0", b"1", b"2", b"3"]})
    for namespace, topics in (("shop", ("ns-a", "ns-b")), ("mall", ("ns-a", "ns-b"))):
        for topic in topics:
            make(gateway, f"{namespace}%{topic}", queues=1)
    make(gateway, "ns-c")
    assert send("shop", rows) == 4
    [there] = read("shop").to_batches()
    assert sorted(map(tuple, (row.values() for row in there.to_pylist()))) == [
        *(("ns-a", b"0"), ("ns-a", b"2"), ("ns-b", b"1"), ("ns-b", b"3")),
    ]
    assert send("mall", there) == 4
    assert sorted(bodies(gateway, "mall%ns-a")) == sorted(bodies(gateway, "shop%ns-a")) == ["0", "2"]
    assert read("mall").num_rows == 4
    with pytest.raises(SparkSourceError, match="TOPIC_NOT_FOUND: topic park%ns-a"):
        batch_plan(read_source_options({**given("park"), "topic": "ns-a"}, streaming=False), fail)


def test_a_numbered_write_sends_each_row_once(gateway: GatewayProcess) -> None:
    for topic in ("shop%numbered", "shop%ledger"):
        policy = {"cleanup.policy": "COMPACTION"} if topic == "shop%ledger" else {}
        make(gateway, topic, queues=1, attributes=policy)
    given = {"endpoints": gateway.endpoint, "rocketmq.client.namespace": "shop", "topic": "numbered"}
    given |= {"ledgerTopic": "ledger", "deliveryGuarantee": "effectively-once", "txnAppId": "nightly"}

    def send(version: int, *texts: str, dies: bool = False) -> int:
        """Rows that were sent. If the driver dies, it does not commit."""
        schema, options = StructType().add("body", StringType()), {**given, "txnVersion": str(version)}
        writer = RocketMQWriter(schema, read_sink_options(options), overwrite=False)
        rows = pa.RecordBatch.from_pydict({"body": pa.array(texts, pa.string())})
        message = pickle.loads(pickle.dumps(writer)).write(iter([rows]))
        if not dies:
            writer.commit([message])
        return message.rows

    assert send(1, "a", "b", dies=True) == 2
    with pytest.raises(SparkSourceError, match="version 1 was begun, and is not done, so version 2"):
        send(2, "c")
    assert send(1, "b", "a") == 0
    assert (send(1, "a", "b"), send(0, "z"), send(2, "c")) == (0, 0, 1)
    assert bodies(gateway, "shop%numbered") == ["a", "b", "c"]


def test_the_last_row_of_a_key_stays_when_its_batch_comes_again(tmp_path: Path) -> None:
    """After a kill, before which a compaction removed older rows: their ids are not known any more."""
    options = ("--set", "retention.interval_s=1s")
    first = GatewayProcess(tmp_path / "data", listen=("remoting://127.0.0.1:0",), options=options)
    gateways = [first]
    try:
        first.start()
        make(first, "state", queues=1, attributes={"cleanup.policy": "COMPACTION"})
        told = {"body": ["k1", "m1", "k2", "k3"], "keys": ["k", "m", "k", "k"]}
        assert write(first, "state", **told) == 4
        wait_until(lambda: bodies(first, "state") == ["m1", "k3"])
        close_idle()
        first.kill()
        second = first.successor()
        gateways.append(second)
        second.start()
        assert write(second, "state", **told) == 4
        wait_until(lambda: bodies(second, "state") == ["m1", "k3"] and records(second, "state")[1].offset > 4)
    finally:
        for gateway in reversed(gateways):
            gateway.close()
