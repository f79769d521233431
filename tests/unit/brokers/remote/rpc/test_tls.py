"""brokers.remote.rpc.tls: authorities, names and certificates of one's own."""

from __future__ import annotations

import errno
import os
import re
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from brokers.remote.rpc.connection_pool import ConnectionPool
from brokers.remote.rpc.tls import BrokerTls
from brokers.remote.settings import Tls, Verify
from popgate.errors import BadRequest, BrokerUnavailable
from popgate.testing.clock import MovableClock
from popgate.testing.papers import Papers
from popgate.testing.peers import ScriptedPeer
from popgate.wire.frames.codes import RequestCode

ASK = int(RequestCode.GET_MAX_OFFSET)


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities, and by the first one: a server with a name, one with an address, a client."""
    folder = tmp_path_factory.mktemp("papers")
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for authority in ("ca", "other"):
        openssl(
            "req", "-x509", *new, "-days", "2", "-subj", f"/CN={authority}",
            "-keyout", f"{folder}/{authority}.key", "-out", f"{folder}/{authority}.pem",
        )  # fmt: skip
    for name, extension in (
        ("server", "subjectAltName=DNS:broker.test"),
        ("numbered", "subjectAltName=IP:127.0.0.1"),
        ("client", "extendedKeyUsage=clientAuth"),
    ):
        openssl(
            "req", "-x509", *new, "-days", "2", "-subj", f"/CN={name}", "-addext", extension,
            "-CA", f"{folder}/ca.pem", "-CAkey", f"{folder}/ca.key",
            "-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.pem",
        )  # fmt: skip
    return folder


def server(papers: Path, name: str, *, asks_for_client: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(papers / f"{name}.pem", papers / f"{name}.key")
    if asks_for_client:
        context.load_verify_locations(papers / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def reach(make_links: Callable[..., ConnectionPool], context: ssl.SSLContext, tls: Tls) -> int:
    links = make_links(tls=tls)
    async with ScriptedPeer(tls=context) as peer:
        peer.on(ASK, lambda request: request.answer(0))
        return (await links.call(peer.address, ASK, {}, bytes(100_000), timeout_s=5.0)).code


@pytest.mark.parametrize(
    ("certificate", "ca", "verify", "server_name"),
    [
        ("server", "ca", Verify.NAME, "broker.test"),
        ("numbered", "ca", Verify.NAME, ""),
        ("server", "ca", Verify.CHAIN, ""),
        ("server", "other", Verify.NONE, ""),
    ],
)
async def test_a_broker_with_the_right_certificate_is_spoken_to(
    make_links: Callable[..., ConnectionPool],
    papers: Path,
    certificate: str,
    ca: str,
    verify: Verify,
    server_name: str,
) -> None:
    tls = Tls(ca=papers / f"{ca}.pem", verify=verify, server_name=server_name)
    assert await reach(make_links, server(papers, certificate), tls) == 0


@pytest.mark.parametrize(
    ("ca", "verify", "server_name", "told"),
    [
        ("other", Verify.NAME, "broker.test", r"not believed.*, by remote\.ca_file, .*other\.pem"),
        ("other", Verify.CHAIN, "", r"not believed.*, by remote\.ca_file, .*other\.pem"),
        ("ca", Verify.NAME, "another.test", "not believed.*another.test"),
        ("ca", Verify.NAME, "", "not believed.*127.0.0.1"),
    ],
)
async def test_a_broker_with_another_certificate_is_not(
    make_links: Callable[..., ConnectionPool],
    papers: Path,
    ca: str,
    verify: Verify,
    server_name: str,
    told: str,
) -> None:
    tls = Tls(ca=papers / f"{ca}.pem", verify=verify, server_name=server_name)
    with pytest.raises(BrokerUnavailable, match=told):
        await reach(make_links, server(papers, "server"), tls)


async def test_a_broker_that_wants_a_certificate_of_the_gateway_gets_it(
    make_links: Callable[..., ConnectionPool], papers: Path
) -> None:
    tls = Tls(
        ca=papers / "ca.pem",
        certificate=papers / "client.pem",
        key=papers / "client.key",
        server_name="broker.test",
    )
    assert await reach(make_links, server(papers, "server", asks_for_client=True), tls) == 0


async def test_an_address_found_by_a_name_is_held_to_that_name(
    make_links: Callable[..., ConnectionPool], papers: Path
) -> None:
    links = make_links(tls=Tls(ca=papers / "ca.pem"))
    async with ScriptedPeer(tls=server(papers, "server")) as peer:
        peer.on(ASK, lambda request: request.answer(0))
        links.name(peer.address, "broker.test")
        assert (await links.call(peer.address, ASK, {}, timeout_s=5.0)).code == 0


async def test_an_address_keeps_its_name_when_its_idle_connection_is_closed(
    make_links: Callable[..., ConnectionPool], papers: Path, clock: MovableClock
) -> None:
    links = make_links(tls=Tls(ca=papers / "ca.pem"), link_idle_s=60.0)
    async with ScriptedPeer(tls=server(papers, "server")) as peer:
        peer.on(ASK, lambda request: request.answer(0))
        links.name(peer.address, "broker.test")
        assert (await links.call(peer.address, ASK, {}, timeout_s=5.0)).code == 0
        clock.advance(91.0)
        assert links.figures()["links"] == 0
        assert (await links.call(peer.address, ASK, {}, timeout_s=5.0)).code == 0


async def test_of_too_many_names_those_told_last_are_kept(
    make_links: Callable[..., ConnectionPool], papers: Path
) -> None:
    links = make_links(tls=Tls(ca=papers / "ca.pem"), max_addresses=2)
    async with ScriptedPeer(tls=server(papers, "server")) as peer:
        peer.on(ASK, lambda request: request.answer(0))
        for address in ("127.0.0.1:1", "127.0.0.1:2", peer.address):
            links.name(address, "broker.test")
        assert (await links.call(peer.address, ASK, {}, timeout_s=5.0)).code == 0


async def test_a_broker_without_tls_is_told_of(
    make_links: Callable[..., ConnectionPool], papers: Path
) -> None:
    links = make_links(tls=Tls(ca=papers / "ca.pem"))
    async with ScriptedPeer() as peer:
        with pytest.raises(BrokerUnavailable):
            await links.call(peer.address, ASK, {}, timeout_s=5.0)


def test_files_that_cannot_be_used_are_refused_with_a_sentence(papers: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.pem").write_text("nothing")
    for tls in (
        Tls(ca=tmp_path / "absent.pem"),
        Tls(ca=tmp_path / "odd.pem"),
        Tls(certificate=tmp_path / "absent.pem"),
        Tls(certificate=papers / "client.pem", key=papers / "server.key"),
        Tls(key=papers / "client.key"),
    ):
        with pytest.raises(BadRequest, match=r"cannot be|needs its certificate|is not that of"):
            BrokerTls(tls)


# -- revocation lists, and files that are renewed ---------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> Papers:
    (tmp_path / "made").mkdir()
    return Papers(tmp_path / "made")


def context_of(pair: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    return context


async def test_a_broker_with_a_revoked_certificate_is_not_used(
    made: Papers,
    tmp_path: Path,
    make_links: Callable[..., ConnectionPool],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The error and the log name the file and the certificate."""
    lists = tmp_path / "lists.pem"
    lists.write_bytes(made.revocations("bad"))
    tls = Tls(ca=made.authority, crl=lists)
    assert await reach(make_links, context_of(made.pair("broker")), tls) == 0
    with pytest.raises(BrokerUnavailable) as refused:
        await reach(make_links, context_of(made.pair("bad")), tls)
    sentence = (
        "its certificate is not believed: certificate revoked (or an authority in its chain), by"
        f" remote.crl_file, {lists}; subject 'CN=bad', serial {made.serial('bad')}, valid from "
    )
    assert f" cannot be reached: {sentence}" in refused.value.sentence
    (line,) = caplog.messages
    assert f" is not used: {sentence}" in line


async def test_a_refused_certificate_is_logged_once_until_files_are_renewed(
    made: Papers, tmp_path: Path, clock: MovableClock, caplog: pytest.LogCaptureFixture
) -> None:
    lists = tmp_path / "lists.pem"
    lists.write_bytes(made.revocations("bad"))
    tls = BrokerTls(Tls(ca=made.authority, crl=lists), clock.monotonic)
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = 23, "certificate revoked"

    def logged() -> int:
        return caplog.text.count("is not used")

    for place in ("a:1", "a:1", "b:1"):
        tls.refused(place, error, [])
    assert logged() == 2
    lists.write_bytes(made.revocations("bad", "other"))
    clock.advance(1.0)
    tls.current()
    tls.refused("a:1", error, [])
    assert logged() == 3


async def test_a_secured_connection_pays_no_callback(
    made: Papers, tmp_path: Path, make_links: Callable[..., ConnectionPool]
) -> None:
    """The one that notes certificates would be called for each record."""
    lists = tmp_path / "lists.pem"
    lists.write_bytes(made.revocations())
    links = make_links(tls=Tls(ca=made.authority, crl=lists))
    async with ScriptedPeer(tls=context_of(made.pair("broker"))) as peer:
        peer.on(ASK, lambda request: request.answer(0))
        assert (await links.call(peer.address, ASK, {}, timeout_s=5.0)).code == 0
        (channel,) = [link.channel for link in links._links.values()]
        assert channel is not None
        transport = channel.transport
        assert transport.get_extra_info("ssl_object").context._msg_callback is None
        assert (await links.call(peer.address, ASK, {}, bytes(1_000_000), timeout_s=5.0)).code == 0


async def test_a_renewed_list_counts_for_the_next_connection(
    made: Papers,
    tmp_path: Path,
    clock: MovableClock,
    make_links: Callable[..., ConnectionPool],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Connections that are there stay, and half a list changes nothing."""
    lists = tmp_path / "lists.pem"
    lists.write_bytes(made.revocations())
    links = make_links(tls=Tls(ca=made.authority, crl=lists))
    async with ScriptedPeer(tls=context_of(made.pair("broker"))) as peer:
        peer.on(ASK, lambda request: request.answer(0))

        async def ask(link: int) -> int:
            return (await links.call(peer.address, ASK, {}, timeout_s=5.0, link=link)).code

        assert await ask(0) == 0
        lists.write_bytes(made.revocations("broker")[:150])
        clock.advance(1.0)
        assert await ask(1) == 0
        assert f"remote.crl_file, {lists}, ends inside of a list" in caplog.text
        lists.write_bytes(made.revocations("broker"))
        clock.advance(1.0)
        with pytest.raises(BrokerUnavailable, match="certificate revoked"):
            await ask(2)
        assert (await ask(0), await ask(1)) == (0, 0)
    assert links.figures()["tls_crl_warnings"] == 0
    assert links.figures()["tls_crl_expiry_timestamp_seconds"] > 0


def test_renewed_files_are_read_again_and_unusable_ones_are_not(
    made: Papers, tmp_path: Path, clock: MovableClock, caplog: pytest.LogCaptureFixture
) -> None:
    authorities = tmp_path / "ca.pem"
    authorities.write_bytes(made.authority.read_bytes())
    tls = BrokerTls(Tls(ca=authorities), clock.monotonic)
    first = tls.current()
    clock.advance(1.0)
    assert tls.current() is first
    authorities.write_text("nonsense")
    clock.advance(1.0)
    assert tls.current() is first
    assert f"the authorities in {authorities} cannot be read" in caplog.text
    assert "the TLS files for brokers from before stay in use" in caplog.text
    authorities.write_bytes(made.authority.read_bytes())
    clock.advance(1.0)
    assert tls.current() is first  # it is as it was
    authorities.write_bytes(2 * made.authority.read_bytes())
    clock.advance(1.0)
    assert tls.current() is not first
    assert tls.figures() == {}


def test_lists_for_brokers_that_cannot_be_used_are_named(made: Papers, tmp_path: Path) -> None:
    lists = tmp_path / "lists.pem"
    lists.write_bytes(made.revocations())
    for tls, said in (
        (Tls(crl=lists), "needs remote.ca_file"),
        (Tls(ca=made.authority, crl=lists, verify=Verify.NONE), "needs another remote.verify than none"),
        (Tls(ca=made.authority, crl=tmp_path / "absent"), f"{tmp_path}/absent, cannot be read: no such file"),
    ):
        with pytest.raises(BadRequest, match=r"remote\.crl_file.*" + re.escape(said)):
            BrokerTls(tls)


def test_too_many_open_files_leave_what_is_in_use(
    made: Papers, tmp_path: Path, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = tmp_path / "lists.pem"
    lists.write_bytes(made.revocations())
    tls = BrokerTls(Tls(ca=made.authority, crl=lists), clock.monotonic)
    first = tls.current()
    lists.write_bytes(made.revocations("bad"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "memfd_create", _refuse)
        clock.advance(1.0)
        assert tls.current() is first
        assert any("too many" in sentence.lower() for sentence in tls.tls_warnings())
    clock.advance(10.0)
    assert tls.current() is not first
    assert first.cert_store_stats()["crl"] == 1, "it is never changed"
    assert not tls.tls_warnings()


def _refuse(*_: object) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


def test_an_encrypted_key_asks_nobody(made: Papers) -> None:
    certificate, _ = made.pair("gateway")
    with pytest.raises(BadRequest, match="is encrypted: a gateway has nobody to ask"):
        BrokerTls(Tls(ca=made.authority, certificate=certificate, key=made.encrypted("gateway")))


def test_an_empty_file_of_authorities_is_not_the_system(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(b"")
    with pytest.raises(BadRequest, match="cannot be read"):
        BrokerTls(Tls(ca=tmp_path / "ca.pem"))
