"""Reading and sending by queue on a blocking socket, before a whole gateway: in the clear and with TLS."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from popgate.blocking import BlockingConnection
from popgate.errors import BrokerUnavailable, Fault, GatewayError, GroupNotFound, TopicNotFound
from popgate.queue_client import QueueClient, QueuePlace
from popgate.spark.connections import client_of, close_idle
from popgate.spark.errors import SparkSourceError
from popgate.spark.options.source_options import read_source_options
from popgate.testing.gateway import GatewayProcess
from popgate.testing.papers import Papers
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.messages.records import Record, decode_records
from tests.support.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def gateway(papers: Papers) -> Iterator[GatewayProcess]:
    certificate, key = papers.pair("gateway")
    options = ("--set", f"tls.certificate={certificate}", "--set", f"tls.key={key}")
    doors = ("remoting://127.0.0.1:0", "remoting://127.0.0.1:0?tls=true")
    with GatewayProcess(listen=doors, options=options) as running:
        yield running


def endpoint_of(gateway: GatewayProcess, door: int = 0) -> str:
    return gateway.addresses[door].partition("://")[2].partition("?")[0]


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[QueueClient]:
    with BlockingConnection.connect(endpoint_of(gateway), timeout_s=PATIENCE_S) as connection:
        yield QueueClient(connection)


def filled(client: QueueClient, topic: str, count: int) -> QueuePlace:
    """A queue of a topic of its own, with so many messages, odd ones with the tag odd."""
    broker = client.route("TBW102").queues[0].broker
    queue = QueuePlace(topic, broker, 0)
    messages = [(b"body %d" % number, b"TAGS\x01odd\x02" if number % 2 else b"") for number in range(count)]
    assert client.send(queue, messages[:1]).offset == 0
    if count > 1:
        assert client.send(queue, messages[1:]).offset == 1
    return queue


def records(body: bytes) -> list[Record]:
    return list(decode_records(body, verify=True))


def test_what_was_sent_is_read_by_offset(client: QueueClient) -> None:
    queue = filled(client, "spark-read", 40)

    assert queue in client.queues(queue.topic)
    assert client.minimums([queue]) == {queue: 0}
    assert client.maximums([queue]) == {queue: 40}
    pulled = client.pull(queue, 7, most=5)
    assert (pulled.code, pulled.next_offset) == (ResponseCode.SUCCESS, 12)
    assert [(each.offset, each.body) for each in records(pulled.body)] == [
        (number, b"body %d" % number) for number in range(7, 12)
    ]


def test_many_pulls_are_under_way_at_a_time(client: QueueClient) -> None:
    queue = filled(client, "spark-pipelined", 64)
    begun = [(offset, client.start_pull(queue, offset, most=8)) for offset in range(0, 64, 8)]

    found = {offset: client.finish_pull(opaque, queue) for offset, opaque in reversed(begun)}

    offsets = [each.offset for offset in sorted(found) for each in records(found[offset].body)]
    assert offsets == list(range(64))


def test_a_tag_is_sifted_at_the_broker(client: QueueClient) -> None:
    queue = filled(client, "spark-tags", 10)
    pulled = client.pull(queue, 0, most=32, expression="odd")
    assert [each.offset for each in records(pulled.body)] == [1, 3, 5, 7, 9]
    nothing = client.pull(queue, 0, most=32, expression="none")
    assert (nothing.code, nothing.next_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 10)


def test_the_end_and_what_is_past_it_are_told_apart(client: QueueClient) -> None:
    queue = filled(client, "spark-end", 3)
    assert client.pull(queue, 3, most=32).code == ResponseCode.PULL_NOT_FOUND
    past = client.pull(queue, 1_000, most=32)
    assert (past.code, past.next_offset) == (ResponseCode.PULL_OFFSET_MOVED, 3)


def test_topics_are_those_of_users(client: QueueClient) -> None:
    filled(client, "spark-listed", 1)
    QueueClient(client.connection, group="spark-lister").pull(
        filled(client, "spark-listed-too", 1), 0, most=1
    )
    found = client.topics()
    assert {"spark-listed", "spark-listed-too"} <= set(found)
    brokers = {each.broker for each in client.route("TBW102").queues}
    assert brokers.isdisjoint(found)
    assert not any(topic.startswith(("%", "TBW102", "rmq_sys_")) for topic in found)


def test_a_time_is_an_offset(client: QueueClient) -> None:
    queue = filled(client, "spark-times", 3)
    stored = [each.store_ms for each in records(client.pull(queue, 0, most=3).body)]
    assert client.offsets_at({queue: stored[0]}) == {queue: 0}
    assert client.offsets_at({queue: stored[-1] + 1}) == {queue: 3}


def test_a_group_has_a_position_from_when_it_is_told(client: QueueClient) -> None:
    queue = filled(client, "spark-groups", 5)
    other = queue._replace(queue_id=1)
    with pytest.raises(GroupNotFound, match="spark-readers"):
        client.commit("spark-readers", {queue: 4})
    # On first use a group is made by who subscribes.
    QueueClient(client.connection, group="spark-readers").pull(queue, 0, most=1)
    client.commit("spark-readers", {queue: 4})
    assert client.committed("spark-readers", [queue]) == {queue: 4}
    assert client.committed("spark-readers", [queue, other])[queue] == 4
    assert client.committed("nobody", [queue]) == {}


def test_a_topic_that_is_not_there_is_told_by_its_name(client: QueueClient) -> None:
    with pytest.raises(TopicNotFound, match="spark-unknown"):
        client.route("spark-unknown")
    with pytest.raises(TopicNotFound, match="spark-unknown"):
        client.pull(QueuePlace("spark-unknown", "popgate", 0), 0, most=1)


def test_a_filter_that_is_none_is_refused_by_name(client: QueueClient) -> None:
    queue = filled(client, "spark-filters", 1)
    with pytest.raises(GatewayError) as refused:
        client.pull(queue, 0, most=1, expression="a >", kind="SQL92")
    assert refused.value.fault is Fault.ILLEGAL_FILTER


def test_tls_is_spoken_and_its_authority_looked_at(
    gateway: GatewayProcess, papers: Papers, tmp_path: Path
) -> None:
    endpoint = endpoint_of(gateway, 1)
    trusting = ssl.create_default_context(cafile=papers.authority)
    with BlockingConnection.connect(endpoint, timeout_s=PATIENCE_S, tls=trusting) as connection:
        client = QueueClient(connection)
        queue = filled(client, "spark-tls", 20)
        # More than one record of TLS, in both directions.
        large = bytes(1_000_000)
        assert client.send(queue, [(large, b"")]).offset == 20
        [read] = records(client.pull(queue, 20, most=1).body)
        assert read.body == large
    given = {"endpoints": endpoint, "topic": queue.topic, "rocketmq.client.tls": "true"}
    trusting_options = read_source_options(
        {**given, "rocketmq.client.tls.ca": str(papers.authority)}, streaming=False
    )
    with client_of(trusting_options) as client:
        assert client.maximums([queue]) == {queue: 21}
    close_idle()
    with (
        pytest.raises(SparkSourceError, match=r"ROCKETMQ_GATEWAY\] BROKER_UNAVAILABLE.*certificate"),
        client_of(read_source_options(given, streaming=False)),
    ):
        pass
    stranger = ssl.create_default_context(cafile=Papers(tmp_path).authority)
    with pytest.raises(BrokerUnavailable, match="certificate"):
        BlockingConnection.connect(endpoint, timeout_s=PATIENCE_S, tls=stranger)
