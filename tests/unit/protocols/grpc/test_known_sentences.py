"""RocketMQ's fixed words for each failure are in ours: users and test suites search for them.

The table is what the Java proxy 5.3 and 5.5 answer (GrpcValidator, SendMessageActivity, RouteActivity,
ReceiveMessageActivity, ClientActivity, EndTransactionActivity, Validators, RecallMessageHandle). Not in it is
what that proxy answers to what is served here: "The deadline time remaining is not enough for polling" (a
short poll waits as long as asked), "ack message result is empty", "flow limit" of its own queues of threads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from popgate.errors import TooManyRequests
from popgate.model import GroupConfig, MessageType, Permission, TopicConfig
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.pb.timestamp_pb2 import Timestamp
from processors.limits import Limits

Code = pb.Code
HOURS_12_MS = 43_200_000
Case = Callable[[Any, Any], Awaitable[pb.Status]]


def sent(topic: str = "t", body: bytes = b"x", **system: Any) -> Case:
    async def status(client: Any, _gateway: Any) -> pb.Status:
        return (await client.send(client.message(topic, body, **system))).status

    return status


def received(topic: str = "t", **fields: Any) -> Case:
    async def status(client: Any, _gateway: Any) -> pb.Status:
        frames = await client.frames(topic, **fields)
        return next(frame.status for frame in frames if frame.HasField("status"))

    return status


async def sent_nothing(client: Any, _gateway: Any) -> pb.Status:
    return (await client.send()).status


async def sent_to_two(client: Any, _gateway: Any) -> pb.Status:
    return (await client.send(client.message("t"), client.message("u"))).status


async def sent_far_ahead(client: Any, gateway: Any) -> pb.Status:
    ahead = Timestamp(seconds=gateway.clock.now_ms() // 1000 + 86_401)
    return await sent(delivery_timestamp=ahead)(client, gateway)


async def sent_to_a_typed_topic(client: Any, gateway: Any) -> pb.Status:
    await gateway.broker.create_topic(TopicConfig("typed", (MessageType.FIFO,)))
    return await sent("typed")(client, gateway)


async def sent_where_nothing_is_written(client: Any, gateway: Any) -> pb.Status:
    await gateway.broker.create_topic(TopicConfig("frozen", permission=Permission.READ))
    return await sent("frozen")(client, gateway)


async def received_where_nothing_is_read(client: Any, gateway: Any) -> pb.Status:
    await gateway.broker.create_topic(TopicConfig("closed", permission=Permission.WRITE))
    return await received("closed")(client, gateway)


async def assigned_where_nothing_is_read(client: Any, gateway: Any) -> pb.Status:
    await gateway.broker.create_topic(TopicConfig("shut", permission=Permission.WRITE))
    request = rpc.QueryAssignmentRequest(
        topic=pb.Resource(name="shut"), group=pb.Resource(name="g"), endpoints=client.endpoints
    )
    return (await client.call("QueryAssignment", request)).status


async def held(client: Any) -> str:
    await client.send_one()
    (message,) = await client.receive()
    return str(message.system_properties.receipt_handle)


async def acknowledged_late(client: Any, gateway: Any) -> pb.Status:
    handle = await held(client)
    await gateway.pass_s(31)
    return (await client.ack(handle)).status


async def changed_late(client: Any, gateway: Any) -> pb.Status:
    handle = await held(client)
    await gateway.pass_s(31)
    return (await client.change(handle, 5)).status


async def acknowledged_elsewhere(client: Any, _gateway: Any) -> pb.Status:
    parts = (await held(client)).split(" ")
    parts[5] = "elsewhere"
    return (await client.ack(" ".join(parts))).status


async def acknowledged_garbage(client: Any, _gateway: Any) -> pb.Status:
    await client.route()
    return (await client.ack("garbage")).status


async def changed_for_too_long(client: Any, _gateway: Any) -> pb.Status:
    return (await client.change(await held(client), HOURS_12_MS // 1000 + 1)).status


async def changed_to_less_than_nothing(client: Any, _gateway: Any) -> pb.Status:
    return (await client.change(await held(client), -1)).status


async def ended_without_an_id(client: Any, _gateway: Any) -> pb.Status:
    await client.route()
    request = rpc.EndTransactionRequest(
        topic=pb.Resource(name="t"), message_id="m", transaction_id=" ", resolution=pb.COMMIT
    )
    return (await client.call("EndTransaction", request)).status


async def recalled_garbage(client: Any, _gateway: Any) -> pb.Status:
    await client.route()
    request = rpc.RecallMessageRequest(topic=pb.Resource(name="t"), recall_handle="garbage")
    return (await client.call("RecallMessage", request)).status


async def asked_for_no_route(client: Any, gateway: Any) -> pb.Status:
    gateway.processor._routing._limits = Limits(auto_create_topics=False)
    return (await client.route("nowhere")).status


async def called_without_an_id(client: Any, _gateway: Any) -> pb.Status:
    return (await client.like(client_id=" ").route()).status


async def beat_unknown(client: Any, _gateway: Any) -> pb.Status:
    return (await client.call("Heartbeat", rpc.HeartbeatRequest())).status


async def introduced_as_nothing(client: Any, _gateway: Any) -> pb.Status:
    stream = client.telemetry()
    await stream.write(rpc.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER)))
    return (await stream.read()).status


async def too_many_wait(client: Any, gateway: Any) -> pb.Status:
    gateway.processor._core.polls.count = gateway.processor.limits.max_waiting
    return await received()(client, gateway)


async def too_many_come(client: Any, gateway: Any) -> pb.Status:
    def refuse(*_args: Any, **_named: Any) -> None:
        raise TooManyRequests("the rate limit is reached, try again in 1 s")

    gateway.processor._admit = refuse
    return (await client.route()).status


def properties(**named: str) -> Case:
    return sent(properties=named)


OWN, MANY = pb.ILLEGAL_MESSAGE_PROPERTY_KEY, pb.MESSAGE_PROPERTIES_TOO_LARGE
SENTENCES: list[tuple[Case, int, str, str]] = [
    (sent_nothing, pb.MESSAGE_CORRUPTED, "no message to send", "at least one message"),
    (sent_to_two, pb.MESSAGE_CORRUPTED, "topic in message is not same", "'t' and 'u'"),
    (sent(" "), pb.ILLEGAL_TOPIC, "The specified topic is blank", "must not be blank"),
    (sent("t" * 128), pb.ILLEGAL_TOPIC, "The specified topic is longer than topic max length 127.", "128"),
    (
        sent("a b"),
        pb.ILLEGAL_TOPIC,
        "The specified topic[a b] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        "only letters, digits",
    ),
    (sent("TBW102"), pb.ILLEGAL_TOPIC, "cannot access system topic", "belongs to the system"),
    (received(group=" "), pb.ILLEGAL_CONSUMER_GROUP, "the specified group is blank", "must not be blank"),
    (
        received(group="g" * 121),
        pb.ILLEGAL_CONSUMER_GROUP,
        "is longer than group max length: 120.",
        "121 characters, the limit is 120",
    ),
    (
        received(group="a b"),
        pb.ILLEGAL_CONSUMER_GROUP,
        "the specified group[a b] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        "only letters, digits",
    ),
    (
        received(group="CID_RMQ_SYS_x"),
        pb.ILLEGAL_CONSUMER_GROUP,
        "cannot use system consumer group",
        "belongs to the system",
    ),
    (sent(body=b""), pb.MESSAGE_BODY_EMPTY, "message body cannot be empty", "at least 1 byte"),
    (
        sent(body=bytes(4_194_305)),
        pb.MESSAGE_BODY_TOO_LARGE,
        "message body cannot exceed the max 4194304",
        "has 4194305 bytes",
    ),
    (
        properties(**{f"k{n}": "v" for n in range(129)}),
        MANY,
        "too many user properties, max is 128",
        "has 129 user properties",
    ),
    (
        properties(k="v" * 16_384),
        MANY,
        "the total size of user property is too large, max is 16384",
        "has 16385 bytes",
    ),
    (properties(UNIQ_KEY="v"), OWN, "property is used by system: UNIQ_KEY", "belongs to the system"),
    (properties(**{"a\x01": "v"}), OWN, "the key of property cannot contain control character", "'a\\x01'"),
    (properties(a="\x02"), OWN, "the value of property cannot contain control character", "its value"),
    (sent(tag=" "), pb.ILLEGAL_MESSAGE_TAG, "tag cannot be the char sequence of whitespace", "blank"),
    (sent(tag="a|b"), pb.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'", "'a|b'"),
    (sent(tag="a\x01"), pb.ILLEGAL_MESSAGE_TAG, "tag cannot contain control character", "'a\\x01'"),
    (sent(keys=[" "]), pb.ILLEGAL_MESSAGE_KEY, "key cannot be the char sequence of whitespace", "blank"),
    (sent(keys=["a\x01"]), pb.ILLEGAL_MESSAGE_KEY, "key cannot contain control character", "'a\\x01'"),
    (sent(message_id=" "), pb.ILLEGAL_MESSAGE_ID, "message id cannot be empty", "must not be blank"),
    (
        sent(message_group=" "),
        pb.ILLEGAL_MESSAGE_GROUP,
        "message group cannot be the char sequence of whitespace",
        "blank",
    ),
    (
        sent(message_group="g" * 64),
        pb.ILLEGAL_MESSAGE_GROUP,
        "message group exceed the max size 64",
        "has 64 bytes, the limit is 63",
    ),
    (
        sent(message_group="a\x01"),
        pb.ILLEGAL_MESSAGE_GROUP,
        "message group cannot contain control character",
        "'a\\x01'",
    ),
    (
        sent_far_ahead,
        pb.ILLEGAL_DELIVERY_TIME,
        "the max delay time of message is too large, max is 86400000",
        "the longest delay is 86400000 ms",
    ),
    (
        sent(
            message_type=pb.TRANSACTION,
            orphaned_transaction_recovery_duration=Duration(seconds=3601),
        ),
        pb.BAD_REQUEST,
        "the max transaction recovery time of message is too large, max is 3600",
        "is 3601 s",
    ),
    (
        sent_to_a_typed_topic,
        pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        "TopicMessageType validate failed, the expected type is FIFO, but actual type is NORMAL",
        "takes FIFO messages",
    ),
    (sent_where_nothing_is_written, pb.FORBIDDEN, "no writable queue", "topic frozen"),
    (received_where_nothing_is_read, pb.FORBIDDEN, "no readable queue", "topic closed"),
    (assigned_where_nothing_is_read, pb.FORBIDDEN, "no readable queue", "topic shut"),
    (
        received(invisible_duration=Duration(seconds=9)),
        pb.ILLEGAL_INVISIBLE_TIME,
        "the invisibleTime is too small. min is 10000",
        "is 9000 ms",
    ),
    (
        received(invisible_duration=Duration(seconds=43_201)),
        pb.ILLEGAL_INVISIBLE_TIME,
        "the invisibleTime is too large. max is 43200000",
        "is 43201000 ms",
    ),
    (
        changed_for_too_long,
        pb.ILLEGAL_INVISIBLE_TIME,
        "the invisibleTime is too large. max is 43200000",
        "is 43201000 ms",
    ),
    (
        changed_to_less_than_nothing,
        pb.ILLEGAL_INVISIBLE_TIME,
        "the invisibleTime is too small. min is 0",
        "is -1000 ms",
    ),
    (
        received(expression="||"),
        pb.ILLEGAL_FILTER_EXPRESSION,
        "expression format is not correct",
        "names no tag",
    ),
    (acknowledged_garbage, pb.INVALID_RECEIPT_HANDLE, "INVALID_RECEIPT_HANDLE", "1 fields"),
    (acknowledged_late, pb.INVALID_RECEIPT_HANDLE, "INVALID_RECEIPT_HANDLE", "time is over"),
    (acknowledged_late, pb.INVALID_RECEIPT_HANDLE, "receipt handle is expired", "time is over"),
    (changed_late, pb.INVALID_RECEIPT_HANDLE, "receipt handle is expired", "time is over"),
    (acknowledged_elsewhere, pb.INVALID_RECEIPT_HANDLE, "cannot find broker", "another broker"),
    (
        ended_without_an_id,
        pb.INVALID_TRANSACTION_ID,
        "transaction id cannot be empty",
        "must not be blank",
    ),
    (recalled_garbage, pb.BAD_REQUEST, "recall handle is invalid", "'garbage'"),
    (
        asked_for_no_route,
        pb.TOPIC_NOT_FOUND,
        "No topic route info in name server for the topic: nowhere",
        "topic nowhere does not exist",
    ),
    (called_without_an_id, pb.CLIENT_ID_REQUIRED, "client id cannot be empty", "x-mq-client-id"),
    (
        beat_unknown,
        pb.UNRECOGNIZED_CLIENT_TYPE,
        "cannot find client settings for this client",
        "is not known here",
    ),
    (
        introduced_as_nothing,
        pb.BAD_REQUEST,
        "there is no publishing or subscription data in settings",
        "neither",
    ),
    (received(), pb.MESSAGE_NOT_FOUND, "no new message", ""),
    (too_many_wait, pb.TOO_MANY_REQUESTS, "polling full", "the limit of 100000 waiting receives"),
    (too_many_come, pb.TOO_MANY_REQUESTS, "flow limit", "the rate limit is reached"),
]


@pytest.mark.parametrize(
    ("case", "code", "phrase", "ours"),
    SENTENCES,
    ids=[f"{Code.Name(code)}-{phrase[:40]}-{n}" for n, (_, code, phrase, _) in enumerate(SENTENCES)],
)
async def test_a_refusal_has_the_words_of_rocketmq_and_ours(
    client: Any, gateway: Any, case: Case, code: int, phrase: str, ours: str
) -> None:
    await gateway.broker.create_group(GroupConfig("g"))
    status = await case(client, gateway)
    assert Code.Name(status.code) == Code.Name(code), status.message
    assert phrase in status.message
    assert ours in status.message
