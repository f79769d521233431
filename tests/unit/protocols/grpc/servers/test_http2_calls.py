"""One call of a connection, without sockets."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import hpack

from popgate.testing import frames
from protocols.grpc.http2.events import Opened, Roomy, Shape
from protocols.grpc.http2.frames.limits import Http2Limits
from protocols.grpc.http2.grpc_wire import GrpcWire
from protocols.grpc.servers.http2_calls import Http2Call
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

    def write_soon(self) -> None:
        pass

    def take_all(self) -> None:
        self.wire.receive(frames.window_update(1, 100_000))
        assert isinstance(self.wire.next_event(), Roomy)
        self.call.has_room()


async def test_who_writes_last_is_told_of_room_though_one_before_gave_up() -> None:
    """At the end of a Telemetry stream its last words are written while the one who wrote before gives up."""
    connection = Wireless()
    call, wire = connection.call, connection.wire
    before = asyncio.ensure_future(call.write_bytes(bytes(2 * ROOM)))
    await until(lambda: wire.waiting_bytes > 0)
    waiting = wire.waiting_bytes
    last = asyncio.ensure_future(call.write_bytes(b"last words"))
    # Cancelled after the other's first step, and before it takes a step of its own.
    connection.loop.call_soon(before.cancel)
    await until(lambda: wire.waiting_bytes > waiting and before.done())
    connection.take_all()
    await asyncio.wait_for(last, PATIENCE_S)
    assert before.cancelled()
