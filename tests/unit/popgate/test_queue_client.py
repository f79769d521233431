"""popgate.queue_client: what is said, and what answers mean, with the other end in the test's hands.

`tests/e2e/test_queue_client.py` has it before a gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from popgate.blocking import BlockingConnection
from popgate.errors import BrokerTimeout, Fault, Forbidden, GatewayError, Internal, TopicNotFound
from popgate.queue_client import PRODUCER_GROUP, HalfMessage, QueueClient, QueuePlace
from popgate.wire.bodies.configs import TopicConfig
from popgate.wire.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicRoute
from popgate.wire.bodies.small_bodies import TopicList
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import IS_RESPONSE, Command
from popgate.wire.messages.batches import decode_batch

Script = Callable[[int, Mapping[str, str]], Command]
QUEUE = QueuePlace("orders", "broker-a", 1)


class Scripted:
    """In the place of a connection: answers are made by the test, and what was asked is kept."""

    endpoint, timeout_s = "far:1", 9.0

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[tuple[int, Mapping[str, str], bytes]] = []
        self.under_way: set[int] = set()
        self.most_under_way = 0

    def start(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> int:
        self.asked.append((code, fields, body))
        self.under_way.add(len(self.asked) - 1)
        self.most_under_way = max(self.most_under_way, len(self.under_way))
        return len(self.asked) - 1

    def finish(self, opaque: int, *, timeout_s: float | None = None) -> Command:
        code, fields, _ = self.asked[opaque]
        answer = self.script(code, fields)
        self.under_way.discard(opaque)
        return answer

    def call(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> Command:
        return self.finish(self.start(code, fields, body))

    def forget(self, opaque: int) -> None:
        self.under_way.discard(opaque)


def answer(code: int = ResponseCode.SUCCESS, body: bytes = b"", remark: str = "", **fields: Any) -> Command:
    told = {name: str(value) for name, value in fields.items()}
    return Command(code, 0, IS_RESPONSE, told, body, remark)


def client_of(script: Script) -> tuple[QueueClient, Scripted]:
    connection = Scripted(script)
    return QueueClient(cast("BlockingConnection", connection)), connection


def test_queues_are_those_that_can_be_read_in_order() -> None:
    route = TopicRoute(
        (QueueData("broker-b", 1, 1), QueueData("broker-a", 2, 1), QueueData("broker-c", 4, 4, perm=2)),
        (BrokerData("c", "broker-a", {0: "far:1"}),),
    )
    client, connection = client_of(lambda *_: answer(body=route.encode()))

    assert client.queues("orders") == [("orders", "broker-a", 0), QUEUE, ("orders", "broker-b", 0)]
    code, fields, _ = connection.asked[0]
    assert (code, fields["topic"]) == (RequestCode.GET_ROUTEINFO_BY_TOPIC, "orders")


def test_a_route_that_is_none_is_no_answer() -> None:
    client, _ = client_of(lambda *_: answer(body=b"{"))
    with pytest.raises(Internal, match="far:1 answered with no route"):
        client.route("orders")


def test_an_unknown_topic_is_told_by_its_name() -> None:
    client, _ = client_of(lambda *_: answer(ResponseCode.TOPIC_NOT_EXIST, remark="no"))
    for ask in (lambda: client.route("orders"), lambda: client.maximums([QUEUE])):
        with pytest.raises(TopicNotFound, match="topic orders does not exist"):
            ask()


def test_topics_are_those_of_users() -> None:
    told = ("orders", "TBW102", "%RETRY%g", "%DLQ%g", "DefaultCluster", "broker-a", "bills", "rmq_sys_x")
    cluster = ClusterInfo(
        {"broker-a": BrokerData("DefaultCluster", "broker-a", {0: "far:1"})},
        {"DefaultCluster": ("broker-a",)},
    )
    bodies = {
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: TopicList(told).encode(),
        RequestCode.GET_BROKER_CLUSTER_INFO: cluster.encode(),
    }
    client, connection = client_of(lambda code, _: answer(body=bodies[RequestCode(code)]))
    assert client.topics() == ["bills", "orders"]
    assert connection.most_under_way == 2


def test_topics_that_are_none_or_refused_are_told_so() -> None:
    client, _ = client_of(lambda *_: answer(body=b"["))
    with pytest.raises(Internal, match="far:1 answered with no topics"):
        client.topics()
    client, _ = client_of(lambda *_: answer(ResponseCode.NO_PERMISSION))
    with pytest.raises(Forbidden):
        client.topics()


def test_offsets_of_many_queues_are_asked_for_at_once_and_not_all_of_them() -> None:
    queues = [QueuePlace("orders", "broker-a", number) for number in range(150)]
    client, connection = client_of(lambda _code, fields: answer(offset=fields["queueId"] + "0"))

    assert client.maximums(queues) == {queue: queue.queue_id * 10 for queue in queues}
    assert connection.most_under_way == 64
    assert {fields["bname"] for _, fields, _ in connection.asked} == {"broker-a"}


def test_ends_can_be_asked_of_masters_alone() -> None:
    client, connection = client_of(lambda _code, _fields: answer(offset="7"))
    for of_masters in (False, True):
        assert client.maximums([QUEUE], of_masters=of_masters) == {QUEUE: 7}
    assert [fields.get("ofMaster") for _, fields, _ in connection.asked] == [None, "true"]


def test_after_a_failure_nothing_is_waited_for() -> None:
    def fail(_code: int, fields: Mapping[str, str]) -> Command:
        if fields["queueId"] == "1":
            raise BrokerTimeout("too late")
        return answer(offset=1)

    client, connection = client_of(fail)
    with pytest.raises(BrokerTimeout):
        client.minimums([QueuePlace("orders", "broker-a", number) for number in range(9)])
    assert connection.under_way == set()


def test_times_are_asked_for_in_milliseconds() -> None:
    client, connection = client_of(lambda *_: answer(offset=7))
    assert client.offsets_at({QUEUE: 1_700_000_000_123}) == {QUEUE: 7}
    code, fields, _ = connection.asked[0]
    assert (code, fields["timestamp"]) == (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, "1700000000123")


def test_where_a_group_never_was_there_is_no_position() -> None:
    other = QUEUE._replace(queue_id=2)

    def script(_code: int, fields: Mapping[str, str]) -> Command:
        assert fields["setZeroIfNotFound"] == "false"
        return answer(offset=5) if fields["queueId"] == "1" else answer(ResponseCode.QUERY_NOT_FOUND)

    client, _ = client_of(script)
    assert client.committed("readers", [QUEUE, other]) == {QUEUE: 5}


def test_a_position_that_is_refused_keeps_no_other_back() -> None:
    def script(_code: int, fields: Mapping[str, str]) -> Command:
        return answer(ResponseCode.NO_PERMISSION if fields["queueId"] == "0" else ResponseCode.SUCCESS)

    client, connection = client_of(script)
    with pytest.raises(Forbidden):
        client.commit("readers", {QUEUE._replace(queue_id=0): 3, QUEUE: 4})
    assert [(fields["queueId"], fields["commitOffset"]) for _, fields, _ in connection.asked] == [
        ("0", "3"),
        ("1", "4"),
    ]


@pytest.mark.parametrize(
    "code",
    [ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED],
)
def test_a_pull_that_brings_nothing_says_where_to_go_on(code: int) -> None:
    client, _ = client_of(lambda *_: answer(code, nextBeginOffset=12, minOffset=3, maxOffset=20))
    pulled = client.pull(QUEUE, 9, most=32)
    assert (pulled.code, pulled.next_offset, pulled.body) == (code, 12, b"")
    assert (pulled.bounds.minimum, pulled.bounds.maximum) == (3, 20)


def test_a_pull_says_what_it_wants() -> None:
    client, connection = client_of(lambda *_: answer(nextBeginOffset=2, minOffset=0, maxOffset=2, body=b"xy"))
    assert client.pull(QUEUE, 1, most=8, expression="a > 1", kind="SQL92").body == b"xy"
    code, fields, _ = connection.asked[0]
    assert code == RequestCode.PULL_MESSAGE
    wanted = {"queueOffset": "1", "maxMsgNums": "8", "expressionType": "SQL92", "subscription": "a > 1"}
    assert wanted.items() <= fields.items()


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (ResponseCode.NO_PERMISSION, Fault.FORBIDDEN),
        (ResponseCode.SUBSCRIPTION_PARSE_FAILED, Fault.ILLEGAL_FILTER),
        (ResponseCode.SYSTEM_BUSY, Fault.BROKER_BUSY),
        (12_345, Fault.INTERNAL),
    ],
)
def test_a_refused_pull_has_a_stable_code(code: int, fault: Fault) -> None:
    client, _ = client_of(lambda *_: answer(code, remark="why not"))
    with pytest.raises(GatewayError, match=r"far:1 answered .*why not") as refused:
        client.pull(QUEUE, 0, most=1)
    assert refused.value.fault is fault


@pytest.mark.parametrize("told", ["", "x", "²", "1_0", "9" * 40, "-"])
def test_an_offset_that_is_no_number_is_no_answer(told: str) -> None:
    client, _ = client_of(lambda *_: answer(offset=told))
    with pytest.raises(Internal, match="which is no number"):
        client.maximums([QUEUE])


def test_one_message_goes_alone_and_several_as_a_batch() -> None:
    client, connection = client_of(lambda *_: answer(msgId="A,B", queueId=1, queueOffset=40))
    messages = [(b"one", b"TAGS\x01a\x02"), (b"two", b"")]

    assert client.send(QUEUE, messages[:1]).offset == 40
    assert client.send(QUEUE, messages).message_ids == ("A", "B")

    (alone, fields, body), (batch, batch_fields, batch_body) = connection.asked
    assert (alone, fields["i"], fields["m"], body) == (310, "TAGS\x01a\x02", "false", b"one")
    assert (batch, batch_fields["m"], batch_fields["n"]) == (320, "true", "broker-a")
    assert batch_fields["firstId"] == "true"
    assert [(each.body, each.properties) for each in decode_batch(batch_body)] == messages


@pytest.mark.parametrize("code", [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE])
def test_what_is_stored_and_not_safe_is_not_told_as_sent(code: int) -> None:
    client, _ = client_of(lambda *_: answer(code, queueId=1, queueOffset=1))
    with pytest.raises(BrokerTimeout):
        client.send(QUEUE, [(b"one", b"")])


def test_a_topic_tells_its_attributes() -> None:
    told = TopicConfig("orders", attributes={"cleanup.policy": "COMPACTION"})
    client, connection = client_of(lambda *_: answer(body=told.encode()))
    assert client.topic_config("orders").attributes == {"cleanup.policy": "COMPACTION"}
    assert connection.asked[0][:2] == (RequestCode.GET_TOPIC_CONFIG, {"topic": "orders"})
    client, _ = client_of(lambda *_: answer(body=b"["))
    with pytest.raises(Internal, match="far:1 answered with no topic"):
        client.topic_config("orders")
    client, _ = client_of(lambda *_: answer(ResponseCode.TOPIC_NOT_EXIST))
    with pytest.raises(TopicNotFound):
        client.topic_config("orders")


@pytest.mark.parametrize(("commit", "word"), [(True, "8"), (False, "12")])
def test_a_half_message_is_sent_as_one_and_ended_by_its_place(commit: bool, word: str) -> None:
    client, connection = client_of(lambda *_: answer())
    client.start_send(QUEUE, [(b"x", b"TRAN_MSG\x01true\x02")], half=True)
    client.start_send(QUEUE, [(b"x", b"")])
    with pytest.raises(ValueError, match="a half message is sent alone, not 2 together"):
        client.start_send(QUEUE, [(b"x", b"TRAN_MSG\x01true\x02")] * 2, half=True)
    assert [fields["f"] for _, fields, _ in connection.asked] == ["4", "0"]
    half = HalfMessage("orders", "broker-a", 7, 99, "ID")
    client.finish_end(client.start_end(half, commit=commit), half)
    code, fields, _ = connection.asked[-1]
    assert code == RequestCode.END_TRANSACTION
    assert fields["producerGroup"] == PRODUCER_GROUP
    assert (fields["bname"], fields["tranStateTableOffset"], fields["commitLogOffset"]) == (
        "broker-a",
        "7",
        "99",
    )
    assert (fields["msgId"], fields["commitOrRollback"]) == ("ID", word)
    client, _ = client_of(lambda *_: answer(ResponseCode.NO_PERMISSION))
    with pytest.raises(Forbidden):
        client.finish_end(client.start_end(half, commit=commit), half)
