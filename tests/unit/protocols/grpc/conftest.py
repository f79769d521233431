"""A gateway behind a real gRPC server on a port of its own, and a plain client that dials it.

Time is moved by hand unless a test asks for the system's: nothing falls due by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from brokers.embedded.broker import EmbeddedBroker
from brokers.embedded.storage.store import Durability
from popgate.build import is_compiled
from popgate.clock import SystemClock
from popgate.ids.message_id import make_message_id
from popgate.pb import definition_pb2 as pb
from popgate.pb import service_pb2 as rpc
from popgate.pb.duration_pb2 import Duration
from popgate.testing import MovableClock
from processors.limits import Limits
from processors.messaging import MessagingProcessor
from protocols.adapter import AdapterContext, parse_listen
from protocols.grpc.codec import request_reader
from protocols.grpc.rpcs.request_context import open_context
from protocols.grpc.service.service import MessagingService
from protocols.schemes import make_adapter
from tests.support.waiting import PATIENCE_S, until

SERVICE = "/apache.rocketmq.v2.MessagingService/"
LONG_MS = int(2.5 * PATIENCE_S) * 1000
"""A wait of this length does not end by itself while anybody has patience: something else ended it."""
FOR_LONG = Limits(max_wait_s=LONG_MS / 1000)


class Gateway:
    """One replica: a processor and a gRPC door on a broker that it may share with others."""

    def __init__(self, broker: EmbeddedBroker, clock: Any, limits: Limits, **adapter_context: Any) -> None:
        self.broker = broker
        self.clock = clock
        policies = adapter_context.pop("policies", None)
        self.processor = MessagingProcessor(broker, clock=clock, limits=limits, policies=policies)
        listen = adapter_context.pop("listen", "grpc://127.0.0.1:0")
        self.adapter = make_adapter(
            parse_listen(listen), AdapterContext(self.processor, clock, **adapter_context)
        )
        self.stopped = False

    async def start(self) -> None:
        await self.processor.start()
        await self.adapter.start()
        self.address = self.adapter.addresses[0].removeprefix("grpc://")
        self.port = int(self.address.rpartition(":")[2])

    async def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            await self.adapter.stop()
            await self.processor.stop()

    async def pass_s(self, seconds: float) -> None:
        """Let time pass, and let what became due be done."""
        self.clock.advance(seconds)
        for _ in range(20):
            await asyncio.sleep(0)
            self.clock.advance(0)


class GivenCall:
    """A call whose deadline is given in seconds, however long anything takes; its answers are kept here.

    It has no connection: the service is asked directly.
    """

    peer = "127.0.0.1:40404"
    local = "127.0.0.1:8081"
    names = ()

    def __init__(self, headers: dict[str, str], answer: Any, remaining: float | None) -> None:
        self._headers, self._answer, self._remaining = headers, answer, remaining
        self.frames: list[Any] = []

    def header(self, name: str) -> str:
        return self._headers.get(name, "")

    def time_remaining(self) -> float | None:
        return self._remaining

    async def write(self, answer: Any) -> None:
        self.frames.append(answer)

    async def write_bytes(self, answer: bytes) -> None:
        self.frames.append(self._answer.FromString(answer))

    def write_at_once(self, answers: Sequence[bytes]) -> int:
        self.frames += map(self._answer.FromString, answers)
        return len(answers)


class Client:
    """Sends requests as they are told; knows no settings and tries nothing again."""

    def __init__(self, channel: grpc.aio.Channel, port: int, **headers: str) -> None:
        self.channel = channel
        self.port = port
        self.headers = {"x-mq-client-id": "client-1", "x-mq-language": "JAVA", "x-mq-client-version": "5.2.0"}
        self.headers |= {f"x-mq-{name.replace('_', '-')}": value for name, value in headers.items()}

    def like(self, **headers: str) -> Client:
        """Another client on the same connection."""
        other = Client(self.channel, self.port)
        other.headers = self.headers | {f"x-mq-{n.replace('_', '-')}": v for n, v in headers.items()}
        return other

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return tuple(self.headers.items())

    @property
    def endpoints(self) -> pb.Endpoints:
        return pb.Endpoints(
            scheme=pb.AddressScheme.IPv4, addresses=[pb.Address(host="127.0.0.1", port=self.port)]
        )

    async def call(self, name: str, request: Any, timeout: float | None = PATIENCE_S) -> Any:
        answer = getattr(rpc, f"{name}Response")
        method = self.channel.unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await method(request, metadata=self.metadata, timeout=timeout)

    def stream(self, request: Any, timeout: float | None = PATIENCE_S) -> Any:
        """The elements of a ReceiveMessage or PullMessage, by the kind of its request."""
        name = type(request).__name__.removesuffix("Request")
        method = self.channel.unary_stream(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(rpc, f"{name}Response").FromString,
        )
        return method(request, metadata=self.metadata, timeout=timeout)

    def telemetry(self, timeout: float | None = None) -> Any:
        method = self.channel.stream_stream(
            SERVICE + "Telemetry",
            request_serializer=rpc.TelemetryCommand.SerializeToString,
            response_deserializer=rpc.TelemetryCommand.FromString,
        )
        return method(metadata=self.metadata, timeout=timeout)

    def message(self, topic: str = "t", body: bytes = b"hello", **system: Any) -> pb.Message:
        properties = system.pop("properties", {})
        system.setdefault("message_id", make_message_id())
        return pb.Message(
            topic=pb.Resource(name=topic),
            body=body,
            user_properties=properties,
            system_properties=pb.SystemProperties(**system),
        )

    async def send(self, *messages: pb.Message) -> rpc.SendMessageResponse:
        return await self.call("SendMessage", rpc.SendMessageRequest(messages=messages))

    async def send_one(self, topic: str = "t", body: bytes = b"hello", **system: Any) -> rpc.SendResultEntry:
        answer = await self.send(self.message(topic, body, **system))
        assert answer.status.code == pb.Code.OK, answer
        return answer.entries[0]

    def receive_request(
        self, topic: str = "t", group: str = "g", *, wait_ms: int | None = 0, **fields: Any
    ) -> rpc.ReceiveMessageRequest:
        expression = fields.pop("expression", "*")
        kind = fields.pop("filter", pb.FilterType.TAG)
        if not fields.get("auto_renew"):
            fields.setdefault("invisible_duration", Duration(seconds=30))
        if wait_ms is not None:
            fields["long_polling_timeout"] = Duration(seconds=wait_ms // 1000, nanos=wait_ms % 1000 * 10**6)
        fields.setdefault("batch_size", 32)
        return rpc.ReceiveMessageRequest(
            group=pb.Resource(name=group),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), id=-1),
            filter_expression=pb.FilterExpression(type=kind, expression=expression),
            **fields,
        )

    async def frames(self, topic: str = "t", group: str = "g", **fields: Any) -> list[Any]:
        """The elements of one receive, in order."""
        timeout = fields.pop("timeout", PATIENCE_S)
        request = self.receive_request(topic, group, **fields)
        return [frame async for frame in self.stream(request, timeout)]

    async def receive(self, topic: str = "t", group: str = "g", **fields: Any) -> list[pb.Message]:
        """The messages of one receive; it must end well."""
        frames = await self.frames(topic, group, **fields)
        assert frames[0].status.code in (pb.Code.OK, pb.Code.MESSAGE_NOT_FOUND), frames
        return [frame.message for frame in frames if frame.WhichOneof("content") == "message"]

    async def receive_status(self, topic: str = "t", group: str = "g", **fields: Any) -> int:
        frames = await self.frames(topic, group, **fields)
        return next(frame.status.code for frame in frames if frame.WhichOneof("content") == "status")

    def queue(self, topic: str = "t", queue_id: int = 0, broker: str = "popgate") -> pb.MessageQueue:
        return pb.MessageQueue(topic=pb.Resource(name=topic), id=queue_id, broker=pb.Broker(name=broker))

    def pull_request(
        self, offset: int = 0, *, group: str = "g", wait_ms: int | None = None, **fields: Any
    ) -> rpc.PullMessageRequest:
        where = {name: fields.pop(name) for name in ("topic", "queue_id", "broker") if name in fields}
        expression, kind = fields.pop("expression", "*"), fields.pop("filter", pb.FilterType.TAG)
        if wait_ms is not None:
            fields["long_polling_timeout"] = Duration(seconds=wait_ms // 1000, nanos=wait_ms % 1000 * 10**6)
        return rpc.PullMessageRequest(
            group=pb.Resource(name=group),
            message_queue=fields.pop("message_queue", None) or self.queue(**where),
            offset=offset,
            filter_expression=pb.FilterExpression(type=kind, expression=expression),
            **fields,
        )

    async def pull(self, offset: int = 0, **fields: Any) -> list[Any]:
        """The elements of one pull, in order."""
        timeout = fields.pop("timeout", PATIENCE_S)
        return [frame async for frame in self.stream(self.pull_request(offset, **fields), timeout)]

    async def frames_within(self, gateway: Gateway, remaining: float | None, request: Any) -> list[Any]:
        """The elements of a receive or a pull whose deadline is in so many seconds of the gateway's time."""
        kind = type(request).__name__.removesuffix("Request")
        call = GivenCall(self.headers, getattr(rpc, f"{kind}Response"), remaining)
        service = MessagingService(gateway.processor, gateway.clock)
        serve = service.receive_message if kind == "ReceiveMessage" else service.pull_message
        await serve(request, open_context(call, gateway.clock.monotonic()), call)
        return call.frames

    async def ack(
        self, *handles: str, topic: str = "t", group: str = "g", message_id: str = ""
    ) -> rpc.AckMessageResponse:
        entries = [rpc.AckMessageEntry(message_id=message_id, receipt_handle=handle) for handle in handles]
        return await self.call(
            "AckMessage",
            rpc.AckMessageRequest(
                topic=pb.Resource(name=topic), group=pb.Resource(name=group), entries=entries
            ),
        )

    async def change(
        self, handle: str, seconds: float, topic: str = "t", group: str = "g"
    ) -> rpc.ChangeInvisibleDurationResponse:
        request = rpc.ChangeInvisibleDurationRequest(
            topic=pb.Resource(name=topic),
            group=pb.Resource(name=group),
            receipt_handle=handle,
            invisible_duration=Duration(seconds=int(seconds), nanos=int(seconds % 1 * 10**9)),
        )
        return await self.call("ChangeInvisibleDuration", request)

    async def route(self, topic: str = "t", endpoints: pb.Endpoints | None = None) -> rpc.QueryRouteResponse:
        request = rpc.QueryRouteRequest(
            topic=pb.Resource(name=topic), endpoints=self.endpoints if endpoints is None else endpoints
        )
        return await self.call("QueryRoute", request)

    async def end(
        self, entry: rpc.SendResultEntry, resolution: int = pb.COMMIT, source: int = 1, topic: str = "t"
    ) -> int:
        request = rpc.EndTransactionRequest(
            topic=pb.Resource(name=topic),
            message_id=entry.message_id,
            transaction_id=entry.transaction_id,
            resolution=resolution,
            source=source,
        )
        return (await self.call("EndTransaction", request)).status.code

    async def introduce(self, settings: pb.Settings) -> Any:
        """Open a telemetry stream and get the settings answered; the stream stays open."""
        stream = self.telemetry()
        await stream.write(rpc.TelemetryCommand(settings=settings))
        answer = await stream.read()
        assert answer.status.code == pb.Code.OK, answer
        stream.settings = answer.settings
        return stream

    def producing(self, *topics: str) -> pb.Settings:
        return pb.Settings(
            client_type=pb.PRODUCER,
            publishing=pb.Publishing(topics=[pb.Resource(name=t) for t in topics or ("t",)]),
        )

    def subscribing(self, kind: int = pb.PUSH_CONSUMER, topic: str = "t", group: str = "g") -> pb.Settings:
        entry = pb.SubscriptionEntry(
            topic=pb.Resource(name=topic),
            expression=pb.FilterExpression(type=pb.FilterType.TAG, expression="*"),
        )
        return pb.Settings(
            client_type=kind,
            subscription=pb.Subscription(group=pb.Resource(name=group), subscriptions=[entry]),
        )


class Town:
    """Makes brokers, gateways and clients, and takes them down again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._brokers: list[EmbeddedBroker] = []
        self.gateways: list[Gateway] = []
        self._channels: list[grpc.aio.Channel] = []
        self.until = until
        self.for_long, self.long_ms = FOR_LONG, LONG_MS

    async def gateway(
        self,
        *,
        limits: Limits | None = None,
        real_time: bool = False,
        beside: Gateway | None = None,
        **more: Any,
    ) -> Gateway:
        """A started gateway; `beside` another one it shares that one's broker and clock."""
        if beside is None:
            clock = SystemClock() if real_time else MovableClock(now_ms=time.time_ns() // 1_000_000)
            path = self._path / f"broker-{len(self._brokers)}"
            broker = EmbeddedBroker(path, clock=clock, durability=Durability.NONE)
            await broker.start()
            self._brokers.append(broker)
        else:
            broker, clock = beside.broker, beside.clock
        gateway = Gateway(broker, clock, limits if limits is not None else Limits(), **more)
        self.gateways.append(gateway)
        await gateway.start()
        return gateway

    def client(self, gateway: Gateway, **headers: str) -> Client:
        """A client with a connection of its own."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        channel = grpc.aio.insecure_channel(gateway.address, options=options)
        self._channels.append(channel)
        return Client(channel, gateway.port, **headers)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)
        for gateway in self.gateways:
            await gateway.stop()
        for broker in self._brokers:
            await broker.stop()


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    town = Town(tmp_path)
    yield town
    await town.close()


@pytest.fixture(params=[False, True], ids=["by the library", "plain"])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways that start afterwards read ordinary requests with protobuf's library, or without."""
    if is_compiled() and not request.param:
        pytest.skip("the compiled form reads them without it")
    monkeypatch.setattr(request_reader, "READS_PLAIN", request.param)


@pytest.fixture
async def gateway(town: Town) -> Gateway:
    return await town.gateway()


@pytest.fixture
async def client(town: Town, gateway: Gateway) -> Client:
    return town.client(gateway)
