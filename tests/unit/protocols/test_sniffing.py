"""protocols.sniffing: the first byte says what is spoken, and who says nothing or nonsense costs little."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from popgate.testing.papers import Papers
from protocols.observers import NullSniffing
from protocols.proxy_protocol import Proxied
from protocols.sniffing import Mark, SniffingEntrance
from protocols.tls import Certificate
from tests.support.waiting import PATIENCE_S, until

SOON_S = 0.05
"""What is waited for that never comes: nothing here is wrong when it is too short."""
V2 = (
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"
    + bytes((203, 0, 113, 7, 10, 0, 0, 1))
    + struct.pack(">HH", 5000, 80)
)
V1 = b"PROXY TCP4 203.0.113.7 10.0.0.1 5000 80\r\n"
TOLD = Proxied(("203.0.113.7", 5000), ("10.0.0.1", 80))


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


class Seen(NullSniffing):
    def __init__(self) -> None:
        self.open = 0
        self.shaking = 0
        self.failed = 0
        self.away = 0
        self.crowded = 0
        self.violations: Counter[str] = Counter()
        self.protocols: Counter[tuple[str, bool]] = Counter()

    def opened(self) -> None:
        self.open += 1

    def closed(self) -> None:
        self.open -= 1

    def handshakes(self, more: int) -> None:
        self.shaking += more

    def handshake_failed(self) -> None:
        self.failed += 1

    def turned_away(self) -> None:
        self.away += 1

    def crowded_out(self) -> None:
        self.crowded += 1

    def violated(self, kind: str, count: int) -> None:
        self.violations[kind] += count

    def found(self, protocol: str, secured: bool) -> None:
        self.protocols[protocol, secured] += 1


class Guest(asyncio.Protocol):
    """Says whose it is, and then whatever it hears."""

    def __init__(self, port: Port, name: str) -> None:
        self._port = port
        self._name = name
        self.place: str | None = None
        self.transport: asyncio.Transport | None = None

    def begin(self, told: Proxied) -> None:
        self._port.told.append(told)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        assert self.place is not None, "it counts from before it is opened"
        assert self._port.entrance.admits(self)
        transport.write(self._name.encode() + b":")

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._port.entrance.release(self)


class Port:
    """An address with two protocols, and its clients."""

    def __init__(self, **options: Any) -> None:
        self.seen = Seen()
        self.told: list[Proxied] = []
        begins = options.pop("begins", True)
        self.entrance = SniffingEntrance(self, "grpc+remoting", "127.0.0.1", 0, observer=self.seen, **options)
        self.path = options.get("path", "")
        self.entrance.side("grpc", Mark(frozenset(b"P"), "h2"), lambda: Guest(self, "grpc"))
        self.entrance.side("remoting", Mark(frozenset((0, 1)), ""), lambda: Guest(self, "remoting"))
        if begins:
            self.entrance.begin()
        self._writers: list[asyncio.StreamWriter] = []

    async def dial(self, **how: Any) -> Line:
        if self.path:
            reader, writer = await asyncio.open_unix_connection(self.path, **how)
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.entrance.port, **how)
        self._writers.append(writer)
        return Line(reader, writer)

    async def close(self) -> None:
        await self.entrance.end()
        for writer in self._writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        await until(lambda: not self.entrance.admission.count)
        assert (self.seen.open, self.seen.shaking) == (0, 0)


class Line:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def hears(self, data: bytes) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readexactly(len(data)) == data

    async def is_cut(self) -> bool:
        """Whether it ends without a word."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read() == b""
            except OSError:
                return True


Make = Callable[..., Any]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    ports: list[Port] = []

    async def made(**options: Any) -> Port:
        port = Port(**options)
        ports.append(port)
        await port.entrance.open()
        return port

    yield made
    for port in ports:
        await port.close()


def shown(papers: Papers) -> Callable[[], ssl.SSLContext]:
    return Certificate(*papers.pair("gateway")).current


def trusting(papers: Papers, *protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=papers.authority)
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


# -- what it is --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "whose"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"grpc:"),
        (b"P", b"grpc:"),
        (b"\0\0\0\x20\0\0\0\x1c{", b"remoting:"),
        (b"\1\0\0\0", b"remoting:"),  # of the largest frame that there is
    ],
)
async def test_the_first_byte_says_whose_it_is_and_who_serves_it_reads_all(
    make: Make, said: bytes, whose: bytes
) -> None:
    port = await make()
    line = await port.dial()

    line.say(said)

    assert await line.hears(whose + said)
    assert port.seen.protocols == {(whose[:-1].decode(), False): 1}
    assert port.seen.open == 0
    assert not port.seen.violations


async def test_bytes_may_come_one_at_a_time(make: Make) -> None:
    port = await make()
    line = await port.dial()

    line.say(b"P")
    assert await line.hears(b"grpc:P")
    for byte in b"RI *":
        line.say(bytes((byte,)))
        assert await line.hears(bytes((byte,)))


async def test_all_other_first_bytes_are_cut_off(make: Make) -> None:
    port = await make()
    others = sorted(set(range(256)) - {0, 1, 0x16, ord("P")})

    for byte in others:
        line = await port.dial()
        line.say(bytes((byte,)) + b"ET / HTTP/1.1\r\n\r\n")
        assert await line.is_cut()

    await until(lambda: port.seen.violations == {"unknown": len(others)})
    assert not port.seen.protocols
    assert port.entrance.admission.count == 0


async def test_who_says_nothing_is_not_waited_for(make: Make) -> None:
    port = await make(handshake_s=SOON_S)
    line = await port.dial()

    assert await line.is_cut()

    await until(lambda: port.seen.violations == {"silence": 1})


async def test_who_goes_without_a_word_broke_no_rule(make: Make) -> None:
    port = await make()
    line = await port.dial()
    await until(lambda: port.seen.open)

    line.writer.close()

    await until(lambda: not port.seen.open)
    assert not port.seen.violations
    assert port.entrance.admission.count == 0


async def test_who_says_nothing_counts_as_a_connection(make: Make) -> None:
    port = await make(max_connections=2)
    quiet, other = await port.dial(), await port.dial()
    await until(lambda: port.seen.open == 2)

    third = await port.dial()
    assert await third.is_cut()

    assert port.seen.away == 1
    for line, said in ((quiet, b"\0"), (other, b"P")):
        line.say(said)
        assert await line.hears(b"remoting:\0" if said == b"\0" else b"grpc:P")
    assert port.entrance.admission.count == 2


async def test_connections_are_counted_by_address_over_all_protocols(make: Make) -> None:
    port = await make(max_per_address=2)
    for said, heard in ((b"\0", b"remoting:\0"), (b"P", b"grpc:P")):
        line = await port.dial()
        line.say(said)
        assert await line.hears(heard)

    third = await port.dial()

    assert await third.is_cut()
    assert port.seen.crowded == 1


# -- TLS ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(
    ("protocols", "whose"),
    [(("h2",), b"grpc:"), ((), b"remoting:"), (("http/1.1",), b"remoting:"), (("x", "h2"), b"grpc:")],
)
async def test_inside_of_tls_it_is_what_was_agreed_on(
    make: Make, papers: Papers, protocols: tuple[str, ...], whose: bytes, plain: bool
) -> None:
    port = await make(tls=shown(papers), plain=plain)
    line = await port.dial(ssl=trusting(papers, *protocols))

    line.say(b"hello")

    assert await line.hears(whose + b"hello")
    assert port.seen.protocols == {(whose[:-1].decode(), True): 1}
    assert port.entrance.admission.count == 1


async def test_clients_may_speak_tls_or_not_where_that_is_permitted(make: Make, papers: Papers) -> None:
    port = await make(tls=shown(papers))

    for said, whose in ((b"P", b"grpc:"), (b"\0", b"remoting:")):
        line = await port.dial()
        line.say(said)
        assert await line.hears(whose + said)


async def test_clear_text_where_tls_must_be(make: Make, papers: Papers) -> None:
    port = await make(tls=shown(papers), plain=False)

    for said in (b"PRI * HTTP/2.0\r\n", b"\0\0\0\x20", b"GET /"):
        line = await port.dial()
        line.say(said)
        assert await line.is_cut()

    await until(lambda: port.seen.violations == {"clear_text": 3})


async def test_tls_where_none_is_spoken(make: Make, papers: Papers, caplog: pytest.LogCaptureFixture) -> None:
    port = await make()

    for _ in range(2):
        with pytest.raises(OSError, match=r"."):
            await port.dial(ssl=trusting(papers))

    await until(lambda: port.seen.violations == {"tls": 2})
    assert caplog.text.count("127.0.0.1 speaks TLS at 127.0.0.1:") == 1
    assert port.entrance.admission.count == 0


async def test_a_handshake_that_is_none(make: Make, papers: Papers) -> None:
    port = await make(tls=shown(papers))
    line = await port.dial()

    line.say(b"\x16\x03\x01\0\x05nonsense")
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(OSError):
            await line.reader.read()  # an alert of TLS, perhaps

    await until(lambda: port.seen.failed == 1)
    await until(lambda: not port.entrance.admission.count)


async def test_a_handshake_that_does_not_go_on(make: Make, papers: Papers) -> None:
    port = await make(tls=shown(papers), handshake_s=SOON_S)
    line = await port.dial()

    line.say(b"\x16")

    # On a busy machine its time is over before the byte has come.
    await until(lambda: port.seen.failed or port.seen.violations["silence"])
    await until(lambda: not port.entrance.admission.count)
    assert not port.seen.protocols


# -- behind a balancer -------------------------------------------------------------------------


@pytest.mark.parametrize("header", [V1, V2])
@pytest.mark.parametrize(("said", "whose"), [(b"PRI", b"grpc:"), (b"\0\0", b"remoting:")])
async def test_a_header_of_the_proxy_protocol_comes_first(
    make: Make, header: bytes, said: bytes, whose: bytes
) -> None:
    port = await make(proxied=True)
    together, apart = await port.dial(), await port.dial()

    together.say(header + said)
    for byte in header:
        apart.say(bytes((byte,)))
        await asyncio.sleep(0)
    apart.say(said)

    assert await together.hears(whose + said)
    assert await apart.hears(whose + said)
    assert port.told == [TOLD, TOLD]


@pytest.mark.parametrize("header", [V1, V2])
@pytest.mark.parametrize(("protocols", "whose"), [(("h2",), b"grpc:"), ((), b"remoting:")])
async def test_the_handshake_comes_behind_the_header(
    make: Make, papers: Papers, header: bytes, protocols: tuple[str, ...], whose: bytes
) -> None:
    port = await make(proxied=True, tls=shown(papers))
    line = await port.dial()
    line.say(header)

    async with asyncio.timeout(PATIENCE_S):
        await line.writer.start_tls(trusting(papers, *protocols), server_hostname="localhost")
    line.say(b"hello")

    assert await line.hears(whose + b"hello")
    assert port.told == [TOLD]


@pytest.mark.parametrize("said", [b"PRI * HTTP/2.0\r\n", b"\0\0\0\x20", b"PROXY nonsense\r\n", b"\x16\3\1"])
async def test_who_was_promised_a_header_believes_nothing_without_one(make: Make, said: bytes) -> None:
    port = await make(proxied=True)
    line = await port.dial()

    line.say(said)

    assert await line.is_cut()
    await until(lambda: port.seen.violations == {"bad_proxy_header": 1})


@pytest.mark.parametrize("said", [b"", b"PROXY TCP4 ", V1])
async def test_a_header_and_what_follows_have_to_come_in_time(make: Make, said: bytes) -> None:
    port = await make(proxied=True, handshake_s=SOON_S)
    line = await port.dial()

    line.say(said)

    assert await line.is_cut()
    await until(lambda: port.seen.violations == {"silence": 1})


async def test_connections_by_a_balancer_are_counted_where_they_come_from(make: Make) -> None:
    port = await make(proxied=True, max_per_address=1)
    first, second, other = await port.dial(), await port.dial(), await port.dial()

    first.say(V1 + b"P")
    assert await first.hears(b"grpc:P")
    second.say(V1 + b"\0")
    assert await second.is_cut()
    other.say(V1.replace(b"203.0.113.7", b"203.0.113.8") + b"\0")

    assert await other.hears(b"remoting:\0")
    assert port.seen.crowded == 1
    await until(lambda: port.entrance.admission.count == 2)


# -- life --------------------------------------------------------------------------------------


async def test_what_comes_before_the_servers_are_there_waits_for_them(make: Make) -> None:
    port = await make(begins=False)
    line = await port.dial()
    line.say(b"P")
    await until(lambda: port.seen.open)

    port.entrance.begin()

    assert await line.hears(b"grpc:P")


async def test_who_has_said_nothing_is_let_go_at_the_end_and_who_has_is_served(make: Make) -> None:
    port = await make()
    quiet, late = await port.dial(), await port.dial()
    await until(lambda: len(port.entrance._waiting) == 2)

    os.write(late.writer.get_extra_info("socket").fileno(), b"P")  # the loop has not looked since
    port.entrance.close()

    assert await late.hears(b"grpc:P")
    assert await quiet.is_cut()
    assert not port.seen.violations
    with pytest.raises(OSError, match=r"."):
        await port.dial()


async def test_a_handshake_is_cut_off_at_the_end(make: Make, papers: Papers) -> None:
    port = await make(tls=shown(papers))
    line = await port.dial()
    line.say(b"\x16\x03\x01")
    await until(lambda: port.seen.shaking)

    await port.entrance.end()

    assert await line.is_cut()
    assert (port.seen.open, port.seen.shaking, port.entrance.admission.count) == (0, 0, 0)
    await port.entrance.end()


async def test_a_socket_in_the_file_system(make: Make, socket_folder: Path) -> None:
    port = await make(path=str(socket_folder / "door"))

    for said, whose in ((b"P", b"grpc:"), (b"\0", b"remoting:")):
        line = await port.dial()
        line.say(said)
        assert await line.hears(whose + said)


class Elsewhere:
    adopt: Any = None
    stopped = False

    async def start(self, adopt: Any) -> int:
        self.adopt = adopt
        return 4711

    async def taken(self, longest_s: float) -> None:
        """Nobody is opening."""

    def stop(self) -> None:
        self.stopped = True


async def test_connections_that_another_process_accepted(make: Make) -> None:
    elsewhere = Elsewhere()
    port = await make(listener=elsewhere)
    ours, theirs = socket.socketpair()
    taking = asyncio.ensure_future(elsewhere.adopt(ours))
    reader, writer = await asyncio.open_connection(sock=theirs)
    line = Line(reader, writer)

    line.say(b"\0")

    assert await line.hears(b"remoting:\0")
    await taking
    assert port.entrance.port == 4711
    port.entrance.close()
    assert elsewhere.stopped
    writer.close()
    await writer.wait_closed()


async def test_one_that_has_gone_already(make: Make) -> None:
    port = await make(listener=Elsewhere())
    ours, theirs = socket.socketpair()
    theirs.close()

    await port.entrance.adopt(ours)

    assert ours.fileno() == -1
    assert port.entrance.admission.count == 0
