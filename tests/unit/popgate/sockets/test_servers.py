"""A server that is closed while somebody connects loses nobody it has accepted."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket

import pytest

from popgate.sockets.servers import close_server

TURNS = range(6)


class Guest(asyncio.Protocol):
    def __init__(self, there: list[asyncio.Transport]) -> None:
        self.there = there

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.there.append(transport)


@pytest.mark.parametrize("turns", TURNS)
async def test_who_was_accepted_in_the_last_moment_has_got_a_protocol_and_can_be_ended(turns: int) -> None:
    there: list[asyncio.Transport] = []
    server = await asyncio.get_running_loop().create_server(lambda: Guest(there), "127.0.0.1", 0)
    at = server.sockets[0].getsockname()
    with socket.create_connection(at) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        await close_server(server)
        # A socket that nobody has is closed with a warning, which fails this test.
        gc.collect()
        made = len(there)
        for transport in there:
            transport.abort()
        for _ in TURNS:
            await asyncio.sleep(0)
        gc.collect()
        assert len(there) == made
        client.settimeout(60)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(at)


async def test_a_server_may_be_closed_again() -> None:
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    await close_server(server)
    await close_server(server)
