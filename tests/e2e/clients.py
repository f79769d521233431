"""A client of gRPC on a connection of its own, with nothing in it that makes up for a gateway's faults."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from popgate.ids.message_id import make_message_id
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from tests.support.waiting import PATIENCE_S

SERVICE = "/apache.rocketmq.v2.MessagingService/"


def metadata(client: str) -> tuple[tuple[str, str], ...]:
    return ("x-mq-client-id", client), ("x-mq-language", "JAVA"), ("x-mq-client-version", "5.2.0")


class Client:
    """One client on a connection of its own."""

    def __init__(self, address: str, name: str, *options: tuple[str, Any]) -> None:
        self.name = name
        own = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))
        self.channel = grpc.aio.insecure_channel(address, options=(*own, *options))

    async def unary(self, name: str, request: Any, answer: Any) -> Any:
        call = self.channel.unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await call(request, metadata=metadata(self.name), timeout=PATIENCE_S)

    async def send(self, topic: str, body: bytes) -> None:
        system = pb.SystemProperties(message_id=make_message_id(), born_host="here")
        message = pb.Message(topic=pb.Resource(name=topic), body=body, system_properties=system)
        answer = await self.unary(
            "SendMessage", rpc.SendMessageRequest(messages=[message]), rpc.SendMessageResponse
        )
        assert answer.status.code == pb.OK, answer

    async def receive(self, topic: str, group: str, wait_s: int) -> tuple[int, list[pb.Message]]:
        call = self.channel.unary_stream(
            SERVICE + "ReceiveMessage",
            request_serializer=rpc.ReceiveMessageRequest.SerializeToString,
            response_deserializer=rpc.ReceiveMessageResponse.FromString,
        )
        request = rpc.ReceiveMessageRequest(
            group=pb.Resource(name=group),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), id=-1),
            filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
            batch_size=4,
            invisible_duration=Duration(seconds=300),
            long_polling_timeout=Duration(seconds=wait_s),
        )
        code, messages = 0, []
        async for frame in call(request, metadata=metadata(self.name), timeout=wait_s + PATIENCE_S):
            match frame.WhichOneof("content"):
                case "status":
                    code = frame.status.code
                case "message":
                    messages.append(frame.message)
        return code, messages

    async def pull(self, topic: str, group: str, queue_id: int) -> list[bytes]:
        """The bodies that lie at the beginning of a queue; none where they cannot be read."""
        call = self.channel.unary_stream(
            SERVICE + "PullMessage",
            request_serializer=rpc.PullMessageRequest.SerializeToString,
            response_deserializer=rpc.PullMessageResponse.FromString,
        )
        request = rpc.PullMessageRequest(
            group=pb.Resource(name=group),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), id=queue_id),
            batch_size=32,
            filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
            long_polling_timeout=Duration(seconds=0),
        )
        frames = call(request, metadata=metadata(self.name), timeout=PATIENCE_S)
        return [frame.message.body async for frame in frames if frame.WhichOneof("content") == "message"]

    async def ack(self, topic: str, group: str, messages: list[pb.Message]) -> None:
        entries = [
            rpc.AckMessageEntry(
                message_id=one.system_properties.message_id,
                receipt_handle=one.system_properties.receipt_handle,
            )
            for one in messages
        ]
        request = rpc.AckMessageRequest(
            topic=pb.Resource(name=topic), group=pb.Resource(name=group), entries=entries
        )
        answer = await self.unary("AckMessage", request, rpc.AckMessageResponse)
        assert answer.status.code == pb.OK, answer

    def telemetry(self, kind: Any, topic: str, group: str = "") -> Any:
        call = self.channel.stream_stream(
            SERVICE + "Telemetry",
            request_serializer=rpc.TelemetryCommand.SerializeToString,
            response_deserializer=rpc.TelemetryCommand.FromString,
        )(metadata=metadata(self.name))
        settings = pb.Settings(client_type=kind)
        if group:
            entry = pb.SubscriptionEntry(
                topic=pb.Resource(name=topic),
                expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
            )
            settings.subscription.CopyFrom(
                pb.Subscription(group=pb.Resource(name=group), subscriptions=[entry])
            )
        else:
            settings.publishing.CopyFrom(pb.Publishing(topics=[pb.Resource(name=topic)]))
        return call, rpc.TelemetryCommand(settings=settings)
