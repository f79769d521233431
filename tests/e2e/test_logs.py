"""What the log of a gateway holds: ids and sizes, never bodies or properties, and no line per message."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from popgate.ids.message_id import make_message_id
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.testing import GatewayProcess, running_gateway
from protocols.grpc.rpcs.dispatcher import SERVICE, STREAMED, UNARY
from tests.support.waiting import PATIENCE_S

MARK = "zq7SECRETzq7"
OPTIONS = ("--log-level", "debug", "--set", "limits.min_invisible_s=1")
METADATA = (("x-mq-client-id", "c1"), ("x-mq-language", "JAVA"))
TOPIC, GROUP = pb.Resource(name="t-logged"), pb.Resource(name="g-logged")


@pytest.fixture
def gateway() -> Iterator[GatewayProcess]:
    with GatewayProcess(options=OPTIONS) as gateway:
        yield gateway


@pytest.fixture
async def channel(gateway: GatewayProcess) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(gateway.endpoint) as channel:
        yield channel


async def ask(channel: grpc.aio.Channel, name: str, request: Message, answer: Any) -> list[Any]:
    """The answers of an RPC, however it streams. Raises AioRpcError when the call itself failed."""
    path = f"/{SERVICE}/{name}"
    how = {
        "request_serializer": type(request).SerializeToString,
        "response_deserializer": answer.FromString,
    }
    if name in {what.name for what in STREAMED}:
        stream = channel.unary_stream(path, **how)(request, metadata=METADATA, timeout=PATIENCE_S)
        return [one async for one in stream]
    return [await channel.unary_unary(path, **how)(request, metadata=METADATA, timeout=PATIENCE_S)]


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """The gateway may refuse the call, but it must say so."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
            raise


def marked(kind: type[Message], depth: int = 4) -> Message:
    """A request with the mark in every text, every name and every body that it can hold."""
    request = kind()
    for field in request.DESCRIPTOR.fields:
        many = field.is_repeated
        value: Any = None
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(request, field.name)[MARK] = MARK
        elif field.type == FieldDescriptor.TYPE_MESSAGE and depth:
            made = getattr(request, field.name)
            inner = marked(field.message_type._concrete_class, depth - 1)
            if many:
                made.append(inner)
            else:
                made.CopyFrom(inner)
        elif field.type == FieldDescriptor.TYPE_STRING:
            value = MARK
        elif field.type == FieldDescriptor.TYPE_BYTES:
            value = MARK.encode()
        if value is not None:
            if many:
                getattr(request, field.name).append(value)
            else:
                setattr(request, field.name, value)
    return request


def message(number: int) -> pb.Message:
    return pb.Message(
        topic=TOPIC,
        body=f"{MARK} {number}".encode() * 20,
        user_properties={f"{MARK}-name": MARK},
        system_properties=pb.SystemProperties(
            message_id=make_message_id(), message_type=pb.NORMAL, keys=[f"{MARK}-key"], tag="tag"
        ),
    )


async def a_messages_way(channel: grpc.aio.Channel, count: int) -> None:
    """Sent, received, hidden, given up, acknowledged, looked at by offset."""
    for start in range(0, count, 20):
        request = rpc.SendMessageRequest(messages=[message(start + number) for number in range(20)])
        (answer,) = await ask(channel, "SendMessage", request, rpc.SendMessageResponse)
        assert answer.status.code == pb.OK, answer.status
    done = 0
    deadline = time.monotonic() + PATIENCE_S
    while done < count:
        assert time.monotonic() < deadline
        wanted = rpc.ReceiveMessageRequest(
            group=GROUP,
            message_queue=pb.MessageQueue(topic=TOPIC, id=-1),
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            batch_size=32,
            invisible_duration=Duration(seconds=60),
            long_polling_timeout=Duration(nanos=100_000_000),
        )
        answers = await ask(channel, "ReceiveMessage", wanted, rpc.ReceiveMessageResponse)
        taken = [one.message.system_properties for one in answers if one.WhichOneof("content") == "message"]
        if not taken:
            continue
        first, rest = taken[0], taken[1:]
        letter = rpc.ForwardMessageToDeadLetterQueueRequest(
            group=GROUP, topic=TOPIC, receipt_handle=first.receipt_handle, message_id=first.message_id
        )
        await ask(
            channel,
            "ForwardMessageToDeadLetterQueue",
            letter,
            rpc.ForwardMessageToDeadLetterQueueResponse,
        )
        entries = [
            rpc.AckMessageEntry(message_id=one.message_id, receipt_handle=one.receipt_handle) for one in rest
        ]
        # Once more than is good: refusals must be as quiet.
        for _ in range(2):
            ack = rpc.AckMessageRequest(group=GROUP, topic=TOPIC, entries=entries)
            await ask(channel, "AckMessage", ack, rpc.AckMessageResponse)
        done += len(taken)
    pull = rpc.PullMessageRequest(
        group=GROUP,
        message_queue=pb.MessageQueue(topic=TOPIC, broker=pb.Broker(name="popgate")),
        batch_size=32,
    )
    await ask(channel, "PullMessage", pull, rpc.PullMessageResponse)


async def telemetry(channel: grpc.aio.Channel) -> None:
    call = channel.stream_stream(
        f"/{SERVICE}/Telemetry",
        request_serializer=rpc.TelemetryCommand.SerializeToString,
        response_deserializer=rpc.TelemetryCommand.FromString,
    )
    for name in [field.name for field in rpc.TelemetryCommand.DESCRIPTOR.fields if field.message_type]:
        field = rpc.TelemetryCommand.DESCRIPTOR.fields_by_name[name]
        command = rpc.TelemetryCommand()
        getattr(command, name).CopyFrom(marked(field.message_type._concrete_class))
        stream = call(metadata=METADATA, timeout=PATIENCE_S)
        with refused(), contextlib.suppress(asyncio.InvalidStateError):  # it ended before all was written
            await stream.write(command)
            await stream.done_writing()
            async for _ in stream:
                pass


async def test_scenario_18_no_log_line_holds_a_body_or_a_property_whatever_is_called(
    gateway: GatewayProcess, channel: grpc.aio.Channel
) -> None:
    """At the level debug, with every RPC: good requests, and requests that are nothing but marks."""
    await a_messages_way(channel, 40)
    for what in (*UNARY, *STREAMED):
        for request in (marked(what.request), what.request()):
            with refused():
                await ask(channel, what.name, request, what.answer)
    await telemetry(channel)
    await channel.close()
    assert gateway.terminate() == 0
    assert '"level": "' in gateway.log
    lines = [line for line in f"{gateway.log}{gateway.output}".splitlines() if MARK in line]
    assert lines == []


async def test_scenario_18_the_log_does_not_grow_with_messages() -> None:
    # Counted when all is written that a gateway logs in its life.
    few, many = await lines_logged(20), await lines_logged(420)
    assert few
    assert many - few <= 5


async def lines_logged(count: int) -> int:
    """How much a gateway logs that so many messages pass."""
    async with running_gateway(options=OPTIONS) as gateway:
        async with grpc.aio.insecure_channel(gateway.endpoint) as channel:
            await a_messages_way(channel, count)
        assert await asyncio.to_thread(gateway.terminate) == 0
    return len(gateway.log.splitlines())
