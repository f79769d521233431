"""popgate.tls.refused_clients: who is refused in the handshake, and what the log says of it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from cryptography import x509

from popgate.testing.clock import MovableClock
from popgate.testing.papers import Papers
from popgate.tls import refused_clients, shown_certificates
from popgate.tls.refused_clients import shake_hands
from protocols.tls import Certificate
from tests.support.waiting import PATIENCE_S

DAY = timedelta(days=1)
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
PEER = ("203.0.113.7", 5000)
PLACE = "grpc://127.0.0.1:8081"


@pytest.fixture(autouse=True)
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nobody had been refused for a second."""
    for revoked in (True, False):
        monkeypatch.setitem(refused_clients._turns, revoked, refused_clients._Turns())


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    (tmp_path / "papers").mkdir()
    return Papers(tmp_path / "papers")


class Greeter(asyncio.Protocol):
    """Says yes."""

    secured: ssl.SSLObject | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        opened = cast("asyncio.Transport", transport)
        Greeter.secured = opened.get_extra_info("ssl_object")
        opened.write(b"yes")
        opened.close()


def context_of(
    papers: Papers, pair: tuple[Path, Path] | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=papers.authority)
    context.maximum_version = version
    if pair is not None:
        context.load_cert_chain(*pair)
    return context


async def served(certificate: Certificate, client: ssl.SSLContext, peer: Any = PEER) -> bool:
    """Whether a client of this context is served."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    async def dial() -> bytes:
        try:
            reader, writer = await asyncio.open_connection(sock=ours, ssl=client, server_hostname="localhost")
            try:
                return await reader.read()
            finally:
                writer.close()
        except OSError:
            return b""

    dialling = asyncio.ensure_future(dial())
    try:
        await shake_hands(
            Greeter, theirs, certificate.current(), timeout_s=PATIENCE_S, peer=peer, place=PLACE
        )
    except OSError:
        theirs.close()
    return await dialling == b"yes"


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_revoked_certificate_is_refused_and_named(
    papers: Papers, tmp_path: Path, caplog: pytest.LogCaptureFixture, version: ssl.TLSVersion
) -> None:
    lists = tmp_path / "lists.pem"
    lists.write_bytes(papers.revocations("bad"))
    certificate = Certificate(*papers.pair("gateway"), client_ca=papers.authority, crl_file=lists)
    assert await served(certificate, context_of(papers, papers.pair("good"), version))
    assert not caplog.records
    assert not await served(certificate, context_of(papers, papers.pair("bad"), version))
    (line,) = caplog.records
    assert line.getMessage().startswith(
        f"the certificate of a client is refused at {PLACE}: it is revoked, or an authority in its chain is;"
        f" subject 'CN=bad', serial {papers.serial('bad')}, valid from "
    )
    assert line.getMessage().endswith(" UTC, from 203.0.113.7:5000")


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_each_of_many_is_named_with_either_loop(
    papers: Papers, tmp_path: Path, caplog: pytest.LogCaptureFixture, loop_factory: Callable[[], Any]
) -> None:
    """Handshakes under way at the same time are not taken for each other."""
    names = [f"bad-{number}" for number in range(5)]
    lists = tmp_path / "lists.pem"
    lists.write_bytes(papers.revocations(*names))
    certificate = Certificate(*papers.pair("gateway"), client_ca=papers.authority, crl_file=lists)

    async def all_of_them() -> list[bool]:
        contexts = [context_of(papers, papers.pair(name)) for name in (*names, "good")]
        asked = [
            served(certificate, context, (f"203.0.113.{number}", 1))
            for number, context in enumerate(contexts)
        ]
        return await asyncio.gather(*asked)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(all_of_them()) == [*(False for _ in names), True]
    lines = sorted(line.getMessage() for line in caplog.records if "is refused" in line.getMessage())
    assert len(lines) == len(names)
    for number, name in enumerate(names):
        (line,) = [each for each in lines if each.endswith(f"from 203.0.113.{number}:1")]
        assert f"subject 'CN={name}', serial {papers.serial(name)}," in line


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("begins", "ends", "why"),
    [(-3 * DAY, -DAY, "it has expired"), (DAY, 3 * DAY, "it is not valid yet")],
)
async def test_certificates_out_of_their_time_are_refused(
    papers: Papers,
    caplog: pytest.LogCaptureFixture,
    version: ssl.TLSVersion,
    begins: timedelta,
    ends: timedelta,
    why: str,
) -> None:
    certificate = Certificate(*papers.pair("gateway"), client_ca=papers.authority)
    client = context_of(papers, papers.dated("orders", begins, ends), version)
    assert not await served(certificate, client)
    (line,) = caplog.records
    assert f"{why}; subject 'CN=orders', serial {papers.serial('orders')}," in line.getMessage()
    assert await served(certificate, context_of(papers, papers.dated("orders", -DAY, DAY), version))


@pytest.mark.parametrize("version", VERSIONS)
async def test_strangers_and_those_without_a_certificate_are_refused(
    papers: Papers, tmp_path: Path, caplog: pytest.LogCaptureFixture, version: ssl.TLSVersion
) -> None:
    others = Papers(tmp_path, name="others")
    certificate = Certificate(*papers.pair("gateway"), client_ca=papers.authority)
    assert not await served(certificate, context_of(papers, others.pair("stranger"), version))
    assert not await served(certificate, context_of(papers, None, version))
    stranger, without = (line.getMessage() for line in caplog.records)
    assert "an authority that is not in tls.client_ca; subject 'CN=stranger'" in stranger
    assert without == f"a client without a certificate is refused at {PLACE}, from 203.0.113.7:5000"


async def test_authorities_of_a_chain_may_be_revoked_too(
    papers: Papers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    middle = Papers(tmp_path, name="middle", issuer=papers)
    leaf, key = middle.pair("orders")
    chain, lists = tmp_path / "chain.pem", tmp_path / "lists.pem"
    chain.write_bytes(leaf.read_bytes() + middle.authority.read_bytes())
    clock = MovableClock()
    lists.write_bytes(papers.revocations() + middle.revocations())
    certificate = Certificate(
        *papers.pair("gateway"), client_ca=papers.authority, crl_file=lists, now=clock.monotonic
    )
    client = context_of(papers, (chain, key))
    assert await served(certificate, client)
    assert not caplog.records

    lists.write_bytes(papers.revocations(authorities=[middle.authority]) + middle.revocations())
    clock.advance(1.0)
    assert not await served(certificate, client)
    assert "it is revoked, or an authority in its chain is" in caplog.records[-1].getMessage()

    lists.write_bytes(papers.revocations())
    clock.advance(1.0)
    assert not await served(certificate, client)
    assert "there is no revocation list of its issuer" in caplog.records[-1].getMessage()


async def test_expired_lists_let_nobody_in_and_say_so(
    papers: Papers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lists = tmp_path / "lists.pem"
    lists.write_bytes(papers.revocations(begins=-3 * DAY, ends=-DAY))
    certificate = Certificate(*papers.pair("gateway"), client_ca=papers.authority, crl_file=lists)
    certificate.open()
    assert f"tls.crl_file, {lists}, has a list of CN=authority that expired at" in caplog.text
    assert certificate.figures()["tls_crl_refusing"] == 1
    assert not await served(certificate, context_of(papers, papers.pair("good")))
    assert "or of one further up, has expired; subject 'CN=good'" in caplog.records[-1].getMessage()


async def test_a_renewed_list_counts_for_the_next_client(
    papers: Papers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lists, clock = tmp_path / "lists.pem", MovableClock()
    lists.write_bytes(papers.revocations())
    certificate = Certificate(
        *papers.pair("gateway"), client_ca=papers.authority, crl_file=lists, now=clock.monotonic
    )
    client = context_of(papers, papers.pair("orders"))
    assert await served(certificate, client)
    revoked = papers.revocations("orders")
    lists.write_bytes(revoked[:200])
    clock.advance(1.0)
    assert await served(certificate, client)
    assert "written only in part" in caplog.text
    lists.write_bytes(revoked)
    clock.advance(1.0)
    assert not await served(certificate, client)
    lists.write_bytes(b"")
    clock.advance(1.0)
    assert not await served(certificate, client), "the last good list"


async def test_lists_that_cannot_be_used_do_not_hold_up_a_new_certificate(
    papers: Papers, tmp_path: Path
) -> None:
    pair, lists, clock = (tmp_path / "tls.crt", tmp_path / "tls.key"), tmp_path / "lists.pem", MovableClock()

    def install(name: str) -> None:
        for target, source in zip(pair, papers.pair(name), strict=True):
            target.write_bytes(source.read_bytes())

    install("gateway")
    lists.write_bytes(papers.revocations("bad"))
    certificate = Certificate(*pair, client_ca=papers.authority, crl_file=lists, now=clock.monotonic)
    lists.write_bytes(b"nonsense")
    install("renewed")
    clock.advance(1.0)
    before = certificate.generation
    assert not await served(certificate, context_of(papers, papers.pair("bad")))
    assert certificate.generation == before + 1


async def test_a_certificate_that_cannot_be_used_does_not_hold_up_new_lists(
    papers: Papers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair, lists, clock = (tmp_path / "tls.crt", tmp_path / "tls.key"), tmp_path / "lists.pem", MovableClock()
    for target, source in zip(pair, papers.pair("gateway"), strict=True):
        target.write_bytes(source.read_bytes())
    lists.write_bytes(papers.revocations())
    certificate = Certificate(*pair, client_ca=papers.authority, crl_file=lists, now=clock.monotonic)
    client = context_of(papers, papers.pair("orders"))
    assert await served(certificate, client)
    pair[0].write_bytes(b"half")
    lists.write_bytes(papers.revocations("orders", begins=-DAY / 2))
    clock.advance(1.0)
    assert not await served(certificate, client)
    assert await served(certificate, context_of(papers, papers.pair("good")))
    assert "the certificate from before stays in use" in caplog.text


async def test_the_certificate_is_taken_from_the_handshake_only(papers: Papers) -> None:
    """The records of the connection pass no callback of ours."""
    certificate = Certificate(*papers.pair("gateway"), client_ca=papers.authority)
    assert await served(certificate, context_of(papers, papers.pair("good")))
    assert Greeter.secured is not None
    assert certificate.current()._msg_callback is not None  # type: ignore[attr-defined]
    assert Greeter.secured.context._msg_callback is None  # type: ignore[attr-defined]
    shown = Greeter.secured.getpeercert()
    assert shown is not None
    assert shown["subject"] == ((("commonName", "good"),),), "as authenticators read it later"


async def test_without_what_names_the_certificate_the_reason_is_there(
    papers: Papers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocols.tls.note_certificates", lambda _context: None)
    certificate = Certificate(*papers.pair("gateway"), client_ca=papers.authority)
    assert not await served(certificate, context_of(papers, papers.dated("orders", -3 * DAY, -DAY)), None)
    assert caplog.records[-1].getMessage() == (
        f"the certificate of a client is refused at {PLACE}: it has expired; it cannot be shown,"
        " from a process of this machine"
    )


# -- what a stranger may make a gateway do ----------------------------------------------------------


def refused(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, "in OpenSSL's words"
    return error


def noted(encoded: bytes) -> list[tuple[int, bytes]]:
    """A client's Certificate message with that certificate, of TLS 1.2."""
    one = len(encoded).to_bytes(3) + encoded
    body = len(one).to_bytes(3) + one
    with shown_certificates.noted() as messages:
        shown_certificates._note(None, "read", None, None, 11, b"\x0b" + len(body).to_bytes(3) + body)
        return [*messages]


def encoded(file: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(file.read_text())


def with_serial(file: Path, serial: bytes) -> bytes:
    """That certificate with another serial number, up to 64 KiB long; its signature is wrong then."""

    def element(tag: int, content: bytes) -> bytes:
        return bytes((tag, 0x82)) + len(content).to_bytes(2) + content

    read = x509.load_pem_x509_certificate(file.read_bytes())
    number = read.serial_number.to_bytes(20).lstrip(b"\0")
    number = b"\0" * (number[0] >> 7) + number
    before = bytes((2, len(number))) + number
    body = read.tbs_certificate_bytes
    assert body[:2] == b"\x30\x82"
    assert before in body
    tbs = element(0x30, body[4:].replace(before, element(2, serial), 1))
    rest = encoded(file)[4 + len(body) :]
    return element(0x30, tbs + rest)


def test_a_long_serial_number_does_not_fill_the_log(papers: Papers, caplog: pytest.LogCaptureFixture) -> None:
    long = with_serial(papers.pair("bad")[0], b"\x7f" + b"\x55" * 5_000)
    refused_clients._report(refused(10), noted(long), "a client", PLACE)
    (line,) = caplog.records
    assert f"subject 'CN=bad', serial 7F{'55' * 19}, valid from" in line.getMessage()


def test_a_long_certificate_is_not_read_or_kept(caplog: pytest.LogCaptureFixture) -> None:
    shown = noted(bytes(60_000))
    assert sum(len(begin) for _, begin in shown) <= 8 << 10
    refused_clients._report(refused(20), shown, "a client", PLACE)
    assert "; it is too long to be shown, from a client" in caplog.records[-1].getMessage()


def test_few_certificates_are_read_in_a_second(
    papers: Papers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of strangers do not keep a revoked one from being named."""
    clock = MovableClock()
    for revoked in (True, False):
        monkeypatch.setitem(refused_clients._turns, revoked, refused_clients._Turns(clock.monotonic))
    shown = noted(encoded(papers.pair("bad")[0]))
    for _ in range(11):
        refused_clients._report(refused(20), shown, "a client", PLACE)
    named = ["subject 'CN=bad'" in line.getMessage() for line in caplog.records]
    assert named == [True] * 10 + [False]
    assert "it is not shown, because many are refused" in caplog.records[-1].getMessage()
    refused_clients._report(refused(23), shown, "a client", PLACE)
    assert "it is revoked" in caplog.records[-1].getMessage()
    assert "subject 'CN=bad'" in caplog.records[-1].getMessage()
    clock.advance(1.0)
    refused_clients._report(refused(20), shown, "a client", PLACE)
    assert "subject 'CN=bad'" in caplog.records[-1].getMessage()


def test_lines_of_revoked_clients_are_sampled_for_themselves(caplog: pytest.LogCaptureFixture) -> None:
    """The sampler counts by template (proxy.logs)."""
    for code in (10, 20, 23):
        refused_clients._report(refused(code), [], "a client", PLACE)
    expired, stranger, revoked = (line.msg for line in caplog.records)
    assert expired == stranger != revoked


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (8, "the revocation list of its issuer, or of one further up, is signed by somebody else"),
        (36, "has a critical extension that is not known"),
        (44, "is for other certificates"),
        (99, "in OpenSSL's words"),
    ],
)
def test_reasons_are_in_words(caplog: pytest.LogCaptureFixture, code: int, why: str) -> None:
    refused_clients._report(refused(code), [], "a client", PLACE)
    assert why in caplog.records[-1].getMessage()
