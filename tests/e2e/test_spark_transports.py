"""Spark's source and sink before a whole gateway over both transports, without Spark: the same rows."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from popgate.queue_client import QueuePlace
from popgate.spark.connections import client_of, close_idle
from popgate.spark.errors import Code, SparkSourceError
from popgate.spark.options.sink_options import read_sink_options
from popgate.spark.options.source_options import read_source_options
from popgate.spark.read.driver import batch_plan
from popgate.spark.read.partition_reader import batches
from popgate.spark.read.read_plan import Range
from popgate.spark.write.message_ids import Identity
from popgate.spark.write.write_task import written
from popgate.testing.gateway import GatewayProcess
from tests.support.waiting import PATIENCE_S, wait_until

TRANSPORTS = ("remoting", "grpc")
MAP = pa.map_(pa.string(), pa.string())
TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    {
        **{name: pa.string() for name in ("topic", "broker_name", "message_id", "tag", "message_group")},
        **{name: pa.string() for name in ("message_type", "lite_topic", "trace_context", "born_host")},
        **{name: pa.int32() for name in ("queue_id", "reconsume_times", "priority", "flag")},
        **dict.fromkeys(("born_timestamp", "store_timestamp", "delivery_timestamp"), TIME),
        "queue_offset": pa.int64(),
        "body": pa.binary(),
        "keys": pa.list_(pa.string()),
        "properties": MAP,
    }
)
SENT = ("body", "tag", "keys", "message_group", "properties", "delivery_timestamp", "priority", "lite_topic")
PAST = datetime(2020, 1, 2, 3, 4, 5, 678_000, UTC)
LIMITS = {"max_properties": "4096", "max_properties_bytes": "30000"}
OPTIONS = (
    *("--set", "retention.interval_s=1s"),
    *(word for name, value in LIMITS.items() for word in ("--set", f"limits.{name}={value}")),
)


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayProcess]:
    with GatewayProcess(listen=("grpc+remoting://127.0.0.1:0",), options=OPTIONS) as running:
        yield running
        close_idle()


def make(gateway: GatewayProcess, name: str, **settings: Any) -> None:
    """A topic, unless it is there."""
    data, kind = json.dumps({"name": name, **settings}).encode(), {"content-type": "application/json"}
    request = urllib.request.Request(f"{gateway.admin}/api/topics", data, kind)
    try:
        urllib.request.urlopen(request, timeout=PATIENCE_S).close()
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 409:
            raise


def write(
    endpoint: str, topic: str, transport: str, given: dict[str, str] | None = None, **columns: Any
) -> int:
    """By one task of a batch of a stream."""
    types = {field.name: field.type for field in SCHEMA}
    arrays = {name: pa.array(values, types[name]) for name, values in columns.items()}
    told = {"endpoints": endpoint, "topic": topic, "transport": transport, **(given or {})}
    identity = Identity(("stream", "q", "0"), "", 0)
    return written([pa.RecordBatch.from_pydict(arrays)], read_sink_options(told), identity)


def read(
    endpoint: str, topic: str, transport: str, schema: pa.Schema = SCHEMA, **given: str
) -> list[dict[str, Any]]:
    """By queue and offset."""
    return list(reading(endpoint, topic, transport, schema, **given))


def reading(
    endpoint: str, topic: str, transport: str, schema: pa.Schema = SCHEMA, **given: str
) -> Iterator[dict[str, Any]]:
    told = {"endpoints": endpoint, "topic": topic, "transport": transport, **given}
    options = read_source_options(told, streaming=False)
    ranges = [each for task in batch_plan(options, fail) for each in task]
    for batch in batches(ranges, schema, options, fail):
        yield from batch.to_pylist()


def fail(sentence: str) -> None:
    raise AssertionError(sentence)


KINDS: dict[str, dict[str, list[Any]]] = {
    "NORMAL": {
        "tag": ["paid", None, "größe"],
        "keys": [["k1", "k2"], [], None],
        "properties": [[("a", "b"), ("ö ", " ")], None, [("c", "1"), ("b", "2")]],
    },
    "FIFO": {"message_group": ["g1", "g2", "g1"]},
    "DELAY": {"delivery_timestamp": [PAST, PAST, PAST]},
    "PRIORITY": {"priority": [0, 7, (1 << 31) - 1]},
    "LITE": {"lite_topic": ["room-1", "room-2", "room-1"]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_messages_of_all_kinds_are_the_same_over_both(gateway: GatewayProcess, kind: str) -> None:
    bodies = [b"body 0", b"\x00\xff" * 9, b"2"]
    stored = {}
    for sent_by in TRANSPORTS:
        topic = f"kind-{kind.lower()}-{sent_by}"
        make(gateway, topic, types=[kind], queues=1)
        assert write(gateway.endpoint, topic, sent_by, body=bodies, **KINDS[kind]) == 3
        wait_until(lambda topic=topic: len(read(gateway.endpoint, topic, "remoting")) == 3)
        by_remoting, by_grpc = (read(gateway.endpoint, topic, transport) for transport in TRANSPORTS)
        for row in (*by_remoting, *by_grpc):
            row["born_host"] = row["born_host"].rpartition(":")[0]
            row["properties"].sort()
        assert by_grpc == by_remoting
        assert [row["message_type"] for row in by_grpc] == [kind] * 3
        stored[sent_by] = by_grpc
    names = (*SENT, "message_id", "message_type", "broker_name", "queue_id", "born_host")
    told = [[{name: row[name] for name in names} for row in stored[transport]] for transport in TRANSPORTS]
    assert told[0] == told[1]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_large_bodies_and_many_properties_are_read(gateway: GatewayProcess, transport: str) -> None:
    topic = f"large-{transport}"
    make(gateway, topic, queues=1)
    many = [(f"{at:x}", "v") for at in range(4000)]
    assert write(gateway.endpoint, topic, transport, body=[b"p"], properties=[many]) == 1
    large = [b"%d" % at * (4 << 20) for at in range(3)]
    assert write(gateway.endpoint, topic, transport, body=large) == 3
    rows = read(gateway.endpoint, topic, transport)
    assert rows[0]["body"] == b"p"
    # Those without a group have no order, as they are under way together.
    assert sorted(row["body"] for row in rows[1:]) == large
    assert sorted(rows[0]["properties"]) == sorted(many)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"body": [b"a", b""]}, "the message body is empty.*rows 0 to 1 of partition 0"),
        ({"body": [b"a", b"x" * ((4 << 20) + 1)]}, "the limit is 4194304.*row 1 of partition 0"),
        ({"body": [b"p"], "properties": [[(f"{at}", "v") for at in range(4097)]]}, "the limit is 4096"),
        ({"body": [b"p"], "properties": [[("k", "v" * 30_000)]]}, "30001.*is 30000"),
        ({"body": [b"a"], "message_group": ["g" * 300]}, "the message group has 300 bytes"),
    ],
)
def test_a_row_beyond_a_limit_is_refused_over_both(
    gateway: GatewayProcess, columns: dict[str, list[Any]], says: str, transport: str
) -> None:
    make(gateway, "limits")
    with pytest.raises(SparkSourceError, match=says) as refused:
        write(gateway.endpoint, "limits", transport, **columns)
    assert refused.value.code is Code.GATEWAY


def test_a_topic_that_is_not_there_is_told_over_grpc(gateway: GatewayProcess) -> None:
    with pytest.raises(SparkSourceError, match=r"TOPIC_NOT_FOUND.*nowhere"):
        read(gateway.endpoint, "nowhere", "grpc")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_task_does_not_make_a_topic_that_was_deleted(gateway: GatewayProcess, transport: str) -> None:
    topic = f"deleted-{transport}"
    make(gateway, topic, queues=1)
    write(gateway.endpoint, topic, transport, body=[b"x"])
    told = {"endpoints": gateway.endpoint, "topic": topic, "transport": transport, "pullTimeoutMs": "1000"}
    options = read_source_options(told, streaming=False)
    [[range_]] = batch_plan(options, fail)
    where = f"{gateway.admin}/api/topics/{topic}"
    urllib.request.urlopen(urllib.request.Request(where, method="DELETE"), timeout=PATIENCE_S).close()
    for _ in range(2):
        with pytest.raises(SparkSourceError, match="TOPIC_NOT_FOUND"):
            list(batches([range_], SCHEMA, options, fail))


def test_rows_that_retention_removed_are_a_loss_over_grpc(gateway: GatewayProcess) -> None:
    make(gateway, "shrunk", queues=1, retention_bytes=1)
    told = {"endpoints": gateway.endpoint, "topic": "shrunk", "transport": "grpc"}
    options = read_source_options(told, streaming=False)
    write(gateway.endpoint, "shrunk", "grpc", body=[b"x" * 1000] * 50)
    queue = QueuePlace("shrunk", "popgate", 0)

    def is_shrunk() -> bool:
        with client_of(options) as client:
            return client.minimums([queue])[queue] > 0

    # Not by a read, which retention may overtake.
    wait_until(is_shrunk)
    with pytest.raises(SparkSourceError, match="ROCKETMQ_DATA_LOSS"):
        list(batches([Range(queue, 0, 50)], SCHEMA, options, fail))


class Cutter:
    """A proxy that, when it is told to, cuts a connection after so many bytes of answers."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self.endpoint = f"127.0.0.1:{self._sockets[0].getsockname()[1]}"
        self.left: int | None = None
        self.cuts = 0
        self._threads: list[threading.Thread] = []
        self._run(self._accept, self._sockets[0])

    def __enter__(self) -> Cutter:
        return self

    def __exit__(self, *_: object) -> None:
        close_idle()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _run(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listening.accept()
                self._sockets.append(client)
                server = socket.create_connection(self._target)
                self._sockets.append(server)
                self._run(self._pump, client, server, False)
                self._run(self._pump, server, client, True)

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                if answers and self.left is not None:
                    if self.left <= len(data):
                        sink.sendall(data[: self.left])
                        self.cuts, self.left = self.cuts + 1, None
                        break
                    self.left -= len(data)
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("size", [100, 2_000, 30_000, 60_000])
def test_a_read_goes_on_where_a_stream_was_cut(gateway: GatewayProcess, size: int) -> None:
    make(gateway, f"cut-{size}", queues=1)
    bodies = [b"%d" % at * 20 for at in range(2000)]
    write(gateway.endpoint, f"cut-{size}", "remoting", body=bodies)
    schema = pa.schema({"queue_offset": pa.int64(), "body": pa.binary()})
    with Cutter(gateway.endpoint) as cutter:
        given = {"arrowBatchRows": "100", "pullBatchSize": "64"}
        rows = reading(cutter.endpoint, f"cut-{size}", "grpc", schema, **given)
        there = [next(rows)]
        for _ in range(3):
            cutter.left = size
            there += [row for _, row in zip(range(500), rows, strict=False)]
        there += rows
        assert cutter.cuts > 0
    assert [(row["queue_offset"], row["body"]) for row in there] == list(enumerate(bodies))


@pytest.mark.parametrize("size", [10, 300, 3_000])
def test_a_send_is_repeated_when_its_answer_is_cut(gateway: GatewayProcess, size: int) -> None:
    topic = f"cut-send-{size}"
    make(gateway, topic, queues=2)
    with Cutter(gateway.endpoint) as cutter:
        options = {"sendBatchRows": "10", "send.retryIntervalMs": "1"}
        write(cutter.endpoint, topic, "grpc", options, body=[b"first"])
        cutter.left = size
        bodies = [b"%d" % at for at in range(2000)]
        assert write(cutter.endpoint, topic, "grpc", options, body=bodies) == 2000
        assert cutter.cuts == 1
    there = [row["body"] for row in read(gateway.endpoint, topic, "remoting")]
    assert set(there) == {b"first", *bodies}
    # The broker knows the ids of what was stored before the cut.
    assert len(there) == 2001


@pytest.mark.parametrize("end", [GatewayProcess.kill, GatewayProcess.terminate])
def test_a_gateway_may_restart_while_rows_are_read_and_sent(end: Callable[[GatewayProcess], int]) -> None:
    schema = pa.schema({"queue_offset": pa.int64(), "body": pa.binary()})
    first = GatewayProcess(listen=("grpc+remoting://127.0.0.1:0",), holds_ports=True)
    gateways = [first]
    try:
        first.start()
        for topic in ("read", "sent"):
            make(first, topic, queues=1)
        bodies = [b"%d" % at for at in range(3000)]
        write(first.endpoint, "read", "remoting", body=bodies)
        rows = reading(first.endpoint, "read", "grpc", schema, arrowBatchRows="50", pullBatchSize="32")
        there = [next(rows)["body"]]
        write(first.endpoint, "sent", "grpc", body=[b"before"])
        failures: list[BaseException] = []

        def send() -> None:
            try:
                many = {"sendBatchRows": "5", "send.numRetries": "100"}
                write(first.endpoint, "sent", "grpc", many, body=bodies * 10)
            except BaseException as error:
                failures.append(error)

        sender = threading.Thread(target=send)
        sender.start()
        wait_until(lambda: len(read(first.endpoint, "sent", "remoting", schema)) > 100)
        end(first)
        second = first.successor()
        gateways.append(second)
        second.start()
        there += [row["body"] for row in rows]
        assert there == bodies
        sender.join(10 * PATIENCE_S)
        assert not failures, failures
        sent = [row["body"] for row in read(second.endpoint, "sent", "remoting", schema)]
        assert set(sent) == {b"before", *bodies}
        assert len(sent) >= 30_001
    finally:
        close_idle()
        for gateway in reversed(gateways):
            gateway.close()
