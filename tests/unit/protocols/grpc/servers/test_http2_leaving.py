"""Connections that are told to close, under gRPC's own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import pytest

from protocols.grpc.http2.events import Shape
from protocols.grpc.servers.http2_calls import Http2Call
from protocols.grpc.servers.http2_server import Http2Server
from tests.support.waiting import until

METHOD = "/test/Streamed"
PIECE, PIECES = bytes(30_000), 32
"""Together what is held back at the most: the client is still reading when the last was written."""


class Nobody:
    """No call comes to it."""

    def leave(self, _task: asyncio.Task[Any]) -> None:
        pass


@pytest.fixture
async def server() -> AsyncIterator[Http2Server]:
    server = Http2Server(cast(Any, Nobody()), "127.0.0.1", 0)

    async def answer(call: Http2Call, _message: bytes) -> None:
        call.connection.leave(0.0)
        for _ in range(PIECES):
            await call.write_bytes(PIECE)
        call.finish()

    server.add(METHOD, Shape.ONE, answer)
    await server.start()
    yield server
    await server.stop()


async def call(server: Http2Server) -> int:
    """How many pieces came, of a call over a connection of its own, by a client that does not retry."""
    options = (
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", -1),
    )
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options) as channel:
        return len([piece async for piece in channel.unary_stream(METHOD)(b"asked", timeout=60)])


async def test_a_large_answer_is_read_to_its_end_when_its_connection_is_told_to_close(
    server: Http2Server,
) -> None:
    """A socket that is closed while its peer still writes discards what that has not read."""

    async def calls() -> list[int]:
        return [await call(server) for _ in range(50)]

    assert await asyncio.gather(*(calls() for _ in range(4))) == [[PIECES] * 50] * 4
    await until(lambda: not server.connections)
