"""A client for diagnosis: it tries each call once and reports the outcome."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, Self

import grpc
import grpc.aio

from popgate import __version__
from popgate.ids.message_id import make_message_id
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from protocols.adapter import joined
from protocols.grpc.codec.endpoints import fixed_endpoints
from protocols.probing import SCRATCH, Finding, Level, Wish

SERVICE = "/apache.rocketmq.v2.MessagingService/"
_OTHERS_AGE_MS = 60_000
_AT_ONCE = 16


class Refused(Exception):
    """A call did not do what it should; the finding says what."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what)
        self.finding = finding


class Caller:
    """One channel, opened as a context, to the address of a wish. Calls raise `Refused`."""

    def __init__(self, wish: Wish) -> None:
        self.wish = wish
        self.topic = wish.topic or SCRATCH
        self.endpoints = fixed_endpoints(wish.host, wish.port)
        self.metadata = (
            ("x-mq-client-id", f"popgate-doctor@{make_message_id()}"),
            ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", __version__),
        )
        self.max_body = 4 << 20
        self.channel: grpc.aio.Channel

    async def __aenter__(self) -> Self:
        self.channel = grpc.aio.insecure_channel(
            joined(self.wish.host, self.wish.port),
            options=[
                ("grpc.max_send_message_length", -1),
                ("grpc.max_receive_message_length", -1),
                # The address is looked at, not the proxy of this shell.
                ("grpc.enable_http_proxy", 0),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        return self

    async def __aexit__(self, *_unused: object) -> None:
        await self.channel.close(None)

    async def send(self, check: str, body: bytes) -> tuple[str, int]:
        """Its id, and this machine's wall time in ms before it was sent."""
        message_id, now_ms = make_message_id(), time.time_ns() // 1_000_000
        message = pb.Message(
            topic=pb.Resource(name=self.topic),
            body=body,
            system_properties=pb.SystemProperties(
                message_id=message_id,
                message_type=pb.MessageType.NORMAL,
                body_encoding=pb.Encoding.IDENTITY,
                tag=SCRATCH,
            ),
        )
        message.system_properties.born_timestamp.FromMilliseconds(now_ms)
        answer = await self.call(check, "SendMessage", rpc.SendMessageRequest(messages=[message]))
        self.expect(check, answer.status)
        return message_id, now_ms

    async def receive(self, message_id: str) -> tuple[pb.Message | None, int, int]:
        """Receive until this message arrives. Recent messages of another diagnosis are left to it.

        All others are acknowledged: only diagnoses use the group, so no other consumer misses them, and in a
        topic that is in use they would be redelivered before the expected message.
        """
        deadline = time.monotonic() + 2 * self.wish.patience_s
        while time.monotonic() < deadline:
            asked_ms = time.time_ns() // 1_000_000
            wanted = None
            done = []
            async for frame in self.frames(self.wish.patience_s, _AT_ONCE):
                if frame.WhichOneof("content") != "message":
                    continue
                message = frame.message
                if message.system_properties.message_id == message_id:
                    wanted = message
                if message is wanted or not _is_anothers(message):
                    done.append(message)
                else:
                    await self._give_up(message)
            if done:
                await self._finish(done)
            if wanted is not None:
                return wanted, asked_ms, time.time_ns() // 1_000_000
        return None, 0, 0

    async def frames(self, wait_s: float, at_most: int = 1) -> AsyncIterator[rpc.ReceiveMessageResponse]:
        method = self.channel.unary_stream(
            f"{SERVICE}ReceiveMessage",
            request_serializer=rpc.ReceiveMessageRequest.SerializeToString,
            response_deserializer=rpc.ReceiveMessageResponse.FromString,
        )
        request = rpc.ReceiveMessageRequest(
            group=pb.Resource(name=SCRATCH),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=self.topic), id=-1),
            filter_expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
            batch_size=at_most,
            invisible_duration=Duration(seconds=30),
            long_polling_timeout=_duration(wait_s),
        )
        stream: Any = method(request, metadata=self.metadata, timeout=wait_s + self.wish.patience_s)
        try:
            async for frame in stream:
                if frame.WhichOneof("content") == "status" and frame.status.code != pb.Code.MESSAGE_NOT_FOUND:
                    self.expect("round-trip", frame.status)
                yield frame
        except grpc.aio.AioRpcError as error:
            raise self.broken("long-poll", error) from None
        finally:
            stream.cancel()

    async def _finish(self, messages: list[pb.Message]) -> None:
        entries = [
            rpc.AckMessageEntry(
                message_id=message.system_properties.message_id,
                receipt_handle=message.system_properties.receipt_handle,
            )
            for message in messages
        ]
        request = rpc.AckMessageRequest(
            group=pb.Resource(name=SCRATCH), topic=pb.Resource(name=self.topic), entries=entries
        )
        self.expect("round-trip", (await self.call("round-trip", "AckMessage", request)).status)

    async def _give_up(self, message: pb.Message) -> None:
        request = rpc.ChangeInvisibleDurationRequest(
            group=pb.Resource(name=SCRATCH),
            topic=pb.Resource(name=self.topic),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
            invisible_duration=_duration(0),
        )
        await self.call("round-trip", "ChangeInvisibleDuration", request)

    async def call(self, check: str, name: str, request: Any) -> Any:
        method = self.channel.unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(rpc, f"{name}Response").FromString,
        )
        try:
            return await method(request, metadata=self.metadata, timeout=self.wish.patience_s)
        except grpc.aio.AioRpcError as error:
            raise self.broken(check, error) from None

    def expect(self, check: str, status: pb.Status) -> None:
        if status.code == pb.Code.OK:
            return
        name = pb.Code.Name(status.code) if status.code in pb.Code.values() else str(status.code)
        raise Refused(
            Finding(check, Level.PROBLEM, f"refused: {name}: {status.message}", _ADVICE.get(status.code, ""))
        )

    def broken(self, check: str, error: grpc.aio.AioRpcError) -> Refused:
        code = error.code()
        advice = {
            grpc.StatusCode.UNIMPLEMENTED: "HTTP/2 is spoken there, and not RocketMQ's gRPC: check the port",
            grpc.StatusCode.DEADLINE_EXCEEDED: "a proxy in between holds calls back, or the gateway is stuck",
            grpc.StatusCode.UNAVAILABLE: "the connection broke: a proxy without gRPC, or the gateway went",
            grpc.StatusCode.RESOURCE_EXHAUSTED: "a limit is reached, maybe one of a proxy in between",
        }.get(code, "")
        return Refused(Finding(check, Level.PROBLEM, f"{code.name}: {error.details() or ''}".strip(), advice))


_ADVICE = {
    pb.Code.FORBIDDEN: "the topic or the group does not allow it: name another topic, --topic",
    pb.Code.UNAUTHORIZED: "the gateway asks who calls",
    pb.Code.TOO_MANY_REQUESTS: "a rate or a budget is used up: see policies.rate and limits",
    pb.Code.CONSUMER_GROUP_NOT_FOUND: f"popgate group create {SCRATCH}",
    pb.Code.INTERNAL_SERVER_ERROR: "the gateway's log says more",
    pb.Code.HA_NOT_AVAILABLE: "the gateway's store cannot be written: its log says why",
}


def _is_anothers(message: pb.Message) -> bool:
    """Whether this is of a look that may still go on."""
    system = message.system_properties
    born_ms = system.born_timestamp.seconds * 1000
    sent_by_a_look = SCRATCH in (system.tag, message.topic.name)
    return sent_by_a_look and time.time_ns() // 1_000_000 - born_ms <= _OTHERS_AGE_MS


def _duration(seconds: float) -> Duration:
    return Duration(seconds=int(seconds), nanos=int(seconds % 1 * 10**9))
