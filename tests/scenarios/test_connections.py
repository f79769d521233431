"""Scenario 9: a dead connection is noticed in seconds, by pings in both directions."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from popgate.pb.definition_pb2 import Code
from popgate.sockets.servers import close_server

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY = 4, 6, 7
ACK = 1
HOUR_S = 3_600.0
"""Between pings: no machine stands still for so long."""


class Raw:
    """An HTTP/2 connection by hand: frames out, frames in."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.buffer = b""
        self.socket.sendall(PREFACE + self.frame(SETTINGS, 0, b""))

    def close(self) -> None:
        self.socket.close()

    @staticmethod
    def frame(kind: int, flags: int, payload: bytes) -> bytes:
        return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + bytes(4) + payload

    def ping(self, number: int) -> None:
        self.socket.sendall(self.frame(PING, 0, struct.pack(">Q", number)))

    def read(self) -> tuple[int, int, bytes] | None:
        """(kind, flags, payload) of the next frame; None at the end of the connection."""
        while True:
            if len(self.buffer) >= 9:
                length = int.from_bytes(self.buffer[:3], "big")
                if len(self.buffer) >= 9 + length:
                    kind, flags, payload = self.buffer[3], self.buffer[4], self.buffer[9 : 9 + length]
                    self.buffer = self.buffer[9 + length :]
                    return kind, flags, payload
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                return None
            if not data:
                return None
            self.buffer += data


@pytest.fixture
def dial() -> Iterator[Any]:
    made: list[Raw] = []

    def connect(address: str) -> Raw:
        made.append(Raw(address))
        return made[-1]

    yield connect
    for raw in made:
        raw.close()


def ping_answered(raw: Any) -> int:
    """The number of the next ping that is answered."""
    while True:
        frame = raw.read()
        assert frame is not None, "the connection was closed"
        kind, flags, payload = frame
        assert kind != GOAWAY, payload
        if kind == PING and flags & ACK:
            return int(struct.unpack(">Q", payload)[0])


async def test_scenario_09_clients_may_ping_without_calls_as_often_as_they_like(
    world: Any, dial: Any
) -> None:
    """A client that pings every 10 s is far below this; gRPC servers allow 5 min by default."""
    gateway = await world.gateway()

    def ping_on_and_on() -> list[int]:
        raw = dial(gateway.address)
        answered: list[int] = []
        for number in range(60):
            raw.ping(number)
            answered.append(ping_answered(raw))
        return answered

    assert await asyncio.to_thread(ping_on_and_on) == list(range(60))
    assert (await world.client(gateway).send_one()).status.code == Code.OK


@pytest.mark.parametrize("seed", range(4))
async def test_scenario_09_pings_of_any_number_in_any_pieces_are_answered_in_order(
    world: Any, dial: Any, seed: int
) -> None:
    chance = random.Random(seed)
    gateway = await world.gateway(ping_s=HOUR_S)

    def ping_in_pieces() -> tuple[list[int], list[int]]:
        raws = [dial(gateway.address) for _ in range(chance.randint(2, 5))]
        asked: list[int] = []
        answered: list[int] = []
        for _ in range(12):
            raw = chance.choice(raws)
            numbers = [chance.getrandbits(64) for _ in range(chance.randint(1, 8))]
            data = b"".join(raw.frame(PING, 0, struct.pack(">Q", number)) for number in numbers)
            while data:  # pieces that no frame begins or ends with
                size = chance.randint(1, 40)
                raw.socket.sendall(data[:size])
                data = data[size:]
            asked += numbers
            answered += [ping_answered(raw) for _ in numbers]
        return asked, answered

    asked, answered = await asyncio.to_thread(ping_in_pieces)
    assert answered == asked
    assert (await world.client(gateway).send_one()).status.code == Code.OK


async def test_scenario_09_the_gateway_pings_and_gives_up_who_does_not_answer(world: Any, dial: Any) -> None:
    gateway = await world.gateway(ping_s=1.0)

    def say_nothing() -> list[int]:
        raw = dial(gateway.address)
        kinds = []
        deadline = time.monotonic() + 60
        while (frame := raw.read()) is not None:
            assert time.monotonic() < deadline, "the connection stays"
            kinds.append((frame[0], frame[1] & ACK))
        return kinds

    kinds = await asyncio.to_thread(say_nothing)
    assert (PING, 0) in kinds


async def test_scenario_09_who_answers_the_pings_stays_connected(world: Any, dial: Any) -> None:
    gateway = await world.gateway(ping_s=HOUR_S)

    def answer(times: int) -> int:
        raw = dial(gateway.address)
        answered = 0
        while answered < times:
            frame = raw.read()
            assert frame is not None, "the connection was closed"
            kind, flags, payload = frame
            if kind == PING and not flags & ACK:
                raw.socket.sendall(raw.frame(PING, ACK, payload))
                answered += 1
            elif kind == SETTINGS and not flags & ACK:
                raw.socket.sendall(raw.frame(SETTINGS, ACK, b""))
        return answered

    answering = asyncio.ensure_future(asyncio.to_thread(answer, 3))
    connections = gateway.adapter._server.connections
    await world.until(lambda: [one for one in connections if one.wire._has_greeted()])
    hours = Hours(world, gateway)
    while not answering.done():
        await hours.one_passes(dead=set())
        await asyncio.sleep(0.001)  # its thread needs the core
    assert await answering == 3
    assert len(connections) == 1


async def test_scenario_09_what_a_dead_client_held_is_free_again(world: Any, dial: Any) -> None:
    """Its machine is gone without a word: the pings tell, the stream ends, and its messages come back."""
    gateway = await world.gateway(ping_s=HOUR_S)
    client, other = world.client(gateway), world.client(gateway, client_id="client-2")
    relay = await _Relay.before(gateway)
    try:
        dead = world.dial(f"127.0.0.1:{relay.port}", gateway.port, client_id="dead")
        stream = await dead.introduce(dead.subscribing())
        await client.send_one()
        (message,) = await dead.receive(auto_renew=True)
        assert message.body == b"hello"
        relay.freeze()
        assert await other.receive() == []
        await Hours(world, gateway).pass_until_given_up(relay.ports)
        await world.until(lambda: not gateway.processor.clients.get("dead").alive)
        await gateway.pass_s(6)

        async def come() -> list[Any]:
            return await other.receive()

        (again,) = await world.until(come)
        assert again.body == b"hello"
        stream.cancel()
    finally:
        await relay.close()


@pytest.mark.parametrize("seed", range(3))
async def test_scenario_09_of_several_clients_what_the_dead_ones_held_is_free_again(
    world: Any, handle: Any, seed: int
) -> None:
    """Who dies, with how much in hand, and how much of it acknowledged before, is by seed."""
    chance = random.Random(seed)
    gateway = await world.gateway(ping_s=HOUR_S)
    client = world.client(gateway)
    streams, lost, kept, done = [], set[bytes](), set[bytes](), set[bytes]()
    names = [f"client-{n}" for n in range(chance.randint(2, 4))]
    dying = chance.sample(names, chance.randint(1, len(names)))
    relays: dict[str, _Relay] = {}
    try:
        for name in names:
            relays[name] = relay = await _Relay.before(gateway)
            one = world.dial(f"127.0.0.1:{relay.port}", gateway.port, client_id=name)
            streams.append(await one.introduce(one.subscribing()))
            for n in range(chance.randint(1, 5)):
                await client.send_one(body=f"{name}-{n}".encode())
            for message in await one.receive(auto_renew=True):
                if chance.random() < 0.3:
                    assert (await one.ack(handle(message))).status.code == Code.OK
                    done.add(message.body)
                else:
                    (lost if name in dying else kept).add(message.body)
        for name in dying:
            relays[name].freeze()
        await Hours(world, gateway).pass_until_given_up(
            {port for name in dying for port in relays[name].ports}
        )
        for name in names:
            if name in dying:
                await world.until(lambda name=name: not gateway.processor.clients.get(name).alive)
            else:
                assert gateway.processor.clients.get(name).alive
        await gateway.pass_s(6)
        came: set[bytes] = set()

        async def all_came() -> bool:
            came.update(message.body for message in await client.receive())
            return lost <= came

        await world.until(all_came)
        assert not came & (done | kept)
        for stream in streams:
            stream.cancel()
    finally:
        for relay in relays.values():
            await relay.close()


class Hours:
    """They pass for the connections that a gateway has now, when a test says so.

    Who lives answers every ping before more time passes, however long that takes.
    """

    def __init__(self, world: Any, gateway: Any) -> None:
        self._world = world
        self._connections = gateway.adapter._server.connections
        self._port_of = {one: one.transport.get_extra_info("peername")[1] for one in self._connections}
        self._now = asyncio.get_running_loop().time()

    async def one_passes(self, *, dead: set[int]) -> bool:
        """Whether those that live are the only ones left, without the ones from the ports of the dead."""
        living = {one for one, port in self._port_of.items() if port not in dead}
        assert len(living) == len(self._port_of) - len(dead)
        self._now += HOUR_S
        for one in tuple(self._connections):
            one.tick(self._now)
        await self._world.until(lambda: all(one.wire.heard or one.wire._asked_at is None for one in living))
        return bool(self._connections == living)

    async def pass_until_given_up(self, dead: set[int]) -> None:
        async def an_hour_passes() -> bool:
            return await self.one_passes(dead=dead)

        await self._world.until(an_hour_passes)


class _Relay:
    """Between a client and the gateway; frozen, it passes nothing on and closes nothing."""

    def __init__(self) -> None:
        self.port = 0
        self.ports: set[int] = set()
        """Of this side of its connections to the gateway."""
        self._frozen = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @classmethod
    async def before(cls, gateway: Any) -> _Relay:
        relay = cls()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            relay._writers += [writer, there_writer]
            relay.ports.add(there_writer.get_extra_info("sockname")[1])
            for one, other in ((reader, there_writer), (there_reader, writer)):
                task = asyncio.ensure_future(relay._pass_on(one, other))
                relay._tasks.add(task)

        relay._server = await asyncio.start_server(accept, "127.0.0.1", 0)
        relay.port = relay._server.sockets[0].getsockname()[1]
        return relay

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self._frozen.is_set():
                continue
            writer.write(data)

    def freeze(self) -> None:
        self._frozen.set()

    async def close(self) -> None:
        await close_server(self._server)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(w.wait_closed() for w in self._writers), return_exceptions=True)
