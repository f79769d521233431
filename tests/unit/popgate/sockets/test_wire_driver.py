"""popgate.sockets.wire_driver: a wire on a transport."""

from __future__ import annotations

import asyncio

import pytest

from popgate.errors import PeerWireError
from popgate.sockets.wire_driver import WireDriver
from tests.support.waiting import until


class Lines:
    """A wire of lines; `bad` is nonsense."""

    def __init__(self) -> None:
        self.data = b""
        self.out: list[bytes] = []

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        self.data += bytes(data)

    def next_event(self) -> bytes | None:
        line, end, rest = self.data.partition(b"\n")
        if not end:
            return None
        self.data = rest
        if line == b"bad":
            raise PeerWireError("bad")
        return line

    def data_to_send(self) -> list[bytes]:
        out, self.out = self.out, []
        return out


class Side(WireDriver[Lines, bytes]):
    def __init__(self) -> None:
        self.lines = Lines()
        super().__init__(self.lines, asyncio.get_running_loop())
        self.told: list[bytes] = []
        self.writes = 0
        self.gone = self.loop.create_future()

    def on_event(self, event: bytes) -> None:
        self.told.append(event)

    def on_gone(self, error: BaseException | None) -> None:
        self.gone.set_result(error)

    def outgoing(self) -> list[bytes]:
        out = super().outgoing()
        self.writes += bool(out)
        return out

    def say(self, *lines: bytes) -> None:
        for line in lines:
            self.lines.out.append(line + b"\n")
            self.write_soon()


async def both() -> tuple[Side, Side, asyncio.Server]:
    loop = asyncio.get_running_loop()
    met = loop.create_future()

    def accept() -> Side:
        side = Side()
        met.set_result(side)
        return side

    server = await loop.create_server(accept, "127.0.0.1", 0)
    near = Side()
    # Said before there is a connection: it goes out when there is one.
    near.say(b"early")
    await loop.create_connection(lambda: near, *server.sockets[0].getsockname())
    return near, await met, server


async def until_told(side: Side, count: int) -> None:
    await until(lambda: len(side.told) >= count, pause_s=0.0)


async def test_what_is_said_in_a_turn_goes_out_in_one_write() -> None:
    near, far, server = await both()
    await until_told(far, 1)
    assert far.told == [b"early"]
    before = near.writes
    near.say(*(b"%d" % one for one in range(100)))
    await until_told(far, 101)
    assert near.writes - before == 1
    far.say(b"back")
    await until_told(near, 1)
    near.cut()
    await far.gone
    await near.gone
    server.close()
    near.say(b"late")
    near.cut()


async def test_nothing_is_handed_over_while_the_other_side_does_not_read() -> None:
    near, far, server = await both()
    await until_told(far, 1)
    assert far.transport is not None
    far.transport.pause_reading()
    async with asyncio.timeout(60):
        while not near.paused:
            near.say(bytes(1 << 20))
            await asyncio.sleep(0)
    writes = near.writes
    near.say(b"waits", b"waits")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert near.writes == writes
    assert len(near.lines.out) == 2
    far.transport.resume_reading()
    async with asyncio.timeout(60):
        while far.told[-1] != b"waits":
            await asyncio.sleep(0)
    far.cut()
    await near.gone
    await far.gone
    server.close()


async def test_nonsense_ends_the_connection() -> None:
    near, far, server = await both()
    far.say(b"fine", b"bad", b"more")
    await near.gone
    assert near.told == [b"fine"]
    await far.gone
    server.close()


async def test_a_driver_must_say_what_events_mean() -> None:
    driver: WireDriver[Lines, bytes] = WireDriver(Lines(), asyncio.get_running_loop())
    with pytest.raises(TypeError, match="WireDriver does not say"):
        driver.on_event(b"x")
