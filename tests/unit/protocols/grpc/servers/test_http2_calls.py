"""One call of a connection, without sockets."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import hpack

from popgate.model import StoredMessage, TransactionCheck
from popgate.testing import frames
from protocols.grpc.http2.events import Opened, Roomy, Shape
from protocols.grpc.http2.frames.limits import Http2Limits
from protocols.grpc.http2.grpc_wire import GrpcWire
from protocols.grpc.pb import service_pb2 as rpc
from protocols.grpc.rpcs.dispatcher import RpcDispatcher
from protocols.grpc.rpcs.health import Health
from protocols.grpc.servers.http2_calls import Http2Call
from protocols.grpc.service.service import MessagingService
from tests.support.waiting import PATIENCE_S, until

INITIAL_WINDOW_SIZE, ROOM = 4, 1_000
HEADERS = [
    *((":method", "POST"), (":scheme", "http"), (":path", "/many"), (":authority", "here")),
    *(("content-type", "application/grpc"), ("te", "trailers"), ("x-mq-client-id", "c")),
]


class Wireless:
    """A connection, as far as a call needs one. Its client takes so many bytes, and all when it says so."""

    is_full = False
    transport = object()
    names = ()
    peer = local = "127.0.0.1:1"

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.wire = GrpcWire(Http2Limits(), {"/many": Shape.MANY})
        self.wire.receive(frames.PREFACE + frames.settings({INITIAL_WINDOW_SIZE: ROOM}))
        self.wire.receive(frames.headers(1, hpack.Encoder().encode(HEADERS)))
        opened = self.wire.next_event()
        assert isinstance(opened, Opened)
        self.call = Http2Call(cast(Any, self), opened.stream)
        self.call.parse = rpc.TelemetryCommand.FromString

    def write_soon(self) -> None:
        pass

    def take_all(self) -> None:
        self.wire.receive(frames.window_update(1, 100_000))
        assert isinstance(self.wire.next_event(), Roomy)
        self.call.has_room()


async def test_a_telemetry_stream_ends_also_when_commands_wait_that_are_written_no_more(
    client: Any, gateway: Any
) -> None:
    """Its last words are written while the one who wrote before them gives up."""
    connection = Wireless()
    call, wire, processor = connection.call, connection.wire, gateway.processor
    service = MessagingService(processor, gateway.clock)
    door = RpcDispatcher(service, Health([]), gateway.clock, None)
    stream = asyncio.ensure_future(door.telemetry(call, call))
    settings = rpc.TelemetryCommand(settings=client.producing()).SerializeToString()
    call.said(settings)
    await until(lambda: processor.clients.get("c") is not None)
    body = bytes(2 * ROOM)
    half = StoredMessage("t", "b", 0, 0, 0, 0, 0, 0, "1.1.1.1:1", 0, "1.1.1.1:1", body, b"")
    known = processor.clients.get("c")
    outbox = known.stream._outbox
    assert known.check_transaction(TransactionCheck("t", "t", "id", half, 0))
    await until(lambda: wire.waiting_bytes > 0)
    waiting = wire.waiting_bytes
    processor.budgets.add("others", "", processor.budgets.process_bytes)
    large = client.producing()
    large.user_agent.hostname = "h" * 100_000
    # Refused: the gateway has no room for more.
    call.said(rpc.TelemetryCommand(settings=large).SerializeToString())
    await until(lambda: wire.waiting_bytes > waiting and outbox._task is None)
    connection.take_all()
    await asyncio.wait_for(stream, PATIENCE_S)
