"""popgate.tls.revocation_lists and revocation_file: what a file must have, and what a renewed one."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from popgate.testing.papers import Papers
from popgate.tls import revocation_lists
from popgate.tls.revocation_file import RevocationFile
from popgate.tls.revocation_lists import Authorities

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


class Today:
    """The date, which tests move."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def both(papers: Papers, others: Papers, tmp_path: Path) -> Path:
    """A file with both authorities."""
    file = tmp_path / "both.pem"
    file.write_bytes(papers.authority.read_bytes() + others.authority.read_bytes())
    return file


@pytest.fixture
def put(tmp_path: Path) -> Callable[[bytes], Path]:
    """Replaces the file of lists."""

    def write(data: bytes) -> Path:
        fresh = tmp_path / "lists.new"
        fresh.write_bytes(data)
        os.replace(fresh, tmp_path / "lists.pem")
        return tmp_path / "lists.pem"

    return write


def opened(file: Path, authorities: Path, today: Callable[[], datetime] | None = None) -> RevocationFile:
    known = Authorities.read(authorities)
    return RevocationFile("tls.crl_file", file, known, peers="clients", now=today or Today())


def looked(lists: RevocationFile, authorities: Path | None = None) -> bool:
    """As a listener looks at them; whether others are in force since."""
    before = lists.current
    lists.accept(lists.look(Authorities.read(authorities) if authorities is not None else before.authorities))
    lists.report()
    return lists.current is not before


def refusal(file: Path, authorities: Path) -> str:
    with pytest.raises(ValueError, match=r".") as refused:
        opened(file, authorities)
    sentence = str(refused.value)
    assert sentence.startswith(f"tls.crl_file, {file}, ")
    return sentence


def test_one_list_and_several(
    papers: Papers, others: Papers, both: Path, put: Callable[[bytes], Path]
) -> None:
    file = put(papers.revocations("bad") + others.revocations())
    lists = opened(file, both)
    assert [known.issuer for known in lists.current.lists] == ["CN=authority", "CN=others"]
    assert not lists.current.missing
    assert not list(lists.doubts())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    lists.current.install(context)
    assert context.cert_store_stats() == {"x509": 0, "crl": 2, "x509_ca": 0}
    assert context.verify_flags & ssl.VERIFY_CRL_CHECK_CHAIN == ssl.VERIFY_CRL_CHECK_CHAIN


def test_what_was_checked_is_used_also_when_the_file_changes(
    papers: Papers, put: Callable[[bytes], Path]
) -> None:
    lists = opened(put(papers.revocations()), papers.authority)
    put(b"")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    lists.current.install(context)
    assert context.cert_store_stats()["crl"] == 1


def test_files_that_are_no_lists_are_refused(
    papers: Papers, others: Papers, put: Callable[[bytes], Path], tmp_path: Path
) -> None:
    whole, foreign = papers.revocations("bad"), others.revocations()
    der = ssl.PEM_cert_to_DER_cert(whole.decode().replace("X509 CRL", "CERTIFICATE"))
    assert "cannot be read: no such file" in refusal(tmp_path / "absent", papers.authority)
    assert "cannot be read: is a directory" in refusal(tmp_path, papers.authority)
    for data, reason in (
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"nonsense", "has no revocation list in PEM"),
        (der, "openssl crl -inform DER converts one"),
        (whole[: len(whole) // 2], "written only in part"),
        (whole + whole[:40], "written only in part"),
        (whole[:100] + whole, "written only in part"),
        (whole.replace(b"-----\nMI", b"-----\nAA"), "has a list that cannot be read, the one with number 1"),
        (papers.authority.read_bytes(), "has a CERTIFICATE, and may have revocation lists only"),
        (whole + others.authority.read_bytes(), "has a CERTIFICATE"),
        (foreign, "but one of CN=others"),
    ):
        assert reason in refusal(put(data), papers.authority), data


def test_a_list_of_somebody_else_with_the_same_name_is_refused(
    papers: Papers, put: Callable[[bytes], Path], tmp_path: Path
) -> None:
    twin = Papers(tmp_path)
    assert "this authority has not signed" in refusal(put(twin.revocations()), papers.authority)


def test_a_file_that_is_too_long_is_refused(
    papers: Papers, put: Callable[[bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revocation_lists, "LONGEST_BYTES", 100)
    assert "has more than 100 bytes" in refusal(put(papers.revocations()), papers.authority)


def test_an_authority_that_may_not_sign_lists_is_named(put: Callable[[bytes], Path], tmp_path: Path) -> None:
    papers = Papers(tmp_path, extensions=("keyUsage=keyCertSign",))
    assert "(key usage cRLSign)" in refusal(put(papers.revocations()), papers.authority)


def test_authorities_that_cannot_be_read_are_named(
    papers: Papers, put: Callable[[bytes], Path], tmp_path: Path
) -> None:
    odd = tmp_path / "odd.pem"
    odd.write_text("nonsense")
    for authorities in (odd, tmp_path / "absent"):
        with pytest.raises(ValueError, match=re.escape(f"the authorities in {authorities}")):
            opened(put(papers.revocations()), authorities)


def test_an_authority_without_a_list_is_a_doubt(
    papers: Papers, both: Path, put: Callable[[bytes], Path], caplog: pytest.LogCaptureFixture
) -> None:
    lists = opened(put(papers.revocations()), both)
    assert lists.figures()["tls_crl_refusing"] == 1
    for _ in range(3):
        looked(lists)
    (line,) = caplog.records
    assert "has no list of CN=others: clients with a certificate from there are refused" in line.getMessage()
    assert line.levelname == "ERROR"


def test_of_two_authorities_of_one_name_each_needs_a_list(
    papers: Papers, put: Callable[[bytes], Path], tmp_path: Path
) -> None:
    """As while an authority changes its key."""
    twin, authorities = Papers(tmp_path), tmp_path / "twins.pem"
    authorities.write_bytes(papers.authority.read_bytes() + twin.authority.read_bytes())
    assert opened(put(papers.revocations()), authorities).current.missing == ("CN=authority",)
    assert not opened(put(papers.revocations() + twin.revocations()), authorities).current.missing


def test_lists_near_their_end_are_reported_beforehand(
    papers: Papers, put: Callable[[bytes], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """In the last twentieth of the time for which they are made, and at most 14 days ahead."""
    today = Today()
    begin = today.now
    lists = opened(put(papers.revocations(begins=timedelta(), ends=8 * DAY)), papers.authority, today)
    assert lists.figures()["tls_crl_warnings"] == 0
    (known,) = lists.current.lists
    assert known.ends is not None
    assert lists.figures()["tls_crl_expiry_timestamp_seconds"] == known.ends.timestamp()
    today.now = begin + 7 * DAY
    looked(lists)
    assert not caplog.records
    today.now = begin + 7.75 * DAY
    for _ in range(2):
        looked(lists)
    assert "has a list of CN=authority that expires at" in caplog.records[-1].getMessage()
    today.now = begin + 8 * DAY + HOUR
    for _ in range(2):
        looked(lists)
    assert "has a list of CN=authority that expired at" in caplog.records[-1].getMessage()
    assert [line.levelname for line in caplog.records] == ["WARNING", "ERROR"]
    assert lists.figures()["tls_crl_refusing"] == 1
    assert lists.figures()["tls_crl_warnings"] == 0

    long = opened(put(papers.revocations(begins=-365 * DAY, ends=15 * DAY)), papers.authority)
    assert not list(long.doubts())


def test_of_two_lists_of_one_authority_the_newest_counts(
    papers: Papers, put: Callable[[bytes], Path]
) -> None:
    file = put(
        papers.revocations(ends=30 * DAY, begins=-HOUR) + papers.revocations(begins=-9 * DAY, ends=-DAY)
    )
    lists = opened(file, papers.authority)
    assert len(lists.current.lists) == 1
    assert not list(lists.doubts())


def test_half_a_renewal_leaves_the_lists_from_before_in_force(
    papers: Papers, put: Callable[[bytes], Path], caplog: pytest.LogCaptureFixture
) -> None:
    file = put(papers.revocations())
    whole = papers.revocations("bad")  # not older than the one in force
    lists = opened(file, papers.authority)
    before = lists.current
    for data, reason in (
        (whole[:-40], "written only in part"),
        (b"", "is empty"),
        (b"x", "no revocation list"),
    ):
        caplog.clear()
        put(data)
        for _ in range(3):
            assert not looked(lists)
        assert lists.current is before
        (line,) = caplog.records
        assert line.getMessage().startswith(f"tls.crl_file, {file}, ")
        assert reason in line.getMessage()
        assert line.getMessage().endswith("the revocation lists from before stay in force")
    caplog.clear()
    file.unlink()
    assert not looked(lists)
    assert "cannot be read: no such file" in caplog.text
    put(whole)
    assert looked(lists)
    assert lists.current.data == whole
    assert not looked(lists)


def test_a_renewed_file_that_would_refuse_everybody_is_not_taken(
    papers: Papers, others: Papers, both: Path, put: Callable[[bytes], Path], caplog: pytest.LogCaptureFixture
) -> None:
    good = papers.revocations() + others.revocations()
    lists = opened(put(good), both)
    for data, reason in (
        (papers.revocations(), "has no list of CN=others any more"),
        (others.revocations() + papers.revocations(begins=-9 * DAY, ends=-DAY), "that expired at"),
    ):
        put(data)
        assert not looked(lists)
        assert lists.current.data == good
        assert reason in caplog.records[-1].getMessage()


def test_lists_that_are_not_valid_yet_are_taken_when_they_are(
    papers: Papers, put: Callable[[bytes], Path], caplog: pytest.LogCaptureFixture
) -> None:
    today = Today()
    lists = opened(put(papers.revocations()), papers.authority, today)
    put(papers.revocations("bad", begins=2 * HOUR))
    for _ in range(3):
        assert not looked(lists)
    (line,) = caplog.records
    assert "that is not valid before" in line.getMessage()
    today.now += 3 * HOUR
    assert looked(lists)


def test_lists_that_have_expired_are_better_than_none_at_the_start(
    papers: Papers, put: Callable[[bytes], Path]
) -> None:
    """Clients are refused until the file is renewed, which needs no restart."""
    lists = opened(put(papers.revocations(begins=-9 * DAY, ends=-DAY)), papers.authority)
    ((sentence, is_now),) = lists.doubts()
    assert is_now
    assert "expired at" in sentence
    put(papers.revocations())
    assert looked(lists)
    assert not list(lists.doubts())


def test_openssl_reads_what_was_made(papers: Papers, put: Callable[[bytes], Path]) -> None:
    file = put(papers.revocations("bad"))
    shown = subprocess.run(
        ["openssl", "crl", "-in", str(file), "-noout", "-text"], capture_output=True, text=True, check=True
    )
    assert papers.serial("bad") in shown.stdout
