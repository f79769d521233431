"""Every field of which a value is refused: it is really sent, and the refusal seen.

The cases are those of `tests/surface/fields.toml`, neither more nor fewer.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.pb.timestamp_pb2 import Timestamp
from processors.limits import Limits

FIELDS = tomllib.loads((Path(__file__).parents[3] / "surface" / "fields.toml").read_text())
REFUSED = {
    f"{message}.{field}": told[2]
    for message, fields in FIELDS.items()
    for field, told in fields.items()
    if field != "_seen" and len(told) == 3
}

BAD = pb.Resource(name="a b")
CROWDED = pb.Endpoints(addresses=[pb.Address()] * 1025)
Message = pb.Message
Case = Callable[[Any], Any]
"""Makes, of a client, the request (or settings) that is refused."""


def sent(**system: Any) -> Case:
    def make(client: Any) -> Any:
        return rpc.SendMessageRequest(messages=[client.message(**system)])

    return make


def received(**fields: Any) -> Case:
    return lambda client: client.receive_request(**fields)


def pulled(**fields: Any) -> Case:
    return lambda client: client.pull_request(**fields)


def told(**fields: Any) -> Case:
    """Settings of a producer, or of a consumer that names something of one."""

    def make(client: Any) -> Any:
        consumer = fields.pop("consumer", False)
        settings = client.subscribing() if consumer else client.producing()
        settings.MergeFrom(pb.Settings(**fields))
        return settings

    return make


def asked(kind: Any, **fields: Any) -> Case:
    """A request that is right but for `fields`."""

    def make(client: Any) -> Any:
        request = kind()
        for name in ("topic", "group"):
            if name in kind.DESCRIPTOR.fields_by_name:
                getattr(request, name).name = name[0]
        if "message_queue" in kind.DESCRIPTOR.fields_by_name:
            request.message_queue.CopyFrom(client.queue())
        for name, value in fields.items():
            if isinstance(value, (pb.Resource, pb.MessageQueue, pb.Endpoints, Duration, Timestamp)):
                getattr(request, name).CopyFrom(value)
            elif isinstance(value, list):
                getattr(request, name).extend(value)
            else:
                setattr(request, name, value)
        return request

    return make


def held(kind: Any, **fields: Any) -> Case:
    """A request about the message that the client holds, right but for `fields`."""
    return lambda client: asked(kind, receipt_handle=client.held, **fields)(client)


def held_entry(**fields: Any) -> Case:
    """The same in an acknowledgement."""

    def make(client: Any) -> Any:
        entry = rpc.AckMessageEntry(receipt_handle=client.held, **fields)
        return asked(rpc.AckMessageRequest, entries=[entry])(client)

    return make


def synced(**option: int) -> Case:
    return lambda _client: rpc.SyncLiteSubscriptionRequest(
        action=pb.PARTIAL_ADD,
        topic=pb.Resource(name="t"),
        group=pb.Resource(name="g"),
        lite_topic_set=["l"],
        offset_option=pb.OffsetOption(**option),
    )


def mixed(client: Any) -> Any:
    return rpc.SendMessageRequest(messages=[client.message("t"), client.message("other")])


def namespaced(client: Any) -> Any:
    request = client.receive_request()
    request.message_queue.topic.resource_namespace = "n" * 1000
    return request


def subscribed(expression: pb.FilterExpression) -> Case:
    def make(client: Any) -> Any:
        settings = client.subscribing()
        settings.subscription.subscriptions[0].expression.CopyFrom(expression)
        return settings

    return make


NO_QUEUE = pb.MessageQueue(topic=pb.Resource(name="t"), id=77, broker=pb.Broker(name="popgate"))
LATE = Timestamp(seconds=253_402_300_799)
LONG = Duration(seconds=365 * 86_400)
WRONG = pb.Digest(type=pb.MD5, checksum="00")

CASES: dict[str, Case] = {
    "Endpoints.addresses": asked(rpc.QueryRouteRequest, endpoints=CROWDED),
    "Resource.resource_namespace": namespaced,
    "Resource.name": received(topic="a b"),
    "MessageQueue.id": pulled(queue_id=77),
    "FilterExpression.type": received(filter=77, expression="A"),
    "FilterExpression.expression": received(filter=pb.SQL, expression="a >"),
    "SubscriptionEntry.expression": subscribed(pb.FilterExpression(type=pb.SQL, expression="a >")),
    "Digest.checksum": sent(body_digest=WRONG),
    "SystemProperties.tag": sent(tag="a|b"),
    "SystemProperties.keys": sent(keys=[" "]),
    "SystemProperties.message_id": sent(message_id=""),
    "SystemProperties.body_digest": sent(body_digest=WRONG),
    "SystemProperties.body_encoding": sent(body_encoding=77),
    "SystemProperties.message_type": sent(message_type=77),
    "SystemProperties.delivery_timestamp": sent(delivery_timestamp=LATE),
    "SystemProperties.message_group": sent(message_group="g" * 64),
    "SystemProperties.orphaned_transaction_recovery_duration": sent(
        message_type=pb.TRANSACTION, orphaned_transaction_recovery_duration=LONG
    ),
    "SystemProperties.lite_topic": sent(lite_topic="a b"),
    "SystemProperties.priority": sent(priority=-1),
    "Message.topic": mixed,
    "Message.user_properties": sent(properties={"KEYS": "k"}),
    "Message.body": sent(body=bytes(2000)),
    "Publishing.topics": told(publishing=pb.Publishing(topics=[BAD])),
    "Subscription.group": told(consumer=True, subscription=pb.Subscription(group=BAD)),
    "Settings.client_type": told(client_type=77),
    "Settings.publishing": told(client_type=pb.PUSH_CONSUMER, publishing=pb.Publishing()),
    "Settings.client_properties": told(client_properties={"rocketmq.x": "v"}),
    "OffsetOption.policy": synced(policy=77),
    "OffsetOption.offset": synced(offset=-1),
    "OffsetOption.tail_n": synced(tail_n=-1),
    "OffsetOption.timestamp": synced(timestamp=-1),
    "SyncLiteSubscriptionRequest.action": asked(rpc.SyncLiteSubscriptionRequest, action=77),
    "SyncLiteSubscriptionRequest.version": asked(
        rpc.SyncLiteSubscriptionRequest, action=pb.PARTIAL_ADD, version=-1
    ),
    "NotifyClientTerminationRequest.group": asked(rpc.NotifyClientTerminationRequest, group=BAD),
    "QueryRouteRequest.topic": asked(rpc.QueryRouteRequest, topic=BAD),
    "SendMessageRequest.messages": lambda _client: rpc.SendMessageRequest(),
    "QueryAssignmentRequest.topic": asked(rpc.QueryAssignmentRequest, topic=BAD),
    "QueryAssignmentRequest.group": asked(rpc.QueryAssignmentRequest, group=BAD),
    "ReceiveMessageRequest.group": received(group="a b"),
    "ReceiveMessageRequest.message_queue": received(topic=""),
    "ReceiveMessageRequest.filter_expression": received(expression="||"),
    "ReceiveMessageRequest.invisible_duration": received(invisible_duration=LONG),
    "ReceiveMessageRequest.long_polling_timeout": received(wait_ms=-1),
    "AckMessageEntry.message_id": held_entry(message_id="other"),
    "AckMessageEntry.lite_topic": held_entry(lite_topic="other"),
    "AckMessageEntry.receipt_handle": asked(
        rpc.AckMessageRequest, entries=[rpc.AckMessageEntry(receipt_handle="x")]
    ),
    "AckMessageRequest.group": asked(rpc.AckMessageRequest, group=BAD),
    "AckMessageRequest.topic": asked(rpc.AckMessageRequest, topic=BAD),
    "AckMessageRequest.entries": asked(rpc.AckMessageRequest),
    "ForwardMessageToDeadLetterQueueRequest.group": asked(
        rpc.ForwardMessageToDeadLetterQueueRequest, group=BAD
    ),
    "ForwardMessageToDeadLetterQueueRequest.topic": asked(
        rpc.ForwardMessageToDeadLetterQueueRequest, topic=BAD
    ),
    "ForwardMessageToDeadLetterQueueRequest.receipt_handle": asked(
        rpc.ForwardMessageToDeadLetterQueueRequest
    ),
    "ForwardMessageToDeadLetterQueueRequest.message_id": held(
        rpc.ForwardMessageToDeadLetterQueueRequest, message_id="other"
    ),
    "ForwardMessageToDeadLetterQueueRequest.lite_topic": held(
        rpc.ForwardMessageToDeadLetterQueueRequest, lite_topic="other"
    ),
    "ForwardMessageToDeadLetterQueueRequest.delivery_attempt": held(
        rpc.ForwardMessageToDeadLetterQueueRequest, delivery_attempt=-1
    ),
    "ForwardMessageToDeadLetterQueueRequest.max_delivery_attempts": held(
        rpc.ForwardMessageToDeadLetterQueueRequest, max_delivery_attempts=-1
    ),
    "HeartbeatRequest.group": asked(rpc.HeartbeatRequest, group=BAD, client_type=pb.PUSH_CONSUMER),
    "HeartbeatRequest.client_type": asked(rpc.HeartbeatRequest, client_type=77),
    "EndTransactionRequest.topic": asked(rpc.EndTransactionRequest, topic=BAD),
    "EndTransactionRequest.message_id": asked(
        rpc.EndTransactionRequest, message_id="other", transaction_id="x", resolution=pb.COMMIT
    ),
    "EndTransactionRequest.transaction_id": asked(rpc.EndTransactionRequest, resolution=pb.COMMIT),
    "EndTransactionRequest.resolution": asked(rpc.EndTransactionRequest, transaction_id="x"),
    "TelemetryCommand.settings": lambda _client: pb.Settings(),
    "ChangeInvisibleDurationRequest.group": asked(rpc.ChangeInvisibleDurationRequest, group=BAD),
    "ChangeInvisibleDurationRequest.topic": asked(rpc.ChangeInvisibleDurationRequest, topic=BAD),
    "ChangeInvisibleDurationRequest.receipt_handle": asked(rpc.ChangeInvisibleDurationRequest),
    "ChangeInvisibleDurationRequest.message_id": held(rpc.ChangeInvisibleDurationRequest, message_id="other"),
    "ChangeInvisibleDurationRequest.lite_topic": held(rpc.ChangeInvisibleDurationRequest, lite_topic="other"),
    "ChangeInvisibleDurationRequest.invisible_duration": asked(
        rpc.ChangeInvisibleDurationRequest, invisible_duration=LONG
    ),
    "PullMessageRequest.group": pulled(group="a b"),
    "PullMessageRequest.message_queue": pulled(queue_id=77),
    "PullMessageRequest.offset": pulled(offset=5),
    "PullMessageRequest.filter_expression": pulled(filter=77, expression="A"),
    "PullMessageRequest.long_polling_timeout": pulled(wait_ms=-1),
    "UpdateOffsetRequest.group": asked(rpc.UpdateOffsetRequest, group=BAD),
    "UpdateOffsetRequest.message_queue": asked(rpc.UpdateOffsetRequest, message_queue=NO_QUEUE),
    "UpdateOffsetRequest.offset": asked(rpc.UpdateOffsetRequest, offset=-1),
    "GetOffsetRequest.group": asked(rpc.GetOffsetRequest, group=BAD),
    "GetOffsetRequest.message_queue": asked(rpc.GetOffsetRequest, message_queue=NO_QUEUE),
    "QueryOffsetRequest.message_queue": asked(rpc.QueryOffsetRequest, message_queue=NO_QUEUE),
    "QueryOffsetRequest.query_offset_policy": asked(rpc.QueryOffsetRequest, query_offset_policy=77),
    "QueryOffsetRequest.timestamp": asked(rpc.QueryOffsetRequest, query_offset_policy=pb.TIMESTAMP),
    "RecallMessageRequest.topic": asked(rpc.RecallMessageRequest, topic=BAD),
    "RecallMessageRequest.recall_handle": asked(rpc.RecallMessageRequest, recall_handle="x"),
}


def test_the_cases_are_those_of_the_table() -> None:
    assert CASES.keys() == REFUSED.keys()


async def status_of(client: Any, request: Any) -> Any:
    """The status that a request is answered with; it must be in the answer, and not end the call."""
    if isinstance(request, pb.Settings):
        stream = client.telemetry()
        await stream.write(rpc.TelemetryCommand(settings=request))
        answer = await stream.read()
        assert answer.WhichOneof("command") is None
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
        return answer.status
    if isinstance(request, (rpc.ReceiveMessageRequest, rpc.PullMessageRequest)):
        frames = [frame async for frame in client.stream(request)]
        assert not any(frame.HasField("message") for frame in frames)
        return frames[0].status
    return (await client.call(type(request).__name__.removesuffix("Request"), request)).status


@pytest.mark.parametrize("field", CASES)
async def test_a_value_that_cannot_be_is_refused_with_its_reason(town: Any, field: str) -> None:
    client = town.client(await town.gateway(limits=Limits(max_body_bytes=1000)))
    await client.send_one()
    (message,) = await client.receive()
    client.held = message.system_properties.receipt_handle
    status = await status_of(client, CASES[field](client))
    assert pb.Code.Name(status.code) == REFUSED[field], status.message
    assert len(status.message) > 10
