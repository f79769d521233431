"""Connections in memory behave as those of the system do, but for the time that they take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from popgate.sockets.servers import close_server
from tests.support.memory_network import ROOM, MemoryNetwork, MemoryTransport


class Taking(asyncio.BufferedProtocol):
    """Keeps what comes, and what it is told."""

    def __init__(self, room: int = 1_000) -> None:
        self.room = bytearray(room)
        self.got = b""
        self.told: list[str] = []
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, MemoryTransport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.room)

    def buffer_updated(self, nbytes: int) -> None:
        self.got += self.room[:nbytes]

    def eof_received(self) -> bool:
        self.told.append("end")
        return False

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, error: BaseException | None) -> None:
        self.told.append(f"lost {error}")


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork()


@pytest.fixture
async def server(network: MemoryNetwork) -> AsyncIterator[tuple[int, list[Taking]]]:
    loop = asyncio.get_running_loop()
    network.serve(loop)
    accepted: list[Taking] = []

    def accept() -> Taking:
        accepted.append(Taking())
        return accepted[-1]

    made = await loop.create_server(accept, "127.0.0.1", 0)
    yield made.sockets[0].getsockname()[1], accepted
    await close_server(made)


async def connected(network: MemoryNetwork, port: int) -> Taking:
    _, ours = await asyncio.get_running_loop().create_connection(Taking, "127.0.0.1", port)
    await settled(network)
    return ours


async def settled(network: MemoryNetwork) -> None:
    await network.turn(lambda: asyncio.sleep(0))


async def test_what_is_written_comes_in_order_and_then_the_end(
    network: MemoryNetwork, server: tuple[int, list[Taking]]
) -> None:
    port, accepted = server
    ours = await connected(network, port)
    assert ours.transport is not None
    words = bytes(range(256)) * 20
    ours.transport.write(words[:1])
    ours.transport.writelines([words[1:100], words[100:]])
    ours.transport.write_eof()
    ours.transport.write(b"too late")
    await settled(network)
    (theirs,) = accepted
    assert theirs.got == words
    assert theirs.told == ["end", "lost None"]
    assert ours.told == ["end", "lost None"]


async def test_who_writes_to_one_that_does_not_read_is_told_to_pause(
    network: MemoryNetwork, server: tuple[int, list[Taking]]
) -> None:
    port, accepted = server
    ours = await connected(network, port)
    (theirs,) = accepted
    assert ours.transport is not None
    assert theirs.transport is not None
    theirs.transport.pause_reading()
    ours.transport.write(bytes(ROOM + 1))
    await settled(network)
    assert (ours.told, theirs.got) == (["pause"], b"")
    theirs.transport.resume_reading()
    await settled(network)
    assert (ours.told, len(theirs.got)) == (["pause", "resume"], ROOM + 1)


async def test_one_that_is_cut_off_is_lost_on_both_sides(
    network: MemoryNetwork, server: tuple[int, list[Taking]]
) -> None:
    port, accepted = server
    ours = await connected(network, port)
    assert ours.transport is not None
    ours.transport.abort()
    await settled(network)
    assert ours.told == ["lost None"]
    assert accepted[0].told == ["end", "lost None"]


async def test_where_nobody_listens_any_more_is_refused_and_other_ports_are_the_systems(
    network: MemoryNetwork,
) -> None:
    loop = asyncio.get_running_loop()
    system = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    network.serve(loop)
    made = await loop.create_server(Taking, "127.0.0.1", 0)
    port = made.sockets[0].getsockname()[1]
    await close_server(made)
    with pytest.raises(ConnectionRefusedError):
        await loop.create_connection(Taking, "127.0.0.1", port)
    reader, writer = await asyncio.open_connection(*system.sockets[0].getsockname())
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    await close_server(system)
