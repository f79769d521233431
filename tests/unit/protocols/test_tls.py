"""protocols.tls: what cannot be used is named, and what is renewed is shown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from popgate.testing.clock import MovableClock
from popgate.testing.papers import Papers
from protocols.grpc.servers.grpcio_calls import GrpcioCall
from protocols.secured import TlsAcceptor
from protocols.tls import Certificate, names_of, speaks_http2

Greet = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


def trusting(papers: Papers, *protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=papers.authority)
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


class Listener:
    """Shakes hands as gRPC doors do."""

    def __init__(self, certificate: Certificate, greet: Greet) -> None:
        self._loop = asyncio.get_running_loop()
        self._certificate = certificate
        self._greet = greet
        self._came: list[socket.socket] = []
        link = socket.create_server(("127.0.0.1", 0))
        self.port = int(link.getsockname()[1])
        self._accepting = TlsAcceptor([link], self._take, self._loop)

    def _made(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._greet)

    async def _take(self, came: socket.socket) -> None:
        self._came.append(came)
        try:
            await self._loop.connect_accepted_socket(self._made, came, ssl=self._certificate.current())
        except OSError:
            came.close()

    async def close(self) -> None:
        """Over when every connection is: none is left to a loop that does not run any more."""
        self._accepting.close()
        async with asyncio.timeout(60):
            while any(one.fileno() >= 0 for one in self._came):
                await asyncio.sleep(0.001)


class Server:
    """Answers every connection with what it is."""

    def __init__(self, certificate: Certificate) -> None:
        self._certificate = certificate

    async def __aenter__(self) -> Server:
        self._server = Listener(self._certificate, self._greet)
        self.port = self._server.port
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"yes" if speaks_http2(writer.get_extra_info("ssl_object")) else b"no")
        writer.close()

    async def shown(
        self, context: ssl.SSLContext, name: str | None = None
    ) -> tuple[tuple[object, ...], bytes]:
        """Who it says it is, and what it says."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context, server_hostname=name or "127.0.0.1"
        )
        peer = writer.get_extra_info("peercert")
        said = await reader.read()
        await closed(writer)
        return peer["subject"][0][0], said


async def test_clients_show_a_certificate_of_an_authority_that_may_be_renewed(
    papers: Papers, tmp_path: Path
) -> None:
    others, clock, authorities = Papers(tmp_path), MovableClock(), tmp_path / "clients.pem"
    authorities.write_bytes(papers.authority.read_bytes())
    certificate = Certificate(*papers.pair("gateway"), client_ca=authorities, now=clock.monotonic)
    assert certificate.asks_clients
    assert certificate.client_authorities() == papers.authority.read_bytes()
    names: list[tuple[str, ...]] = []

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        names.append(names_of(writer.get_extra_info("ssl_object")))
        writer.write(b"yes")
        writer.close()

    server = Listener(certificate, greet)

    async def heard(pair: tuple[Path, Path] | None, version: ssl.TLSVersion) -> bytes:
        context = trusting(papers)
        context.maximum_version = version
        if pair is not None:
            context.load_cert_chain(*pair)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
            said = await reader.read()
            await closed(writer)
        except OSError:
            return b"refused"
        return said

    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        assert await heard(None, version) != b"yes"
        assert await heard(others.pair("client"), version) != b"yes"
        assert not names
        assert await heard(papers.pair("client"), version) == b"yes"
        assert names.pop() == ("CN:client", "DNS:localhost", "IP Address:127.0.0.1")
    authorities.write_bytes(others.authority.read_bytes())
    clock.advance(2)
    assert await heard(others.pair("client"), ssl.TLSVersion.TLSv1_3) == b"yes"
    assert names.pop()[0] == "CN:client"
    assert await heard(papers.pair("client"), ssl.TLSVersion.TLSv1_3) != b"yes"
    assert not names
    await server.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_session_from_before_lets_nobody_in_whose_authority_was_taken_away(
    papers: Papers, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """Who goes on with a session shows no certificate again."""
    clock, authorities = MovableClock(), tmp_path / "clients.pem"
    authorities.write_bytes(papers.authority.read_bytes())
    certificate = Certificate(*papers.pair("gateway"), client_ca=authorities, now=clock.monotonic)
    resumed: list[bool] = []

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        resumed.append(writer.get_extra_info("ssl_object").session_reused)
        writer.write(b"yes")
        writer.close()

    server = Listener(certificate, greet)
    context = trusting(papers)
    context.maximum_version = version
    context.load_cert_chain(*papers.pair("client"))

    def dial(session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None]:
        with (
            socket.create_connection(("127.0.0.1", server.port), 60) as link,
            context.wrap_socket(link, server_hostname="127.0.0.1", session=session) as secured,
        ):
            return secured.recv(3), secured.session

    said, session = await asyncio.to_thread(dial, None)
    assert (said, resumed) == (b"yes", [False])
    said, session = await asyncio.to_thread(dial, session)
    assert (said, resumed) == (b"yes", [False, True]), "while it is believed it may go on"
    authorities.write_bytes(Papers(tmp_path).authority.read_bytes())
    clock.advance(2)
    try:
        said, _ = await asyncio.to_thread(dial, session)
    except OSError:
        said = b""
    assert (said, len(resumed)) == (b"", 2)
    await server.close()


def test_authorities_for_clients_that_cannot_be_used_are_named(papers: Papers, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    for file, said in ((empty, "has no certificate of an authority"), (tmp_path / "absent", "no such file")):
        with pytest.raises(ValueError, match=said):
            Certificate(*papers.pair("gateway"), client_ca=file)


async def test_a_handshake_with_and_without_a_name(papers: Papers) -> None:
    async with Server(Certificate(*papers.pair("gateway"))) as server:
        for name in ("localhost", None):
            shown = await server.shown(trusting(papers, "h2"), name)
            assert shown == (("commonName", "gateway"), b"yes")


@pytest.mark.parametrize("protocols", [(), ("http/1.1",)])
async def test_who_does_not_name_http2_does_not_speak_it(papers: Papers, protocols: tuple[str, ...]) -> None:
    async with Server(Certificate(*papers.pair("gateway"))) as server:
        assert (await server.shown(trusting(papers, *protocols)))[1] == b"no"


async def test_older_tls_is_refused(papers: Papers, recwarn: pytest.WarningsRecorder) -> None:
    old = trusting(papers, "h2")
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with Server(Certificate(*papers.pair("gateway"))) as server:
        with pytest.raises((ssl.SSLError, OSError)):
            await server.shown(old)
    recwarn.clear()


async def test_tls_1_2_is_spoken_with_ciphers_that_http2_allows(papers: Papers) -> None:
    context = trusting(papers, "h2")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with Server(Certificate(*papers.pair("gateway"))) as server:
        assert (await server.shown(context))[1] == b"yes"
        context.set_ciphers("AES128-SHA")
        with pytest.raises((ssl.SSLError, OSError)):
            await server.shown(context)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def install(papers: Papers, tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Puts a certificate, and the key of another if it is said so, where the gateway's are."""
    to = tmp_path / "tls.crt", tmp_path / "tls.key"

    def put(name: str, key_of: str = "") -> tuple[Path, Path]:
        for target, source in zip(to, (papers.pair(name)[0], papers.pair(key_of or name)[1]), strict=True):
            fresh = target.with_suffix(".new")
            fresh.write_bytes(source.read_bytes())
            os.replace(fresh, target)
        return to

    return put


async def test_scenario_17_a_renewed_certificate_is_shown_without_a_restart(
    papers: Papers, install: Callable[..., tuple[Path, Path]], clock: MovableClock
) -> None:
    certificate = Certificate(*install("gateway"), now=clock.monotonic)
    async with Server(certificate) as server:
        context = trusting(papers, "h2")
        install("renewed")
        assert (await server.shown(context))[0] == ("commonName", "gateway"), "it was looked at just now"
        clock.advance(1.0)
        assert await server.shown(context) == (("commonName", "renewed"), b"yes")
        assert certificate.generation == 1
        clock.advance(1.0)
        await server.shown(context)
        assert certificate.generation == 1


async def test_half_a_renewal_leaves_the_pair_before_in_use(
    papers: Papers,
    install: Callable[..., tuple[Path, Path]],
    clock: MovableClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    certificate = Certificate(*install("gateway"), now=clock.monotonic)
    async with Server(certificate) as server:
        context = trusting(papers, "h2")
        install("renewed", key_of="gateway")
        for _ in range(3):
            clock.advance(1.0)
            assert (await server.shown(context))[0] == ("commonName", "gateway")
        told = [line.getMessage() for line in caplog.records if line.levelno >= logging.ERROR]
        assert len(told) == 1
        assert "is not that of the certificate" in told[0]
        install("renewed")
        clock.advance(1.0)
        assert (await server.shown(context))[0] == ("commonName", "renewed")


async def test_files_that_go_leave_the_pair_before_in_use(
    papers: Papers, install: Callable[..., tuple[Path, Path]], clock: MovableClock
) -> None:
    files = install("gateway")
    certificate = Certificate(*files, now=clock.monotonic)
    for file in files:
        file.unlink()
    clock.advance(1.0)
    async with Server(certificate) as server:
        assert (await server.shown(trusting(papers)))[0] == ("commonName", "gateway")


def test_a_key_may_be_in_the_file_of_its_certificate(papers: Papers, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(b"".join(file.read_bytes() for file in papers.pair("gateway")))
    assert Certificate(both).pem() == (both.read_bytes(),) * 2


def test_what_cannot_be_used_is_named(papers: Papers, tmp_path: Path) -> None:
    certificate, key = papers.pair("gateway")
    nothing, nonsense = tmp_path / "nothing.pem", tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    for pair, says in (
        ((nothing, key), f"the TLS certificate {nothing} cannot be read: no such file"),
        ((certificate, nothing), f"the TLS key {nothing} cannot be read: no such file"),
        ((tmp_path, key), f"the TLS certificate {tmp_path} cannot be read: is a directory"),
        ((nonsense, key), "no TLS certificate and its key"),
        ((certificate, nonsense), "no TLS certificate and its key"),
        ((certificate, papers.pair("renewed")[1]), "is not that of the certificate"),
        ((certificate, papers.encrypted("gateway")), "is encrypted"),
    ):
        with pytest.raises(ValueError) as refused:
            Certificate(*pair)
        assert says in str(refused.value)


class _Shown:
    """A connection whose client showed a certificate, in the words of Python's ssl and in those of gRPC."""

    def getpeercert(self) -> dict[str, Any]:
        names = (
            ("URI", "spiffe://example.com/orders"),
            ("email", "orders@example.com"),
            ("DNS", "orders.example.com"),
            ("DirName", ((("commonName", "orders"),),)),
            ("IP Address", "2001:DB8:0:0:0:0:0:1"),
            ("IP Address", "<invalid>"),
            ("Registered ID", "1.2.3.4"),
        )
        return {"subject": ((("commonName", "client"),),), "subjectAltName": names}

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def auth_context(self) -> dict[str, list[bytes]]:
        return {
            "x509_common_name": [b"client"],
            "peer_dns": [b"orders.example.com"],
            "peer_uri": [b"spiffe://example.com/orders"],
            "peer_email": [b"orders@example.com"],
            "peer_ip": [b"2001:db8:0::1", b"<invalid>"],
        }


def test_names_are_the_same_with_both_transports() -> None:
    shown: Any = _Shown()
    named = (
        *("CN:client", "DNS:orders.example.com", "IP Address:2001:db8::1", "IP Address:<invalid>"),
        *("URI:spiffe://example.com/orders", "email:orders@example.com"),
    )
    assert names_of(shown) == named
    assert GrpcioCall(shown, str).names == named
