"""Every kind of bad input that clients can give: its code, and a sentence with the cause and the limit."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from popgate.model import MessageType, TopicConfig
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.pb.timestamp_pb2 import Timestamp
from processors.limits import Limits

Code = pb.Code
MIB_4 = 4 * 1024 * 1024


async def status_of_send(client: Any, **fields: Any) -> pb.Status:
    answer: rpc.SendMessageResponse = await client.send(client.message(**fields))
    return answer.status


async def status_of_receive(client: Any, **fields: Any) -> pb.Status:
    frames: list[rpc.ReceiveMessageResponse] = await client.frames(**fields)
    return next(frame.status for frame in frames if frame.HasField("status"))


@pytest.mark.parametrize(
    ("fields", "code", "sentence"),
    [
        ({"topic": "a b"}, Code.ILLEGAL_TOPIC, r"illegal topic name 'a b': only letters, digits and"),
        ({"topic": "t" * 128}, Code.ILLEGAL_TOPIC, r"illegal topic name .* 127"),
        ({"topic": ""}, Code.ILLEGAL_TOPIC, r"illegal topic name '': .*blank"),
        ({"body": b""}, Code.MESSAGE_BODY_EMPTY, r"body is empty, it needs at least 1 byte"),
        (
            {"body": bytes(MIB_4 + 1)},
            Code.MESSAGE_BODY_TOO_LARGE,
            r"the message body has 4194305 bytes, the limit is 4194304",
        ),
        (
            {"properties": {f"k{n}": "v" for n in range(129)}},
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            r"129 user properties, the limit is 128",
        ),
        (
            {"properties": {"k": "v" * 16_384}},
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            r"16385 bytes of user properties, tag and keys together, the limit is 16384",
        ),
        (
            {"keys": ["a\x7f"]},
            Code.ILLEGAL_MESSAGE_KEY,
            r"the message key 'a\\x7f' holds a control character",
        ),
        ({"keys": [" "]}, Code.ILLEGAL_MESSAGE_KEY, r"a message key must not be blank"),
        ({"tag": "a|b"}, Code.ILLEGAL_MESSAGE_TAG, r"the message tag 'a\|b' holds the character \|"),
        ({"tag": " "}, Code.ILLEGAL_MESSAGE_TAG, r"the message tag must not be blank"),
        (
            {"message_group": "g" * 64},
            Code.ILLEGAL_MESSAGE_GROUP,
            r"the message group has 64 bytes, the limit is 63",
        ),
        (
            {"message_group": "é" * 32},
            Code.ILLEGAL_MESSAGE_GROUP,
            r"the message group has 64 bytes, the limit is 63",
        ),
        (
            {"delivery_timestamp": Timestamp(seconds=253_402_300_799)},
            Code.ILLEGAL_DELIVERY_TIME,
            r"the delivery time is \d+ ms ahead, the longest delay is 86400000 ms \(86400 s\)",
        ),
        ({"message_id": ""}, Code.ILLEGAL_MESSAGE_ID, r"the message id must not be blank"),
        ({"message_id": "m" * 256}, Code.ILLEGAL_MESSAGE_ID, r"256 bytes, the limit is 255"),
        (
            {
                "message_type": pb.TRANSACTION,
                "orphaned_transaction_recovery_duration": Duration(seconds=3_601),
            },
            Code.BAD_REQUEST,
            r"the transaction recovery time is 3601 s, the limit is 3600 s",
        ),
    ],
)
async def test_a_bad_message(client: Any, fields: dict[str, Any], code: int, sentence: str) -> None:
    status = await status_of_send(client, **fields)
    assert (status.code, bool(re.search(sentence, status.message))) == (code, True), status


@pytest.mark.parametrize(
    ("fields", "code", "sentence"),
    [
        ({"topic": "a b"}, Code.ILLEGAL_TOPIC, r"illegal topic name 'a b': only letters"),
        ({"group": "a b"}, Code.ILLEGAL_CONSUMER_GROUP, r"illegal consumer group name 'a b': only letters"),
        ({"group": "g" * 121}, Code.ILLEGAL_CONSUMER_GROUP, r"illegal consumer group name .* 120"),
        ({"group": ""}, Code.ILLEGAL_CONSUMER_GROUP, r"blank"),
        ({"expression": "||"}, Code.ILLEGAL_FILTER_EXPRESSION, r"expression '\|\|': it names no tag"),
        (
            {"filter": pb.FilterType.SQL, "expression": "a = "},
            Code.ILLEGAL_FILTER_EXPRESSION,
            r"illegal filter expression 'a = ': .* at character \d+",
        ),
        (
            {"expression": "a" * 1_000_000},
            Code.ILLEGAL_FILTER_EXPRESSION,
            r"has 1000000 characters, the limit is",
        ),
        (
            {"invisible_duration": Duration(seconds=9)},
            Code.ILLEGAL_INVISIBLE_TIME,
            r"the invisible time is 9000 ms, it must be at least 10000 ms and at most 43200000 ms",
        ),
        (
            {"invisible_duration": Duration(seconds=43_201)},
            Code.ILLEGAL_INVISIBLE_TIME,
            r"the invisible time is 43201000 ms, .* at most 43200000 ms",
        ),
        ({"wait_ms": -5}, Code.ILLEGAL_POLLING_TIME, r"the long polling time is -0.005 s, .* at least 0 s"),
    ],
)
async def test_a_bad_receive(client: Any, fields: dict[str, Any], code: int, sentence: str) -> None:
    status = await status_of_receive(client, **fields)
    assert (status.code, bool(re.search(sentence, status.message))) == (code, True), status


async def test_a_topic_and_a_group_that_are_not_there_and_are_not_made(town: Any) -> None:
    gateway = await town.gateway(limits=Limits(auto_create_topics=False, auto_create_groups=False))
    client = town.client(gateway)
    for status in (await status_of_send(client), (await client.route()).status):
        assert (status.code, status.message) == (
            Code.TOPIC_NOT_FOUND,
            "No topic route info in name server for the topic: t: topic t does not exist",
        )
    status = await status_of_receive(client)
    assert (status.code, status.message) == (
        Code.CONSUMER_GROUP_NOT_FOUND,
        "consumer group g does not exist",
    )


async def test_a_message_of_another_type_than_its_topic_takes(client: Any, gateway: Any) -> None:
    await gateway.broker.create_topic(TopicConfig("fifo", message_types=(MessageType.FIFO,)))
    status = await status_of_send(client, topic="fifo")
    assert status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert status.message == (
        "TopicMessageType validate failed, the expected type is FIFO, but actual type is NORMAL:"
        " topic fifo takes FIFO messages, this one is NORMAL"
    )


@pytest.mark.parametrize(
    "kind",
    [
        rpc.QueryRouteRequest,
        rpc.QueryAssignmentRequest,
        rpc.UpdateOffsetRequest,
        rpc.GetOffsetRequest,
        rpc.QueryOffsetRequest,
    ],
)
async def test_addresses_have_a_bound(client: Any, kind: Any) -> None:
    """Requests are kept as protobuf read them while they wait: an empty one takes 24 times its two bytes."""
    request = kind()
    queue = "message_queue" in kind.DESCRIPTOR.fields_by_name
    endpoints = request.message_queue.broker.endpoints if queue else request.endpoints
    endpoints.addresses.extend([pb.Address()] * 1025)
    status = (await client.call(kind.__name__.removesuffix("Request"), request)).status
    assert (status.code, status.message) == (
        Code.ILLEGAL_ACCESS_POINT,
        "the endpoints have 1025 addresses, the limit is 1024",
    )


async def test_settings_have_a_bound_of_addresses(client: Any) -> None:
    settings = client.producing()
    settings.access_point.addresses.extend([pb.Address()] * 1025)
    stream = client.telemetry()
    await stream.write(rpc.TelemetryCommand(settings=settings))
    assert (await stream.read()).status.code == Code.ILLEGAL_ACCESS_POINT


async def test_what_is_echoed_for_every_queue_and_message_has_a_bound(client: Any) -> None:
    await client.send_one()
    topic = pb.Resource(name="t", resource_namespace="n" * 256)
    group = pb.Resource(name="g")
    receive = client.receive_request()
    receive.message_queue.topic.CopyFrom(topic)
    pull = client.channel.unary_stream(
        "/apache.rocketmq.v2.MessagingService/PullMessage",
        request_serializer=rpc.PullMessageRequest.SerializeToString,
        response_deserializer=rpc.PullMessageResponse.FromString,
    )
    pulled = pull(
        rpc.PullMessageRequest(group=group, message_queue=pb.MessageQueue(topic=topic)),
        metadata=client.metadata,
        timeout=60,
    )
    for status in (
        (await client.call("QueryRoute", rpc.QueryRouteRequest(topic=topic))).status,
        (await client.call("QueryAssignment", rpc.QueryAssignmentRequest(topic=topic, group=group))).status,
        (await client.stream(receive).read()).status,
        (await pulled.read()).status,
    ):
        assert status.code == Code.ILLEGAL_TOPIC
        assert "its namespace has 256 characters, the limit is 255" in status.message
    # Fields of a newer version are not known here, and go no further.
    newer = rpc.QueryRouteRequest.FromString(
        rpc.QueryRouteRequest(topic=pb.Resource(name="t")).SerializeToString()
        + b"\x0a\x06\x1a\x04long"
        + b"\x12\x0e\x12\x0c\x0a\x01h\x10\x01\x1a\x05"
        + b"longe"
    )
    route = await client.call("QueryRoute", newer)
    assert route.status.code == Code.OK
    assert b"long" not in route.SerializeToString()


async def test_a_batch_that_mixes_topics(client: Any) -> None:
    answer = await client.send(client.message("t"), client.message("u"))
    assert answer.status.code == Code.MESSAGE_CORRUPTED
    assert answer.status.message == (
        "topic in message is not same: the messages of one send go to one topic, these go to 't' and 'u'"
    )
    assert not answer.entries


Asking = Callable[[Any, str], Awaitable[pb.Status]]


async def ack(client: Any, handle: str) -> pb.Status:
    answer: rpc.AckMessageResponse = await client.ack(handle)
    assert answer.status.code == answer.entries[0].status.code
    return answer.entries[0].status


async def change(client: Any, handle: str) -> pb.Status:
    answer: rpc.ChangeInvisibleDurationResponse = await client.change(handle, 20)
    return answer.status


async def bury(client: Any, handle: str) -> pb.Status:
    request = rpc.ForwardMessageToDeadLetterQueueRequest(
        receipt_handle=handle, topic=pb.Resource(name="t"), group=pb.Resource(name="g")
    )
    answer: rpc.ForwardMessageToDeadLetterQueueResponse = await client.call(
        "ForwardMessageToDeadLetterQueue", request
    )
    return answer.status


@pytest.mark.parametrize("ask", [ack, change, bury])
async def test_a_handle_that_is_none_and_one_whose_time_is_over(
    client: Any, gateway: Any, ask: Asking
) -> None:
    await client.send_one()
    (message,) = await client.receive()
    for handle, sentence in (
        ("", "must not be blank|invalid receipt handle '': "),
        ("x", "invalid receipt handle 'x': it has 1 fields, not 8 or 9"),
        ("1 2 3 4 5 6 7 x", "invalid receipt handle .*decimal"),
        ("9 9 9 9 9 elsewhere 9 9 9", "invalid receipt handle .*elsewhere"),
        ("x" * 100_000, "invalid receipt handle 'x{80}…'"),
    ):
        status = await ask(client, handle)
        assert status.code == Code.INVALID_RECEIPT_HANDLE, status
        assert re.search(sentence, status.message), status
    await gateway.pass_s(31)
    status = await ask(client, message.system_properties.receipt_handle)
    assert status.code == Code.INVALID_RECEIPT_HANDLE
    assert "its invisible time is over" in status.message


async def test_a_change_outside_the_limits(client: Any) -> None:
    await client.send_one()
    (message,) = await client.receive()
    status = (await client.change(message.system_properties.receipt_handle, 43_201)).status
    assert status.code == Code.ILLEGAL_INVISIBLE_TIME
    assert status.message == (
        "the invisibleTime is too large. max is 43200000:"
        " the invisible time is 43201000 ms, it must be at least 0 ms and at most 43200000 ms"
    )


async def test_a_client_without_an_id(town: Any, gateway: Any) -> None:
    for client_id in ("", "  "):
        client = town.client(gateway, client_id=client_id)
        for status in (
            await status_of_send(client),
            await status_of_receive(client),
            (await client.route()).status,
            (await client.ack("x")).status,
        ):
            assert status.code == Code.CLIENT_ID_REQUIRED
            assert "x-mq-client-id is missing or blank" in status.message
        command = await client.telemetry().read()
        assert command.status.code == Code.CLIENT_ID_REQUIRED


@pytest.mark.parametrize(
    ("timeout", "longest_s", "waited_s"), [(None, 300.0, 0.3), (60.0, 0.5, 0.5), (60.0, 300.0, 59.9)]
)
async def test_an_empty_poll_is_a_normal_answer_before_the_deadline_whatever_that_is(
    town: Any, timeout: float | None, longest_s: float, waited_s: float
) -> None:
    # Without a deadline after `default_wait_s`, else a margin before it. The gateway's time is moved by
    # hand, the client's deadline is of this machine's: both begin together. gRPC's library sends a time of
    # a minute in steps of 0.1 s, rounded up: 60.1 s where a millisecond more is left than was asked for.
    gateway = await town.gateway(limits=Limits(default_wait_s=0.3, max_wait_s=longest_s))
    client = town.client(gateway)
    polling = asyncio.ensure_future(client.frames(wait_ms=None, timeout=timeout))
    await town.until(lambda: gateway.processor.figures()["waiting_receives"])
    await gateway.pass_s(0.25)
    assert gateway.processor.figures()["waiting_receives"] == 1
    await gateway.pass_s(waited_s - 0.25)
    frames = await polling
    assert frames[0].status.code == Code.MESSAGE_NOT_FOUND
    assert frames[-1].HasField("delivery_timestamp")
