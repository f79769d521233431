"""Peers that mean harm, on sockets: what they cost is bounded, counted, and gone with them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from popgate.testing import frames
from popgate.testing.frames import PREFACE, framed, settings, split, whole_and_rest
from popgate.testing.papers import Papers
from popgate.wire.frames.contract import TLS_FIRST
from protocols import entrances
from protocols.eager_tasks import EagerTask
from protocols.grpc.http2 import grpc_wire
from protocols.grpc.http2.compression import packed, unpacked
from protocols.grpc.http2.events import Shape
from protocols.grpc.http2.frames.codes import ErrorCode, Http2Error
from protocols.grpc.http2.frames.limits import LONGEST_REST_S, Http2Limits, InflationBudget
from protocols.grpc.http2.grpc_wire import GrpcWire
from protocols.grpc.http2.hpack.decoder import encode_fields
from protocols.grpc.servers.http2_calls import Http2Call
from protocols.grpc.servers.http2_connections import Http2Connection
from protocols.grpc.servers.http2_server import Http2Server
from protocols.tls import Certificate
from tests.support.waiting import PATIENCE_S, until

HELLO = PREFACE + settings()


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


def block(path: str) -> bytes:
    return encode_fields(
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ]
    )


def call(number: int, path: str = "/echo", message: bytes = b"hello") -> bytes:
    return frames.headers(number, block(path)) + frames.data(number, framed(message), end=True)


class Seen:
    """A `ConnectionObserver`."""

    def __init__(self) -> None:
        self.open = self.open_calls = self.refused = self.streams = 0
        self.crowded = self.shaking = self.failed = 0
        self.kinds: list[str] = []

    def opened(self) -> None:
        self.open += 1

    def closed(self) -> None:
        self.open -= 1

    def calls(self, more: int) -> None:
        self.open_calls += more

    def turned_away(self) -> None:
        self.refused += 1

    def crowded_out(self) -> None:
        self.crowded += 1

    def handshakes(self, more: int) -> None:
        self.shaking += more

    def handshake_failed(self) -> None:
        self.failed += 1

    def violated(self, kind: str, count: int) -> None:
        self.kinds += [kind] * count

    def streams_refused(self, count: int) -> None:
        self.streams += count


class Site:
    """A server of three methods: one answers what it is told, one with much, one never."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.begun = self.ended = 0
        self.much = bytes(1 << 20)
        self.servers: list[Http2Server] = []
        self.peers: list[Peer] = []

    async def start(
        self,
        *,
        max_connections: int = 100,
        max_per_address: int = 0,
        tls: Callable[[], ssl.SSLContext] | None = None,
        handshake_s: float = 60.0,
        **limits: Any,
    ) -> Http2Server:
        server = Http2Server(
            object(),  # type: ignore[arg-type]
            "127.0.0.1",
            0,
            limits=Http2Limits(**limits),
            max_connections=max_connections,
            max_per_address=max_per_address,
            tls=tls,
            handshake_s=handshake_s,
            observer=self.seen,
        )
        serves = {"/echo": self._echo, "/much": self._much, "/never": self._never}
        for path, serve in serves.items():
            server.add(path, Shape.ONE, self._counting(serve))
        server.add("/telemetry", Shape.MANY, self._counting(self._never))
        await server.start()
        self.servers.append(server)
        return server

    def _counting(
        self, serve: Callable[[Http2Call, bytes], Coroutine[Any, Any, None]]
    ) -> Callable[[Http2Call, bytes], Coroutine[Any, Any, None]]:
        async def counting(one: Http2Call, message: bytes) -> None:
            self.begun += 1
            try:
                await serve(one, message)
            finally:
                self.ended += 1

        return counting

    async def _echo(self, one: Http2Call, message: bytes) -> None:
        one.answer(message)

    async def _much(self, one: Http2Call, message: bytes) -> None:
        for _ in range(message[0]):
            await one.write_bytes(self.much)
        one.finish()

    async def _never(self, one: Http2Call, _: bytes) -> None:
        await asyncio.get_running_loop().create_future()

    async def dial(self, server: Http2Server, said: bytes = HELLO) -> Peer:
        peer = Peer()
        self.peers.append(peer)
        await peer.dial(server.port)
        await peer.say(said)
        return peer


class Peer:
    """A socket whose system keeps little of what it does not read."""

    def __init__(self) -> None:
        self.link = socket.socket()
        self.link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.link.setblocking(False)
        self.got = bytearray()

    async def dial(self, port: int) -> None:
        await asyncio.get_running_loop().sock_connect(self.link, ("127.0.0.1", port))

    async def say(self, said: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.link, said)

    async def hear(self) -> bool:
        """Some of what the server says. False: it says no more."""
        try:
            some = await asyncio.wait_for(
                asyncio.get_running_loop().sock_recv(self.link, 1 << 20), PATIENCE_S
            )
        except ConnectionResetError:
            return False
        self.got += some
        return bool(some)

    async def hear_out(self) -> None:
        while await self.hear():
            pass


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    yield site
    for peer in site.peers:
        peer.link.close()
    for server in site.servers:
        await server.stop()
    await until(lambda: not any(server.connections for server in site.servers))
    assert (site.seen.open, site.seen.open_calls) == (0, 0)
    await until(lambda: site.begun == site.ended)


def only(server: Http2Server) -> Http2Connection:
    (connection,) = server.connections
    return connection


def unsent(connection: Http2Connection) -> int:
    """Bytes of answers that the gateway holds."""
    assert connection.transport is not None
    return sum(map(len, connection.wire._out)) + connection.transport.get_write_buffer_size()


# -- who does not read ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/echo", "/nothing"])
async def test_who_pipelines_calls_and_reads_nothing_is_not_read_any_more(site: Site, path: str) -> None:
    """100,000 calls: what was read of them is answered, and held; the rest waits at the client."""
    server = await site.start(max_streams=1_000_000)
    peer = await site.dial(server, HELLO + frames.window_update(0, 1 << 30))
    said = b"".join(call(number, path) for number in range(1, 200_001, 2))
    saying = asyncio.ensure_future(peer.say(said))
    await until(lambda: server.connections and only(server)._reading is False)
    connection = only(server)
    assert unsent(connection) < 2 << 20
    assert len(connection.wire.streams) <= 1, "one that is read to the half"

    count = 0
    rest = b""
    while count < 100_000:
        assert await peer.hear()
        whole, rest = whole_and_rest(rest + bytes(peer.got))
        peer.got.clear()
        count += sum(kind == "HEADERS" and flags & 1 for kind, flags, *_ in split(whole))
        assert unsent(connection) < 2 << 20
    await saying
    assert count == 100_000
    assert site.seen.kinds == []


async def test_pings_of_who_does_not_read_are_not_read_either(site: Site) -> None:
    server = await site.start()
    peer = await site.dial(server)
    await peer.say(settings({4: 1 << 30}) + frames.window_update(0, 1 << 30) + call(1, "/much", b"\x20"))
    await until(lambda: server.connections and only(server).paused)
    connection = only(server)
    await peer.say(frames.ping() * 500)
    await until(lambda: not connection._reading)
    assert len(connection.wire._out) <= 2 * 500 + 4
    assert unsent(connection) < 4 << 20, "of 32 MB that the call has to say"
    assert (site.begun, site.ended, connection.wire.streams.keys()) == (1, 0, {1})


async def test_who_takes_nothing_of_what_is_written_is_cut_off(site: Site) -> None:
    server = await site.start(slow_s=60.0, ping_s=5.0)
    peer = await site.dial(server)
    await peer.say(settings({4: 1 << 30}) + frames.window_update(0, 1 << 30) + call(1, "/much", b"\x40"))
    await until(lambda: server.connections and only(server).paused)
    connection = only(server)
    now = asyncio.get_running_loop().time()
    for second in range(59):
        connection.tick(now + second)
    assert connection.transport is not None, "it is not silent: nobody listens to it"
    connection.tick(now + 61)
    await until(lambda: not server.connections and site.ended)
    assert site.seen.kinds == ["answers_unread"]
    assert (site.begun, site.ended) == (1, 1)


async def test_who_takes_it_slowly_is_borne(site: Site) -> None:
    server = await site.start(slow_s=60.0)
    peer = await site.dial(server)
    site.much = bytes(40 << 20)
    await peer.say(settings({4: 1 << 30}) + frames.window_update(0, 1 << 30) + call(1, "/much", b"\x01"))
    await until(lambda: server.connections and only(server).paused)
    connection = only(server)
    now = asyncio.get_running_loop().time()
    for minute in range(10):  # the system takes up to 3 MB at a time
        await until(lambda: connection.paused)
        # The server looks by itself each second, and notes the real time, long before that of this test:
        # only what was taken since it looked last is progress.
        while connection.paused and connection._unread - connection._written() < 70_000:
            assert await peer.hear()
        connection.tick(now + 50 * minute)
        assert connection.transport is not None, f"cut after {50 * minute} s"
    assert site.seen.kinds == []


def unpaused(transport: Any, data: list[bytes]) -> None:
    """As `writelines` of asyncio's own sockets since Python 3.12."""
    transport._maybe_pause_protocol = lambda: None
    transport.write(b"".join(data))
    del transport._maybe_pause_protocol


async def test_who_breaks_the_rules_before_much_is_written_does_not_linger(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers are written with the reason of the end, and closing waits until it has read them."""
    server = await site.start(slow_s=60.0)
    await site.dial(server, HELLO)
    await until(lambda: bool(server.connections))
    connection = only(server)
    monkeypatch.setattr(type(connection.transport), "writelines", unpaused, raising=False)
    connection.wire._out.append(bytes(32 << 20))
    connection.on_nonsense(Http2Error("no frame", ErrorCode.PROTOCOL_ERROR))
    assert connection.paused
    connection.tick(asyncio.get_running_loop().time() + 61)
    await until(lambda: not server.connections)


async def test_who_breaks_the_rules_and_reads_nothing_does_not_linger(site: Site) -> None:
    server = await site.start(slow_s=60.0)
    peer = await site.dial(server)
    await peer.say(settings({4: 1 << 30}) + frames.window_update(0, 1 << 30) + call(1, "/much", b"\x20"))
    await until(lambda: server.connections and only(server).paused)
    await peer.say(frames.frame("PING", 1, bytes(8)))
    await until(lambda: site.seen.kinds == ["protocol"])
    connection = only(server)
    assert not connection.wire.streams
    now = asyncio.get_running_loop().time()
    connection.tick(now + 61)
    connection.tick(now + 122)
    await until(lambda: not server.connections)


async def test_calls_that_have_much_to_say_at_once_wait_for_each_other(site: Site) -> None:
    """All of them come in one piece, and nothing of their answers could be written in between."""
    server = await site.start()
    peer = await site.dial(server)
    calls = b"".join(call(number, "/much", b"\x20") for number in range(1, 201, 2))
    await peer.say(settings({4: 1 << 30}) + frames.window_update(0, 1 << 30) + calls)
    await until(lambda: site.begun == 100)
    await until(lambda: only(server).paused)
    assert unsent(only(server)) < 4 << 20
    assert site.ended == 0


# -- floods, and who vanishes ---------------------------------------------------------------------


async def test_a_flood_is_told_and_counted(site: Site) -> None:
    server = await site.start()
    peer = await site.dial(server)
    await peer.say(settings() * 200)
    await peer.hear_out()
    told = [payload for kind, _, _, payload in split(bytes(peer.got)) if kind == "GOAWAY"]
    assert [payload[4:8] for payload in told] == [bytes((0, 0, 0, 11))]
    await until(lambda: not server.connections)
    assert site.seen.kinds == ["settings"]


async def test_rapid_resets_begin_nothing(site: Site) -> None:
    server = await site.start()
    peer = await site.dial(server)
    said = b"".join(call(number, "/never") + frames.reset(number) for number in range(1, 1_001, 2))
    await peer.say(said + call(1_001))
    await until(lambda: site.ended >= 1)
    await until(lambda: not only(server).wire.streams)
    assert site.begun == site.ended < 100, "only those whose reset came later than they did"


@pytest.mark.parametrize("path", ["/never", "/telemetry"])
async def test_a_peer_that_vanishes_with_1000_open_calls_leaves_nothing(site: Site, path: str) -> None:
    server = await site.start()
    peer = await site.dial(server)
    await peer.say(b"".join(call(number, path) for number in range(1, 2_001, 2)))
    await until(lambda: site.begun == 1_000)
    tasks = asyncio.all_tasks()
    peer.link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.link.close()
    await until(lambda: not server.connections)
    await until(lambda: site.ended == 1_000)
    assert asyncio.all_tasks() <= tasks
    assert server._limits.holding.used == 0
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, EagerTask) and not one.done()]


async def test_half_open_connections_are_closed(site: Site) -> None:
    server = await site.start(greeting_s=10.0)
    for said in (b"", PREFACE[:5], PREFACE):
        await site.dial(server, said)
    await until(lambda: len(server.connections) == 3)
    now = asyncio.get_running_loop().time()
    for connection in tuple(server.connections):
        connection.tick(now)
        connection.tick(now + 11)
    await until(lambda: not server.connections)
    assert site.seen.kinds == ["greeting"] * 3


async def test_tls_where_it_is_off_is_told_once_for_each_address(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    server = await site.start()
    for said in (TLS_FIRST + b"\x01\x02\x00" + bytes(32), TLS_FIRST, b"GET / HTTP/1.1\r\n\r\n"):
        await site.dial(server, said)
    await until(lambda: len(site.seen.kinds) == 3)
    assert sorted(site.seen.kinds) == ["protocol", "tls", "tls"]
    assert caplog.text.count("127.0.0.1 speaks TLS at 127.0.0.1:") == 1


# -- inflating ------------------------------------------------------------------------------------


def packed_call(
    number: int, message: bytes, *, path: str = "/much", whole: bool = True, more: bytes = b""
) -> bytes:
    """A call whose message is compressed, in one frame."""
    head = encode_fields(
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("grpc-encoding", "gzip"),
        ]
    )
    data = packed(message)
    if not whole:
        data = data[:-8] + bytes(8)
    return frames.headers(number, head + more) + frames.data(
        number, b"\1" + len(data).to_bytes(4, "big") + data, end=True
    )


@pytest.mark.parametrize("whole", [True, False])
def test_what_comes_behind_much_that_was_inflated_is_kept_back(whole: bool) -> None:
    """Also when it is no gzip in the end."""
    wire = GrpcWire(Http2Limits(), {"/much": Shape.ONE})
    most = 4 * 1024 * 1024
    pieces = [packed_call(number, bytes(most), whole=whole) for number in range(1, 21, 2)]
    wire.receive(HELLO + b"".join(pieces))
    told = 0
    for turn in range(1, 11):
        assert 0 < wire.inflated <= most + 64 * 1024
        while wire.next_event() is not None:
            told += 1
        assert told == (turn if whole else 0)
        assert wire.streams or not whole
        wire.go_on()
    assert wire.inflated == 0
    assert (told, wire._rest) == (10 if whole else 0, b"")


def test_what_ends_badly_after_much_was_inflated_keeps_the_rest_back_too() -> None:
    """Its length is not the one that its headers told."""
    wire = GrpcWire(Http2Limits(), {"/much": Shape.ONE})
    most = 4 * 1024 * 1024
    length = encode_fields([("content-length", "1")])
    pieces = [packed_call(number, bytes(most), more=length) for number in range(1, 11, 2)]
    wire.receive(HELLO + b"".join(pieces))
    for _ in pieces:
        assert wire.inflated == most
        wire.go_on()
    assert (wire.inflated, wire.next_event(), wire.streams) == (0, None, {})


def test_little_that_is_inflated_keeps_nothing_back() -> None:
    wire = GrpcWire(Http2Limits(), {"/much": Shape.ONE})
    wire.receive(HELLO + b"".join(packed_call(number, bytes(1000)) for number in range(1, 200, 2)))
    events = 0
    while wire.next_event() is not None:
        events += 1
    assert (events, wire.inflated) == (100, 100_000)


def test_who_inflates_much_waits_until_it_is_paid_off_and_others_that_do_wait_behind() -> None:
    inflating = InflationBudget(rate=100)
    assert inflating.rest(50, 10.0) == 0.5
    assert inflating.rest(50, 10.0) == 1.0
    assert inflating.rest(50, 10.75) == 0.75
    assert inflating.rest(100, 20.0) == 1.0
    assert inflating.rest(10_000, 20.0) == LONGEST_REST_S
    assert inflating.rest(0, 20.0) == LONGEST_REST_S
    assert inflating.rest(100, 30.0) == 1.0


async def test_one_turn_of_the_loop_inflates_one_piece_and_neighbours_are_served(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await site.start()
    loop, turn, most = asyncio.get_running_loop(), 0, 4 * 1024 * 1024
    inflated: dict[int, int] = {}

    def counted(message: bytes, limit: int) -> bytes:
        found = unpacked(message, limit)
        inflated[turn] = inflated.get(turn, 0) + len(found)
        return found

    def count_turns() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count_turns)

    monkeypatch.setattr(grpc_wire, "unpacked", counted)
    loop.call_soon(count_turns)
    bomber, neighbour = await site.dial(server), await site.dial(server)
    await bomber.say(b"".join(packed_call(number, bytes(most), path="/echo") for number in range(1, 25, 2)))
    await until(lambda: len(inflated) >= 2)
    await neighbour.say(call(1))
    await neighbour.hear()
    assert len(inflated) < 12, "the neighbour waited until all was inflated"
    await until(lambda: site.ended == 13)
    assert max(inflated.values()) == most
    assert len(inflated) == 12


async def test_who_goes_while_it_rests_leaves_nothing_behind(site: Site) -> None:
    server = await site.start()
    bomber = await site.dial(server)
    await bomber.say(packed_call(1, bytes(4 << 20), path="/never"))
    await until(lambda: site.begun == 1)
    connection = only(server)
    assert connection._resting is not None
    connection.cut()
    await until(lambda: not server.connections)
    assert connection._resting is None


# -- too many -------------------------------------------------------------------------------------


async def test_connections_above_the_limit_are_closed_with_one_line_in_the_log(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    server = await site.start(max_connections=2)
    first, _ = await site.dial(server), await site.dial(server)
    await until(lambda: site.seen.open == 2)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            try:
                peer = await site.dial(server)
            except ConnectionError:
                continue
            await peer.hear_out()
    await until(lambda: site.seen.refused == 5)
    assert [record.getMessage().partition("connections.max")[1] for record in caplog.records] == [
        "connections.max"
    ]
    first.link.close()
    await until(lambda: site.seen.open == 1)
    peer = await site.dial(server)
    await peer.say(call(1))
    await until(lambda: site.ended == 1)


async def test_connections_above_the_limit_of_an_address_are_closed_and_others_are_not(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    server = await site.start(max_per_address=2)
    first, _ = await site.dial(server), await site.dial(server)
    await until(lambda: site.seen.open == 2)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with contextlib.suppress(ConnectionError):
                await (await site.dial(server)).hear_out()
    await until(lambda: site.seen.crowded == 3)
    assert len([one for one in caplog.records if "connections.max_per_address" in one.getMessage()]) == 1
    _, other = await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.2", 0))
    await until(lambda: site.seen.open == 3)
    other.close()
    first.link.close()
    await until(lambda: site.seen.open == 1)
    peer = await site.dial(server)
    await peer.say(call(1))
    await until(lambda: site.ended == 1)
    assert (site.seen.refused, server.admission.count) == (0, 2)


async def test_handshakes_under_way_count_as_connections_and_take_no_longer_than_they_may(
    site: Site, papers: Papers
) -> None:
    tls = Certificate(*papers.pair("gateway")).current
    server = await site.start(max_connections=2, tls=tls)
    silent = [await site.dial(server, b"") for _ in range(2)]
    await until(lambda: site.seen.shaking == 2)
    with contextlib.suppress(ConnectionError):
        await (await site.dial(server, b"")).hear_out()
    await until(lambda: site.seen.refused == 1)
    assert (site.seen.open, server.admission.count) == (0, 2)
    # One goes without a word, one says nonsense: both leave their places.
    silent[0].link.close()
    await silent[1].say(b"GET / HTTP/1.1\r\n\r\n")
    await until(lambda: site.seen.failed == 2 and not server.admission.count)
    assert (site.seen.shaking, server.admission.count) == (0, 0)
    context = ssl.create_default_context(cafile=papers.authority)
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    await until(lambda: site.seen.open == 1)
    assert (site.seen.shaking, server.admission.count) == (0, 1)
    writer.close()
    await until(lambda: server.admission.count == 0)
    slow = await site.start(tls=tls, handshake_s=0.05)
    await (await site.dial(slow, b"")).hear_out()
    await until(lambda: site.seen.failed == 3)
    assert slow.admission.count == 0


async def test_who_speaks_tls_but_not_http2_leaves_its_place(site: Site, papers: Papers) -> None:
    server = await site.start(tls=Certificate(*papers.pair("gateway")).current)
    context = ssl.create_default_context(cafile=papers.authority)
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        await reader.read()
        writer.close()
    await until(lambda: not server.admission.count and not site.seen.shaking)
    assert site.seen.open == 0


async def test_calls_above_the_limit_are_refused_and_counted(site: Site) -> None:
    server = await site.start(max_streams=10)
    peer = await site.dial(server)
    await peer.say(b"".join(call(number, "/never") for number in range(1, 41, 2)))
    await until(lambda: site.begun == 10)
    refused: list[int] = []
    while len(refused) < 10:
        assert await peer.hear()
        refused = [number for kind, _, number, _ in split(bytes(peer.got)) if kind == "RST_STREAM"]
    assert refused == list(range(21, 41, 2))
    only(server).tick(asyncio.get_running_loop().time())
    assert site.seen.streams == 10
    only(server).tick(asyncio.get_running_loop().time())
    assert site.seen.streams == 10


async def test_each_connection_has_its_tick_once_in_a_round_and_few_at_a_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await site.start()
    for _ in range(20):
        await site.dial(server, HELLO + call(1, "/never"))
    await until(lambda: site.begun == 20)
    assert server._ticking is not None
    server._ticking.cancel()
    ticked: list[Http2Connection] = []
    monkeypatch.setattr(Http2Connection, "tick", lambda connection, _now: ticked.append(connection))
    while server._part != 7:
        server._tick()
        server._ticking.cancel()
    ticked.clear()
    for part in range(8):
        server._tick()
        server._ticking.cancel()
        assert len(ticked) <= 3 * (part + 1)
    assert len(ticked) == 20
    assert set(ticked) == server.connections
    server._tick()
    assert site.seen.open_calls == 20


async def test_who_was_still_opening_when_the_drain_began_is_told_to_go_too(site: Site) -> None:
    """A handshake takes a while; who is not told keeps calling until it is cut off."""
    server = await site.start()
    first = await site.dial(server, HELLO + call(1, "/never"))
    await until(lambda: site.begun == 1)
    draining = asyncio.ensure_future(server.drain(PATIENCE_S))
    await asyncio.sleep(0)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    late = Peer()
    late.link.close()
    late.link = ours
    site.peers.append(late)
    await server.adopt(theirs)
    await late.say(HELLO + call(1))
    while not any(kind == 7 for kind in kinds(bytes(late.got))):
        assert await late.hear()
    assert kinds(bytes(late.got))[0] == 4  # SETTINGS go before all else
    await late.hear_out()
    assert b"hello" in late.got
    first.link.close()
    await asyncio.wait_for(draining, PATIENCE_S)


async def test_who_is_open_is_told_to_go_while_another_is_opening(
    site: Site, papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is told, a consumer polls on, and each of its polls is answered at once."""
    monkeypatch.setattr(entrances, "_MOMENT_S", 100 * PATIENCE_S)
    server = await site.start(tls=Certificate(*papers.pair("gateway")).current, handshake_s=100 * PATIENCE_S)
    await site.dial(server, b"")
    context = ssl.create_default_context(cafile=papers.authority)
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    writer.write(HELLO + call(1, "/never"))
    await until(lambda: site.begun == 1 and site.seen.shaking == 1)
    draining, heard = asyncio.ensure_future(server.drain(1000 * PATIENCE_S)), b""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while 7 not in kinds(heard):
                heard += await reader.read(1 << 16)
        assert (site.seen.shaking, draining.done()) == (1, False)
    finally:
        draining.cancel()
        writer.close()


def kinds(heard: bytes) -> list[int]:
    """Of the frames, in their order."""
    found, at = [], 0
    while at + 9 <= len(heard):
        found.append(heard[at + 3])
        at += 9 + int.from_bytes(heard[at : at + 3], "big")
    return found


async def test_who_was_just_accepted_when_the_server_stopped_is_closed(site: Site) -> None:
    server = await site.start()
    ours, theirs = socket.socketpair()
    await server.stop()
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    ours.setblocking(False)
    await server.adopt(ours)
    async with asyncio.timeout(PATIENCE_S):
        assert not await loop.sock_recv(theirs, 1)
    theirs.close()
    assert not server.connections
