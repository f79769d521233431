"""popgate.tls.renewed_context: no renewal, whole, half or of one file only, lets a revoked client in."""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from popgate.testing.clock import MovableClock
from popgate.testing.papers import Papers
from protocols.tls import Certificate

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


class Site:
    """A certificate with lists, and handshakes with it in memory."""

    def __init__(self, folder: Path, papers: Papers) -> None:
        self.papers = papers
        self.clock = MovableClock()
        self.certificate_file, self.key_file = folder / "tls.crt", folder / "tls.key"
        self.authorities, self.lists = folder / "ca.pem", folder / "lists.pem"
        self.install("gateway")
        self.authorities.write_bytes(papers.authority.read_bytes())

    def install(self, name: str) -> None:
        certificate, key = self.papers.pair(name)
        self.certificate_file.write_bytes(certificate.read_bytes())
        self.key_file.write_bytes(key.read_bytes())

    def open(self, lists: bytes) -> None:
        self.lists.write_bytes(lists)
        self.certificate = Certificate(
            self.certificate_file,
            self.key_file,
            client_ca=self.authorities,
            crl_file=self.lists,
            now=self.clock.monotonic,
        )

    def renew(self, lists: bytes, seconds: float = 1.0) -> None:
        """Replace the file of lists, and have it looked at."""
        fresh = self.lists.with_suffix(".new")
        fresh.write_bytes(lists)
        os.replace(fresh, self.lists)
        self.look(seconds)

    def look(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        self.certificate.current()

    def later(self, more: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have it be later by so much, for lists."""
        revocation = self.certificate.revocation
        assert revocation is not None
        now = revocation._now
        monkeypatch.setattr(revocation, "_now", lambda: now() + more)

    def client(self, name: str, papers: Papers | None = None, **versions: ssl.TLSVersion) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.papers.authority)
        context.load_cert_chain(*(papers or self.papers).pair(name))
        for which, version in versions.items():
            setattr(context, which, version)
        return context

    def shake(self, client: ssl.SSLContext, session: ssl.SSLSession | None = None) -> ssl.SSLObject:
        """The client's side. Raises SSLError when it is refused."""
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        ours = self.certificate.current().wrap_bio(to_server, to_client, server_side=True)
        theirs = client.wrap_bio(to_client, to_server, server_hostname="localhost", session=session)
        waiting = [theirs, ours]
        while waiting:
            for side in tuple(waiting):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                waiting.remove(side)
        ours.write(b"yes")
        assert theirs.read(3) == b"yes"
        return theirs

    def takes(self, name: str, papers: Papers | None = None) -> bool:
        try:
            self.shake(self.client(name, papers))
        except ssl.SSLError:
            return False
        return True


@pytest.fixture
def site(tmp_path: Path, papers: Papers) -> Site:
    return Site(tmp_path, papers)


@pytest.mark.parametrize(
    "extension",
    [
        x509.DeltaCRLIndicator(1),
        x509.IssuingDistributionPoint(None, None, True, False, None, False, False),
        x509.IssuingDistributionPoint(None, None, False, True, None, False, False),
        x509.IssuingDistributionPoint(None, None, False, False, None, True, False),
        x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00"),
    ],
)
def test_lists_that_are_not_complete_take_no_place_of_others(
    site: Site, papers: Papers, extension: x509.ExtensionType
) -> None:
    """Of a delta OpenSSL thinks that it is complete, and of others that they are for nobody."""
    full = papers.revocations("bad", begins=-2 * DAY)
    site.open(full)
    partial = papers.revocations("other", extensions=[extension])
    for data in (partial, full + partial):
        site.renew(data)
        assert not site.takes("bad")
        assert site.takes("good")
        ((sentence),) = site.certificate.warnings()
        assert "has a list of CN=authority that " in sentence
        assert site.certificate.figures()["tls_crl_warnings"] == 1
        with pytest.raises(ValueError, match="has a list of CN=authority that "):
            site.open(data)
    site.renew(full)
    assert not site.certificate.warnings()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("spoilt", [True, False])
def test_no_session_outlives_the_lists_it_was_made_with(
    site: Site, papers: Papers, version: ssl.TLSVersion, spoilt: bool
) -> None:
    """Also when the certificate cannot be read just then, which lists do not wait for."""
    site.open(papers.revocations())
    client = site.client("orders", maximum_version=version)
    first = site.shake(client)
    assert site.shake(client, first.session).session_reused == (version is ssl.TLSVersion.TLSv1_2)
    before = site.certificate.current()
    if spoilt:
        site.certificate_file.write_bytes(b"half")
    site.renew(papers.revocations("orders"))
    assert site.certificate.current() is not before, "one that was given out is never changed"
    assert before.cert_store_stats()["crl"] == 1
    with pytest.raises(ssl.SSLError, match=r".") as refused:
        site.shake(client, first.session)
    assert "revoked" in str(refused.value).lower()
    assert site.takes("good")


def test_with_lists_there_are_no_tickets_of_tls_1_3(site: Site, papers: Papers) -> None:
    """Of TLS 1.2 there are: OpenSSL would keep those sessions in memory else."""
    site.open(papers.revocations())
    context = site.certificate.current()
    assert context.num_tickets == 0
    session = site.shake(site.client("orders", maximum_version=ssl.TLSVersion.TLSv1_3)).session
    assert session is None or not session.has_ticket
    for _ in range(3):
        session = site.shake(site.client("orders", maximum_version=ssl.TLSVersion.TLSv1_2)).session
        assert session is not None
        assert session.has_ticket
    assert context.session_stats()["number"] == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_ends_with_the_list_it_was_made_with(
    site: Site, papers: Papers, version: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.open(papers.revocations(ends=DAY))
    client = site.client("orders", maximum_version=version)
    session = site.shake(client).session
    assert site.shake(client, session).session_reused == (version is ssl.TLSVersion.TLSv1_2)
    site.later(2 * DAY, monkeypatch)
    before = site.certificate.current()
    site.look()
    assert site.certificate.current() is not before
    assert not site.shake(client, session).session_reused


def test_a_file_that_was_refused_is_read_again_when_a_list_in_force_ends(
    site: Site, tmp_path: Path, papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "other").mkdir()
    other = Papers(folder, name="other")
    site.authorities.write_bytes(papers.authority.read_bytes() + other.authority.read_bytes())
    site.open(papers.revocations(ends=DAY) + other.revocations(ends=5 * DAY))
    site.renew(other.revocations("bad", ends=20 * DAY))
    assert "has no list of CN=authority any more" in site.certificate.warnings()[0]
    assert site.takes("bad", other)
    site.later(2 * DAY, monkeypatch)
    site.look()
    assert not site.takes("bad", other)
    assert site.takes("good", other)


@pytest.mark.parametrize("serial", [True, False])
def test_a_list_that_means_another_certificate_of_its_authority_is_left_out(
    site: Site, papers: Papers, serial: bool
) -> None:
    """OpenSSL does not use it, so that all clients would be refused."""
    authority = x509.load_pem_x509_certificate(papers.authority.read_bytes())
    names = [x509.DirectoryName(authority.issuer)]
    right = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    wrong = x509.AuthorityKeyIdentifier(b"elsewhere", None, None)
    if serial:
        wrong = x509.AuthorityKeyIdentifier(right.key_identifier, names, authority.serial_number + 1)
    with pytest.raises(ValueError, match="another certificate of this authority"):
        site.open(papers.revocations(identifier=wrong))
    whole = x509.AuthorityKeyIdentifier(right.key_identifier, names, authority.serial_number)
    site.open(papers.revocations("bad", identifier=whole))
    assert site.takes("good")
    site.renew(papers.revocations(identifier=wrong))
    assert site.takes("good")
    assert not site.takes("bad")
    assert site.certificate.warnings()


def test_a_critical_extension_of_an_entry_refuses_nobody(site: Site, papers: Papers) -> None:
    site.open(papers.revocations("bad"))
    reason = x509.CRLReason(x509.ReasonFlags.key_compromise)
    site.renew(papers.revocations("bad", "other", of_entries=[reason]))
    assert site.takes("good")
    assert not site.takes("bad")
    assert "has an entry with a critical extension (2.5.29.21)" in site.certificate.warnings()[0]


def test_files_that_were_away_for_a_moment_are_not_renewed(site: Site, papers: Papers) -> None:
    site.open(papers.revocations())
    before, contents = site.certificate.current(), site.certificate_file.read_bytes()
    site.certificate_file.unlink()
    site.look()
    site.certificate_file.write_bytes(contents)
    site.look()
    assert site.certificate.current() is before
    assert site.certificate.generation == 0


def test_files_that_were_only_touched_make_no_context(
    site: Site, papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.open(papers.revocations())
    before = site.certificate.current()
    with monkeypatch.context() as patched:
        patched.setattr(site.certificate._renewed, "_make", None)
        os.utime(site.key_file, (1, 1))
        site.look()
    assert site.certificate.current() is before


def test_without_lists_authorities_may_be_trusted_certificates(site: Site, papers: Papers) -> None:
    """In OpenSSL's own form, as some distributions have them."""
    trusted = papers.authority.read_text().replace(" CERTIFICATE-", " TRUSTED CERTIFICATE-")
    site.authorities.write_text(trusted)
    site.certificate = Certificate(site.certificate_file, site.key_file, client_ca=site.authorities)
    assert site.takes("good")


def test_without_proc_there_are_files(site: Site, papers: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "isdir", lambda path: path != "/proc/self/fd" and Path(path).is_dir())
    site.open(papers.revocations("bad"))
    assert site.takes("good")
    assert not site.takes("bad")


def test_descriptors_that_are_used_up_at_the_start_are_said(
    site: Site, papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def used_up(_name: str) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "memfd_create", used_up)
    with pytest.raises(ValueError, match="cannot be used: too many open files"):
        site.open(papers.revocations())


def joined_without_a_newline(first: bytes, second: bytes) -> bytes:
    return first.rstrip() + second


def indented(first: bytes, second: bytes) -> bytes:
    return b" " + second + first


def after_a_mark(first: bytes, second: bytes) -> bytes:
    return b"\xef\xbb\xbf" + second + first


def in_one_line(first: bytes, second: bytes) -> bytes:
    return first + b"# the next one: " + second


@pytest.mark.parametrize("put", [joined_without_a_newline, indented, after_a_mark, in_one_line])
def test_openssl_gets_what_was_understood(
    site: Site, papers: Papers, put: Callable[[bytes, bytes], bytes]
) -> None:
    """However the file is written, of two lists the newer one counts."""
    older = papers.revocations("bad", begins=-2 * DAY)
    site.open(older)
    site.renew(put(older, papers.revocations("bad", "fourth")))
    assert not site.takes("fourth")
    assert not site.takes("bad")
    assert site.takes("good")


def test_line_ends_are_no_matter_or_are_refused(site: Site, papers: Papers) -> None:
    site.open(papers.revocations("bad"))
    for line_end in (b"\r\n", b"\r"):
        site.renew(papers.revocations("bad", "fourth").replace(b"\n", line_end))
        assert not site.takes("bad")
        assert site.takes("fourth") is bool(site.certificate.warnings())


def no_more_files(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize("place", [(os, "memfd_create"), (Path, "open")])
def test_too_many_open_files_delay_a_renewal_only(
    site: Site,
    papers: Papers,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    place: tuple[object, str],
) -> None:
    site.open(papers.revocations("bad"))
    known = site.certificate.revocation
    assert known is not None
    before = known.current
    site.lists.write_bytes(papers.revocations("bad", "fourth"))
    site.install("renewed")
    with monkeypatch.context() as patched:
        patched.setattr(*place, no_more_files)
        for _ in range(3):
            site.look()
            site.certificate.figures()
    assert known.current is before, "what is not used does not count as in force"
    assert caplog.text.lower().count("too many open files") == 2, "once for each of both"
    site.look(10.0)
    assert not site.takes("fourth")
    assert site.takes("good")
    assert not site.certificate.warnings()
    assert site.certificate.generation > 0


def test_an_authority_may_change_its_key(site: Site, papers: Papers, tmp_path: Path) -> None:
    """Its lists of the old key are renewed meanwhile; those of the new one are missed, and said to be."""
    (tmp_path / "twin").mkdir()
    twin = Papers(tmp_path / "twin")
    site.open(papers.revocations(begins=-2 * DAY))
    site.authorities.write_bytes(papers.authority.read_bytes() + twin.authority.read_bytes())
    site.look()
    ((sentence),) = site.certificate.warnings()
    assert "has no list of CN=authority: clients" in sentence
    assert site.certificate.figures()["tls_crl_refusing"] == 1
    assert not site.takes("good", twin)
    site.renew(papers.revocations("bad"))
    assert not site.takes("bad")
    assert site.takes("good")
    site.renew(papers.revocations("bad") + twin.revocations("bad"))
    assert not site.certificate.warnings()
    assert site.takes("good", twin)
    assert not site.takes("bad", twin)
    site.authorities.write_bytes(twin.authority.read_bytes())
    site.look()
    assert not site.takes("good")
    assert site.takes("good", twin)
    assert not site.takes("bad", twin)
    site.renew(twin.revocations("bad", "good"))
    assert not site.takes("good", twin)
    assert not site.certificate.warnings()


def test_new_authorities_without_lists_are_said_to_be(site: Site, papers: Papers, others: Papers) -> None:
    site.open(papers.revocations("bad"))
    site.authorities.write_bytes(others.authority.read_bytes())
    site.look()
    assert not site.takes("good")
    assert not site.takes("good", others)
    assert any("has no list of CN=others: clients" in each for each in site.certificate.warnings())
    assert site.certificate.figures()["tls_crl_refusing"] == 1
    site.renew(others.revocations("bad"))
    assert site.takes("good", others)
    assert not site.takes("bad", others)
    assert not site.certificate.warnings()


def test_authorities_and_lists_may_be_replaced_in_any_order(
    site: Site, papers: Papers, others: Papers
) -> None:
    site.open(papers.revocations("bad"))
    site.renew(others.revocations("bad"))
    assert site.takes("good")
    assert not site.takes("bad")
    assert "has no list of an authority in" in site.certificate.warnings()[0]
    site.authorities.write_bytes(others.authority.read_bytes())
    site.look()
    assert site.takes("good", others)
    assert not site.takes("bad", others)
    assert not site.takes("good")
    assert not site.certificate.warnings()


def test_an_authority_is_no_excuse_for_another(
    site: Site, papers: Papers, others: Papers, caplog: pytest.LogCaptureFixture
) -> None:
    """One whose list has expired already does not let the list of another expire."""
    site.authorities.write_bytes(papers.authority.read_bytes() + others.authority.read_bytes())
    expired = papers.revocations(begins=-3 * DAY, ends=-DAY)
    site.open(expired + others.revocations("bad"))
    assert not site.takes("good")
    assert site.takes("good", others)
    for data, reason in (
        (expired + others.revocations(begins=-HOUR, ends=-HOUR / 2), "a list of CN=others that expired at"),
        (expired + others.revocations(begins=HOUR), "a list of CN=others that is not valid before"),
        (expired, "has no list of CN=others any more"),
    ):
        site.renew(data)
        assert site.takes("good", others)
        assert reason in caplog.text
    site.renew(others.revocations("bad"))
    assert site.takes("good", others)
    assert not site.takes("bad", others)
    site.renew(papers.revocations("bad") + others.revocations("bad"))
    assert site.takes("good")


def test_the_next_list_may_be_there_beforehand(
    site: Site, papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL is given the one that is valid, and the next one when that is."""
    today = papers.revocations("bad", begins=-9 * DAY, ends=DAY / 4)
    site.open(today)
    assert site.certificate.figures()["tls_crl_warnings"] == 1
    site.renew(papers.revocations("bad", "fourth", begins=DAY / 8) + today)
    assert site.takes("good")
    assert site.takes("fourth")
    assert not site.takes("bad")
    assert not site.certificate.warnings()
    revocation = site.certificate.revocation
    assert revocation is not None
    now = revocation._now
    monkeypatch.setattr(revocation, "_now", lambda: now() + DAY)
    site.look()
    ((chosen),) = revocation.current.lists
    assert chosen.ends == max(each.ends for each in revocation.current.all if each.ends is not None)
    assert not site.certificate.warnings()


def test_a_list_of_no_authority_may_go_which_the_log_says(
    site: Site, papers: Papers, others: Papers, caplog: pytest.LogCaptureFixture
) -> None:
    site.open(papers.revocations() + others.revocations())
    site.renew(papers.revocations("bad"))
    assert not site.takes("bad")
    assert "has no list of CN=others any more, which is no authority of the gateway" in caplog.text


def test_lists_in_the_file_of_authorities_do_not_count(site: Site, papers: Papers) -> None:
    site.open(papers.revocations("bad", begins=-DAY))
    site.authorities.write_bytes(papers.authority.read_bytes() + papers.revocations(begins=-HOUR))
    site.look()
    assert not site.takes("bad")
    assert site.takes("good")


def test_no_older_list_is_taken(site: Site, papers: Papers) -> None:
    newer = papers.revocations("bad", extensions=[x509.CRLNumber(5)])
    site.open(newer)
    for older in (
        papers.revocations(begins=-2 * DAY, extensions=[x509.CRLNumber(5)]),
        papers.revocations(begins=-2 * DAY),
    ):
        site.renew(older)
        assert not site.takes("bad")
        ((sentence),) = site.certificate.warnings()
        assert "has a list of CN=authority that is older than the one in force" in sentence
        assert site.certificate.figures()["tls_crl_warnings"] == 1
    site.renew(papers.revocations("bad", "fourth", extensions=[x509.CRLNumber(6)]))
    assert not site.takes("fourth")
    assert not site.certificate.warnings()
