"""What Go's ordered consumer is sent; a raw client names itself so.

Go's consumer of a message that failed tries it again later by itself, and does not wait for that before it
takes the next message of the same answer (seen: 0 1 2 1 3). Order holds only if no answer has two messages
of one message group.
"""

from __future__ import annotations

import itertools
import re
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from popgate.ids.message_id import make_message_id
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.testing.gateway import GatewayProcess
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(1800)]

SERVICE = "/apache.rocketmq.v2.MessagingService/"
DEADLINE_S = 20.0
"""Shorter than the poll. An empty answer comes a fifth of it before: a busy machine may need that."""
GROUPS = "abcd"


class Raw:
    """Sends requests under the headers of a language."""

    def __init__(self, channel: grpc.Channel, language: str) -> None:
        self._channel = channel
        self._metadata = (
            ("x-mq-language", language),
            ("x-mq-protocol", "v2"),
            ("x-mq-client-version", "5.1.4"),
            ("x-mq-client-id", f"{language}-client"),
        )

    def call(self, name: str, request: Any) -> Any:
        method = self._channel.unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(rpc, f"{name}Response").FromString,
        )
        answer = method(request, metadata=self._metadata, timeout=PATIENCE_S)
        assert answer.status.code == pb.Code.OK, answer
        return answer

    def send(self, topic: str, body: str, message_group: str) -> None:
        message = pb.Message(
            topic=pb.Resource(name=topic),
            body=body.encode(),
            system_properties=pb.SystemProperties(message_id=make_message_id(), message_group=message_group),
        )
        self.call("SendMessage", rpc.SendMessageRequest(messages=[message]))

    def frames(self, topic: str, group: str, *, wait_s: int = 1, invisible_s: int = 600) -> list[Any]:
        """The elements of one receive."""
        request = rpc.ReceiveMessageRequest(
            group=pb.Resource(name=group),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), id=-1),
            filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
            batch_size=32,
            invisible_duration=Duration(seconds=invisible_s),
            long_polling_timeout=Duration(seconds=wait_s),
        )
        method = self._channel.unary_stream(
            f"{SERVICE}ReceiveMessage",
            request_serializer=type(request).SerializeToString,
            response_deserializer=rpc.ReceiveMessageResponse.FromString,
        )
        return list(method(request, metadata=self._metadata, timeout=PATIENCE_S))

    def receive(self, topic: str, group: str) -> list[pb.Message]:
        frames = self.frames(topic, group)
        return [frame.message for frame in frames if frame.WhichOneof("content") == "message"]

    def ack(self, group: str, message: pb.Message) -> None:
        entry = rpc.AckMessageEntry(receipt_handle=message.system_properties.receipt_handle)
        request = rpc.AckMessageRequest(topic=message.topic, group=pb.Resource(name=group), entries=[entry])
        self.call("AckMessage", request)


@pytest.fixture(scope="module", params=["embedded", "cluster"])
def gateway(request: pytest.FixtureRequest, before: Any) -> Iterator[GatewayProcess]:
    with before(request.param, "limits.poll_margin_s=5") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def channel(gateway: GatewayProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(gateway.endpoint) as channel:
        yield channel


@pytest.fixture
def ordered(
    channel: grpc.Channel, admin: Any, gateway: GatewayProcess, request: pytest.FixtureRequest
) -> str:
    """A topic with 8 messages of each of 4 message groups, and an ordered group of the same name."""
    name = re.sub(r"\W+", "-", request.node.name) + uuid.uuid4().hex[:6]
    admin(gateway.admin, "/api/topics", {"name": name, "types": ["FIFO"]})
    admin(gateway.admin, "/api/groups", {"name": name, "ordered": True})
    sender = Raw(channel, "JAVA")
    for number, message_group in itertools.product(range(8), GROUPS):
        sender.send(name, f"{message_group}{number}", message_group)
    return name


def lanes(messages: list[pb.Message]) -> Counter[str]:
    return Counter(message.system_properties.message_group for message in messages)


def test_others_get_many_messages_of_one_message_group_in_an_answer(
    channel: grpc.Channel, ordered: str
) -> None:
    """What the next test rests on: that what it looks for would be seen."""
    java, most = Raw(channel, "JAVA"), 0
    deadline = time.monotonic() + PATIENCE_S
    while most < 2 and time.monotonic() < deadline:  # a busy broker may have only one ready at first
        messages = java.receive(ordered, ordered)
        most = max(lanes(messages).values(), default=0)
        for message in messages:
            java.ack(ordered, message)
    assert most > 1


@pytest.mark.parametrize("language", ["GO", "GOLANG"])
def test_no_answer_to_go_has_two_messages_of_one_message_group(
    channel: grpc.Channel, ordered: str, language: str
) -> None:
    """The consumer does what Go's does: a message that fails is tried again after the rest of its answer."""
    go = Raw(channel, language)
    consumed: dict[str, list[str]] = defaultdict(list)
    failing = {"a2", "c0", "d7"}
    deadline = time.monotonic() + PATIENCE_S
    while sum(map(len, consumed.values())) < 32 and time.monotonic() < deadline:
        messages = go.receive(ordered, ordered)
        assert not [lane for lane, count in lanes(messages).items() if count > 1], "two of one message group"
        again = [message for message in messages if message.body.decode() in failing]
        for message in [message for message in messages if message not in again] + again:
            consumed[message.system_properties.message_group].append(message.body.decode())
            go.ack(ordered, message)
    assert consumed == {lane: [f"{lane}{n}" for n in range(8)] for lane in GROUPS}


def test_an_empty_receive_is_message_not_found(channel: grpc.Channel, ordered: str) -> None:
    """Go shows it to its user as an error, which examples look for by this code."""
    go = Raw(channel, "GO")
    empty = f"{ordered}-empty"
    frames = go.frames(empty, empty)
    assert [frame.WhichOneof("content") for frame in frames] == ["status", "delivery_timestamp"]
    assert frames[0].status.code == pb.Code.MESSAGE_NOT_FOUND


def test_a_topic_that_takes_everything_says_so(
    channel: grpc.Channel, admin: Any, gateway: GatewayProcess, request: pytest.FixtureRequest
) -> None:
    """Go, Python and Java refuse by themselves to send what the route does not name: a priority message."""
    go, topic = Raw(channel, "GO"), f"every-type-{uuid.uuid4().hex[:6]}"
    admin(gateway.admin, "/api/topics", {"name": topic})
    host, _, port = gateway.endpoint.rpartition(":")
    dialled = pb.Endpoints(scheme=pb.AddressScheme.IPv4, addresses=[pb.Address(host=host, port=int(port))])
    route = go.call("QueryRoute", rpc.QueryRouteRequest(topic=pb.Resource(name=topic), endpoints=dialled))
    there = request.node.callspec.params["gateway"]
    # Lite topics are the embedded broker's alone.
    left_out = {"embedded": set(), "cluster": {pb.LITE}}[there] | {pb.MESSAGE_TYPE_UNSPECIFIED}
    for queue in route.message_queues:
        assert set(queue.accept_message_types) == set(pb.MessageType.values()) - left_out
    system = pb.SystemProperties(
        message_id=make_message_id(), message_type=pb.MessageType.PRIORITY, priority=3
    )
    message = pb.Message(topic=pb.Resource(name=topic), body=b"urgent", system_properties=system)
    go.call("SendMessage", rpc.SendMessageRequest(messages=[message]))


VERSIONS = ("5.0.0", "5.2.0")


@pytest.fixture(scope="module")
def short(channel: grpc.Channel, gateway: GatewayProcess, admin: Any) -> dict[str, Any]:
    """Receives with a deadline shorter than their poll, by the version of their client, all under way."""
    calls = {}
    for version in VERSIONS:
        name = f"short-{version.replace('.', '-')}-{uuid.uuid4().hex[:6]}"
        # That something is made at first use does not count into the deadline.
        admin(gateway.admin, "/api/topics", {"name": name, "types": ["NORMAL"]})
        admin(gateway.admin, "/api/groups", {"name": name})
        request = rpc.ReceiveMessageRequest(
            group=pb.Resource(name=name),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=name), id=-1),
            filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
            batch_size=32,
            invisible_duration=Duration(seconds=60),
            long_polling_timeout=Duration(seconds=30),
        )
        method = channel.unary_stream(
            f"{SERVICE}ReceiveMessage",
            request_serializer=type(request).SerializeToString,
            response_deserializer=rpc.ReceiveMessageResponse.FromString,
        )
        headers = (("x-mq-language", "JAVA"), ("x-mq-client-version", version), ("x-mq-client-id", version))
        calls[version] = method(request, metadata=headers, timeout=DEADLINE_S)
    return calls


@pytest.mark.parametrize("version", VERSIONS)
def test_a_deadline_shorter_than_the_poll_is_an_empty_answer_in_time(
    short: dict[str, Any], version: str
) -> None:
    """RocketMQ's proxy refuses it: new versions with ILLEGAL_POLLING_TIME, older ones with BAD_REQUEST."""
    statuses = [frame.status.code for frame in short[version] if frame.WhichOneof("content") == "status"]
    assert statuses == [pb.Code.MESSAGE_NOT_FOUND]
