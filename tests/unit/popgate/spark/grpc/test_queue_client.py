"""popgate.spark.grpc.queue_client, before a gateway and before a server whose answers the test gives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
import pytest

from popgate.errors import (
    BodyTooLarge,
    BrokerBusy,
    BrokerTimeout,
    BrokerUnavailable,
    Fault,
    GatewayError,
    Internal,
    TopicNotFound,
    Unsupported,
)
from popgate.model import TopicConfig
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.queue_client import HalfMessage, QueueClient, QueuePlace
from popgate.spark.errors import Code, PartlyStored, SparkSourceError
from popgate.spark.grpc.connection import GrpcConnection
from popgate.spark.grpc.queue_client import GrpcQueueClient
from popgate.spark.read.compaction import is_compacted
from popgate.spark.write.queue_selector import brokers_of_new_topics, writable_queues
from popgate.wire.bodies.query_reports import QueryReport
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.messages.batches import encode_batch
from popgate.wire.messages.records import Record, decode_records
from processors.limits import Limits
from tests.support.waiting import PATIENCE_S
from tests.unit.popgate.spark.grpc.scripted import OK, QUEUE, Scripted, message, pulled

T = TypeVar("T")
HERE = QueuePlace("t", "popgate", 0)
BUSY = pb.Status(code=pb.TOO_MANY_REQUESTS, message="later")
TOO_LARGE = pb.Status(code=pb.MESSAGE_BODY_TOO_LARGE, message="too large")


@contextmanager
def client_at(endpoint: str, group: str = "readers") -> Iterator[QueueClient]:
    connection = GrpcConnection.connect(endpoint, timeout_s=PATIENCE_S)
    try:
        yield GrpcQueueClient(connection, group=group)
    finally:
        connection.close()


async def asked(gateway: Any, work: Callable[[QueueClient], T]) -> T:
    def in_a_thread() -> T:
        with client_at(gateway.address) as client:
            return work(client)

    return await asyncio.to_thread(in_a_thread)


@pytest.fixture
def scripted_client(scripted: Scripted) -> Iterator[QueueClient]:
    with client_at(scripted.endpoint) as client:
        yield client


def block(**properties: str) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()


def rows(*numbers: int, **properties: str) -> list[tuple[bytes, bytes]]:
    return [
        (b"%d" % n, block(UNIQ_KEY=f"ID{n}", TAGS="odd" if n % 2 else "even", **properties)) for n in numbers
    ]


def records(body: bytes) -> list[Record]:
    return list(decode_records(body))


def bodies(body: bytes) -> list[bytes]:
    return [record.body for record in records(body)]


@pytest.fixture
async def shelf(gateway: Any) -> None:
    """Messages at the offsets 0 to 4 of the only queue of topic t, a second apart."""
    await gateway.broker.create_topic(TopicConfig("t", read_queues=1, write_queues=1))
    for n in range(5):
        await asked(gateway, lambda client, n=n: client.send(HERE, rows(n)))
        await gateway.pass_s(1.0)


# -- where things are -------------------------------------------------------------------------------


async def test_queues_are_those_of_the_route_and_no_topic_is_made(gateway: Any) -> None:
    await gateway.broker.create_topic(TopicConfig("t", read_queues=2, write_queues=2))
    assert await asked(gateway, lambda client: client.queues("t")) == [HERE, HERE._replace(queue_id=1)]
    with pytest.raises(TopicNotFound, match="topic missing"):
        await asked(gateway, lambda client: client.queues("missing"))
    assert [topic.name for topic in await gateway.broker.topics()] == ["t"]


async def test_a_sink_finds_its_queues_and_makes_its_topic(town: Any) -> None:
    gateway = await town.gateway(limits=Limits(new_topic_queues=3))
    queues = await asked(gateway, lambda client: writable_queues(client, "made"))
    assert queues == tuple(QueuePlace("made", "popgate", number) for number in range(3))
    closed = await town.gateway(limits=Limits(auto_create_topics=False))
    with pytest.raises(TopicNotFound):
        await asked(closed, lambda client: writable_queues(client, "made"))
    assert await asked(closed, brokers_of_new_topics) == []


def test_a_route_has_what_each_broker_takes_and_gives(
    scripted: Scripted, scripted_client: QueueClient
) -> None:
    def queue(broker: str, number: int, permission: pb.Permission, member: int = 0) -> pb.MessageQueue:
        place = pb.Broker(name=broker, id=member)
        return pb.MessageQueue(id=number, permission=permission, broker=place)

    scripted.answers["QueryOffset"] = [rpc.QueryOffsetResponse(status=OK)]
    scripted.answers["QueryRoute"] = [
        rpc.QueryRouteResponse(
            status=OK,
            message_queues=[
                queue("b", 0, pb.READ_WRITE),
                queue("b", 1, pb.WRITE),
                queue("a", 0, pb.READ),
                queue("a", 0, pb.READ, member=1),
                queue("c", 0, pb.NONE),
            ],
        )
    ]
    assert [
        (each.broker, len(each.read_numbers), each.write_queues if each.writable else 0)
        for each in scripted_client.route("t").queues
    ] == [("a", 1, 0), ("b", 1, 2), ("c", 0, 0)]
    assert scripted_client.queues("t") == [QueuePlace("t", "a", 0), QueuePlace("t", "b", 0)]
    # Whether the topic is there is asked of a queue that is.
    scripted_client.queues("t")
    places = [
        request.message_queue.broker.name for name, request, _ in scripted.requests if name == "QueryOffset"
    ]
    assert places == ["", "a"]
    address = scripted.requests[-1][1].endpoints.addresses[0]
    assert f"{address.host}:{address.port}" == scripted.endpoint


# -- offsets ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("shelf")
async def test_offsets_are_those_of_the_queue_and_of_the_group(gateway: Any) -> None:
    now_ms = gateway.clock.now_ms()

    def work(client: QueueClient) -> None:
        assert (client.minimums([HERE]), client.maximums([HERE])) == ({HERE: 0}, {HERE: 5})
        assert client.maximums([HERE], of_masters=True) == {HERE: 5}
        times = (0, now_ms - 2000, now_ms - 1999, now_ms + 1)
        assert [client.offsets_at({HERE: at})[HERE] for at in times] == [0, 3, 4, 5]
        assert client.committed("g", [HERE]) == {}
        client.commit("g", {HERE: 3})
        assert client.committed("g", [HERE]) == {HERE: 3}
        with pytest.raises(GatewayError, match="no queue 7"):
            client.commit("g", {HERE._replace(queue_id=7): 1, HERE: 4})
        assert client.committed("g", [HERE]) == {HERE: 4}

    await asked(gateway, work)


def test_many_queues_are_asked_about_in_lots(scripted: Scripted, scripted_client: QueueClient) -> None:
    scripted.answers["QueryOffset"] = [
        lambda request: rpc.QueryOffsetResponse(status=OK, offset=request.message_queue.id)
    ]
    queues = [QUEUE._replace(queue_id=number) for number in range(130)]
    assert scripted_client.maximums(queues) == {queue: queue.queue_id for queue in queues}
    assert scripted_client.connection.is_quiet()


def test_after_a_refusal_nothing_is_under_way(scripted: Scripted, scripted_client: QueueClient) -> None:
    scripted.answers["QueryOffset"] = [rpc.QueryOffsetResponse(status=BUSY)]
    with pytest.raises(BrokerBusy):
        scripted_client.maximums([QUEUE, QUEUE._replace(queue_id=1)])
    assert scripted_client.connection.is_quiet()


# -- reading ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("shelf")
async def test_pulled_messages_are_records_with_all_they_have(gateway: Any) -> None:
    def work(client: QueueClient) -> None:
        answer = client.pull(HERE, 1, most=3)
        assert (answer.code, answer.next_offset) == (ResponseCode.SUCCESS, 4)
        assert [(each.offset, each.queue_id, each.topic) for each in records(answer.body)] == [
            (1, 0, "t"),
            (2, 0, "t"),
            (3, 0, "t"),
        ]
        assert b"UNIQ_KEY\x01ID1\x02" in records(answer.body)[0].properties
        end = client.pull(HERE, 5, most=3)
        assert (end.code, end.next_offset, end.body) == (ResponseCode.PULL_NOT_FOUND, 5, b"")

    await asked(gateway, work)


@pytest.mark.usefixtures("shelf")
async def test_a_filter_of_the_gateway_decides_what_comes(gateway: Any) -> None:
    def work(client: QueueClient) -> None:
        assert bodies(client.pull(HERE, 0, most=9, expression="odd").body) == [b"1", b"3"]
        passing = "TAGS = 'even' AND UNIQ_KEY <> 'ID2'"
        assert bodies(client.pull(HERE, 0, most=9, expression=passing, kind="SQL92").body) == [b"0", b"4"]
        answer = client.pull(HERE, 0, most=9, expression="none")
        assert (answer.code, answer.next_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 5)
        with pytest.raises(GatewayError) as refused:
            client.pull(HERE, 0, most=9, expression="a = ", kind="SQL92")
        assert refused.value.fault is Fault.ILLEGAL_FILTER

    await asked(gateway, work)


@pytest.mark.usefixtures("shelf")
async def test_an_offset_that_is_not_there_moves_to_the_nearest(gateway: Any) -> None:
    answer = await asked(gateway, lambda client: client.pull(HERE, 99, most=3))
    assert (answer.code, answer.next_offset) == (ResponseCode.PULL_OFFSET_MOVED, 5)


@pytest.mark.usefixtures("shelf")
async def test_pulls_under_way_are_answered_each(gateway: Any) -> None:
    def work(client: QueueClient) -> list[list[bytes]]:
        numbers = [client.start_pull(HERE, offset, most=1) for offset in range(5)]
        client.connection.forget(numbers[1])
        return [bodies(client.finish_pull(numbers[n], HERE).body) for n in (4, 0, 2, 3)]

    assert await asked(gateway, work) == [[b"4"], [b"0"], [b"2"], [b"3"]]


def test_a_pull_that_is_forgotten_leaves_nothing(scripted: Scripted, scripted_client: QueueClient) -> None:
    scripted.answers["PullMessage"] = [pulled(1, [message(0)])]
    number = scripted_client.start_pull(QUEUE, 0, most=1)
    scripted_client.connection.forget(number)
    assert not [value for value in vars(scripted_client).values() if isinstance(value, dict) and value]
    with pytest.raises(GatewayError, match=f"no call {number} is under way"):
        scripted_client.finish_pull(number, QUEUE)


def test_messages_with_gaps_between_them_come_with_their_offsets(
    scripted: Scripted, scripted_client: QueueClient
) -> None:
    scripted.answers["PullMessage"] = [pulled(12, [message(3), message(9)])]
    answer = scripted_client.pull(QUEUE, 1, most=9)
    assert [each.offset for each in records(answer.body)] == [3, 9]
    assert (answer.code, answer.next_offset) == (ResponseCode.SUCCESS, 12)


@pytest.mark.parametrize(
    "elements",
    [
        pulled(None, [message(0)]),
        pulled(3, [message(0)])[1:],
        [],
        [*pulled(None, [message(0)]), grpc.StatusCode.UNAVAILABLE],
        [*pulled(1, [message(0)]), grpc.StatusCode.UNAVAILABLE],
    ],
    ids=["no end", "no status", "nothing", "broken", "broken behind its end"],
)
def test_a_stream_that_breaks_off_is_never_taken_for_a_whole_one(
    scripted: Scripted, scripted_client: QueueClient, elements: list[Any]
) -> None:
    scripted.answers["PullMessage"] = [elements]
    with pytest.raises(BrokerUnavailable):
        scripted_client.pull(QUEUE, 0, most=9)


def test_a_refused_pull_is_its_fault(scripted: Scripted, scripted_client: QueueClient) -> None:
    for code, fault in (
        (pb.TOPIC_NOT_FOUND, Fault.TOPIC_NOT_FOUND),
        (pb.CONSUMER_GROUP_NOT_FOUND, Fault.GROUP_NOT_FOUND),
        (pb.FORBIDDEN, Fault.FORBIDDEN),
    ):
        scripted.answers["PullMessage"] = [pulled(None, status=pb.Status(code=code, message="no"))]
        with pytest.raises(GatewayError) as refused:
            scripted_client.pull(QUEUE, 0, most=9)
        assert refused.value.fault is fault


def test_a_message_without_its_place_is_damage(scripted: Scripted, scripted_client: QueueClient) -> None:
    lost = message(4)
    lost.message.system_properties.ClearField("queue_offset")
    scripted.answers["PullMessage"] = [pulled(5, [lost])]
    with pytest.raises(SparkSourceError) as told:
        scripted_client.pull(QUEUE, 4, most=1)
    assert told.value.code is Code.DAMAGED
    assert "queue 0 of t on broker-a" in told.value.sentence


# -- sending ----------------------------------------------------------------------------------------


async def test_rows_are_stored_with_their_ids_and_groups_in_order(gateway: Any) -> None:
    await gateway.broker.create_topic(TopicConfig("t", read_queues=1, write_queues=1))

    def work(client: QueueClient) -> None:
        answer = client.send(HERE, rows(0, 1, 2, __SHARDINGKEY="g", color="red"))
        assert answer.message_ids == ("ID0", "ID1", "ID2")
        items = encode_batch((0, body, properties) for body, properties in rows(3, 4))
        client.finish_send(client.start_send_batch(HERE, items, once=True), HERE)
        there = records(client.pull(HERE, 0, most=9).body)
        assert [each.body for each in there] == [b"0", b"1", b"2", b"3", b"4"]
        assert b"color\x01red\x02" in there[0].properties
        assert b"__SHARDINGKEY\x01g\x02" in there[0].properties
        assert b"__SHARDINGKEY" not in there[3].properties

    await asked(gateway, work)


async def test_what_a_gateway_refuses_is_said(town: Any) -> None:
    gateway = await town.gateway(limits=Limits(max_body_bytes=3))
    await gateway.broker.create_topic(TopicConfig("t", read_queues=1, write_queues=1))
    with pytest.raises(GatewayError) as refused:
        await asked(gateway, lambda client: client.send(HERE, [*rows(1), (b"long", block(UNIQ_KEY="L"))]))
    assert refused.value.fault is BodyTooLarge(4, 3).fault
    assert await asked(gateway, lambda client: client.maximums([HERE])) == {HERE: 0}


def sent(*statuses: pb.Status, code: pb.Code = pb.OK) -> rpc.SendMessageResponse:
    entries = [
        rpc.SendResultEntry(status=status, message_id=f"ID{n}", offset=n) for n, status in enumerate(statuses)
    ]
    return rpc.SendMessageResponse(status=pb.Status(code=code), entries=entries)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        # Whoever takes the first for all would send in vain until nothing more is tried.
        (sent(OK, BUSY, TOO_LARGE, code=pb.MULTIPLE_RESULTS), GatewayError),
        (sent(BUSY, BUSY, BUSY, code=pb.TOO_MANY_REQUESTS), BrokerBusy),
        (sent(code=pb.PROXY_TIMEOUT), BrokerTimeout),
        (sent(OK, OK), Internal),
        (sent(), Internal),
        (grpc.StatusCode.UNAVAILABLE, BrokerUnavailable),
    ],
    ids=["one for good", "all", "the whole", "fewer", "none", "no answer"],
)
def test_a_send_that_is_not_stored_whole_is_a_failure(
    scripted: Scripted, scripted_client: QueueClient, answer: Any, error: type[GatewayError]
) -> None:
    scripted.answers["SendMessage"] = [answer]
    with pytest.raises(error) as failed:
        scripted_client.send(QUEUE, rows(0, 1, 2))
    if error is GatewayError:
        assert failed.value.fault is Fault.BODY_TOO_LARGE


def test_of_a_send_that_is_stored_in_part_it_is_said_what_is(
    scripted: Scripted, scripted_client: QueueClient
) -> None:
    scripted.answers["SendMessage"] = [sent(OK, BUSY, OK, code=pb.MULTIPLE_RESULTS)]
    with pytest.raises(PartlyStored) as failed:
        scripted_client.send(QUEUE, rows(0, 1, 2))
    assert (failed.value.message_ids, failed.value.fault) == ({"ID0", "ID2"}, Fault.BROKER_BUSY)
    # Of two with one id nobody knows which it is.
    with pytest.raises(BrokerBusy):
        scripted_client.send(QUEUE, rows(1, 1, 1))


def test_one_entry_for_all_is_that_of_rocketmqs_own_proxy(
    scripted: Scripted, scripted_client: QueueClient
) -> None:
    scripted.answers["SendMessage"] = [sent(OK)]
    assert scripted_client.send(QUEUE, rows(0, 1, 2)).message_ids == ("ID0",)


@pytest.mark.parametrize("group", ["", "g"])
def test_a_server_that_may_part_a_group_gets_its_messages_one_by_one(
    scripted: Scripted, scripted_client: QueueClient, group: str
) -> None:
    """As RocketMQ's own proxy, which, as this server, has no health check."""
    scripted.answers["SendMessage"] = [sent(OK)]
    scripted_client.send(QUEUE, rows(0, 1, 2, **({"__SHARDINGKEY": group} if group else {})))
    counts = [len(request.messages) for _, request, _ in scripted.requests]
    assert counts == ([1, 1, 1] if group else [3])


# -- what gRPC cannot do ----------------------------------------------------------------------------


def test_what_grpc_has_no_call_for_is_refused(scripted_client: QueueClient) -> None:
    half = HalfMessage("t", "b", 0, 0, "ID")
    report = QueryReport("q", ())
    for ask in (
        scripted_client.topics,
        lambda: scripted_client.topic_config("t"),
        lambda: scripted_client.report(report),
        lambda: scripted_client.start_send(QUEUE, rows(1), half=True),
        lambda: scripted_client.start_end(half, commit=True),
        lambda: scripted_client.finish_end(1, half),
    ):
        with pytest.raises(Unsupported, match=r"over gRPC is not supported: .*transport = remoting"):
            ask()
    # As before RocketMQ's own proxy.
    assert is_compacted(scripted_client, "t") is None


def test_a_pull_without_an_end_is_no_answer(scripted: Scripted, scripted_client: QueueClient) -> None:
    scripted.answers["PullMessage"] = [pulled(9, [message(offset) for offset in range(5, 9)])]
    assert scripted_client.pull(QUEUE, 5, most=4).next_offset == 9
    with pytest.raises(Internal, match="answered PullMessage with more than 5 elements"):
        scripted_client.pull(QUEUE, 5, most=3)


def test_a_pull_of_a_topic_that_is_gone_does_not_make_it(
    scripted: Scripted, scripted_client: QueueClient
) -> None:
    gone = rpc.QueryOffsetResponse(status=pb.Status(code=pb.TOPIC_NOT_FOUND, message="gone"))
    scripted.answers["QueryOffset"] = [gone]
    with pytest.raises(TopicNotFound):
        scripted_client.pull(QUEUE, 5, most=3)
    assert [name for name, _, _ in scripted.requests] == ["QueryOffset"]
