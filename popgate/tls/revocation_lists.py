"""Certificate revocation lists (RFC 5280 section 5): a file of them, checked before it is used, and renewed.

OpenSSL refuses every certificate whose issuer has no valid list. A file that would do that is therefore
refused with a sentence where that can be known, and what will happen later is logged beforehand.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from popgate.tls.watched_files import WatchedFiles

if TYPE_CHECKING:
    from cryptography import x509

LONGEST_BYTES: Final = 16 << 20
"""Of a file: some 350,000 revoked certificates, which take half a second to load."""
_SOON: Final = timedelta(days=14)
_SOON_PART: Final = 0.25
"""Lists last for hours or for months: a warning comes in the last quarter, at most `_SOON` ahead."""
_LABEL: Final = "X509 CRL"
_BEGINNING: Final = re.compile(rb"-----BEGIN ([^-\r\n]+)-----")
_BLOCK: Final = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)

_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class RevocationList:
    """Of one authority. `ends`: when it expires; None: never."""

    issuer: str
    begins: datetime
    ends: datetime | None

    def warns_from(self) -> datetime | None:
        """From when on its end is near."""
        if self.ends is None:
            return None
        return self.ends - min(_SOON, (self.ends - self.begins) * _SOON_PART)


@dataclass(slots=True, frozen=True)
class RevocationLists:
    """The contents of a file: the list in force of each authority."""

    data: bytes
    lists: tuple[RevocationList, ...]
    missing: tuple[str, ...]
    """The authorities without a list."""

    def expired(self, now: datetime) -> RevocationList | None:
        """One that has expired."""
        return next((known for known in self.lists if known.ends is not None and known.ends <= now), None)

    def unripe(self, now: datetime) -> RevocationList | None:
        """One that is not valid yet."""
        return next((known for known in self.lists if known.begins > now), None)

    def install(self, context: ssl.SSLContext) -> None:
        """Have certificates of peers checked against them, and those of their authorities up to the root.

        As nginx, HAProxy and Envoy do by default: a revoked intermediate authority vouches for nobody.
        Raises ValueError, OSError.
        """
        try:
            with _as_file(self.data) as name:
                context.load_verify_locations(name)
        except ssl.SSLError as error:
            raise ValueError(f"OpenSSL does not take it: {error.reason or error}") from None
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN


def _utc_now() -> datetime:
    return datetime.now(UTC)


class RevocationFile:
    """A file of lists. `setting` names it, `authorities` is the PEM file of those who may issue certificates.

    `peers`: whose certificates are looked at, in plural. A renewed file that cannot be used, or that would
    refuse peers that are accepted now, is logged, and the last good contents stay in force.
    """

    def __init__(
        self,
        setting: str,
        file: Path,
        authorities: Path,
        *,
        peers: str,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        """Raises ValueError with a sentence: setting, file and reason."""
        self._setting = setting
        self.file = file
        self._authorities = authorities
        self._peers = peers
        self._now = now
        self._retry_at: datetime | None = None
        self._watched = WatchedFiles((file, authorities))
        self._reported: set[str] = set()
        self.current = self._read()

    def __repr__(self) -> str:
        return f"<RevocationFile {self.file} lists {len(self.current.lists)}>"

    @property
    def name(self) -> str:
        """The setting and the file, as sentences begin."""
        return f"{self._setting}, {self.file},"

    def install(self, context: ssl.SSLContext) -> None:
        """Raises ValueError with a sentence."""
        try:
            self.current.install(context)
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.name} cannot be used: {error}") from None

    def look(self) -> bool:
        """Read the file again if it has changed; whether other lists are in force since.

        What cannot be used is logged, and so is what makes OpenSSL refuse peers, now or soon.
        """
        before = self.current
        if self._watched.changed() or (self._retry_at is not None and self._now() >= self._retry_at):
            self._renew()
        self.report()
        return self.current is not before

    def _renew(self) -> None:
        self._retry_at = None
        try:
            read = self._read()
            if read.data == self.current.data and read.missing == self.current.missing:
                return
            self._compare(read)
        except ValueError as error:
            _log.error("%s; the revocation lists from before stay in force", error)
            return
        self.current = read
        self._reported.clear()
        _log.info("the revocation lists %s were renewed: %s", self.file, _described(read.lists))

    def report(self) -> None:
        """Log each of `doubts` once."""
        for sentence, is_now in self.doubts():
            if sentence not in self._reported:
                self._reported.add(sentence)
                _log.log(logging.ERROR if is_now else logging.WARNING, "%s", sentence)

    def doubts(self) -> Iterator[tuple[str, bool]]:
        """Sentences about lists that are missing, expired or near their end; True: peers are refused now."""
        now = self._now()
        for issuer in self.current.missing:
            yield self._doubt(f"no list of {issuer}"), True
        for known in self.current.lists:
            warns_from, a_list = known.warns_from(), f"a list of {known.issuer}"
            if known.begins > now:
                yield (
                    self._doubt(f"{a_list} that is not valid before {_time(known.begins)}", "until then"),
                    True,
                )
            elif known.ends is not None and known.ends <= now:
                yield self._doubt(f"{a_list} that expired at {_time(known.ends)}"), True
            elif known.ends is not None and warns_from is not None and warns_from <= now:
                yield self._doubt(f"{a_list} that expires at {_time(known.ends)}", "from then on"), False

    def _doubt(self, has: str, when: str = "") -> str:
        refused = f"{self._peers} with a certificate from there are refused {when}".rstrip()
        return f"{self.name} has {has}: {refused}"

    def figures(self) -> dict[str, float]:
        """For the metrics: `doubts`, and when the first list expires, in Unix seconds, if one does."""
        ends = [known.ends.timestamp() for known in self.current.lists if known.ends is not None]
        figures: dict[str, float] = {"tls_crl_warnings": sum(1 for _ in self.doubts())}
        return {**figures, "tls_crl_expiry_timestamp_seconds": min(ends)} if ends else figures

    def _read(self) -> RevocationLists:
        """Raises ValueError with a sentence."""
        from cryptography.exceptions import UnsupportedAlgorithm

        try:
            return read_lists(self.file, self._authorities)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ValueError(f"{self.name} {error}") from None

    def _compare(self, read: RevocationLists) -> None:
        """Raises ValueError for a file that would refuse peers that are accepted now."""
        now = self._now()
        listed = {known.issuer for known in self.current.lists} - set(self.current.missing)
        if lost := listed & set(read.missing):
            raise ValueError(f"{self.name} has no list of {min(lost)} any more")
        if (unripe := read.unripe(now)) is not None and self.current.unripe(now) is None:
            self._retry_at = unripe.begins
            raise ValueError(
                f"{self.name} has a list of {unripe.issuer} that is not valid before {_time(unripe.begins)}"
            )
        expired = read.expired(now)
        if expired is not None and expired.ends is not None and self.current.expired(now) is None:
            raise ValueError(
                f"{self.name} has a list of {expired.issuer} that expired at {_time(expired.ends)}"
            )


def figures_of(revocation: RevocationFile | None, look: Callable[[], object]) -> dict[str, float]:
    """For the metrics, after a look at the files; empty where there are no lists."""
    if revocation is None:
        return {}
    look()
    return revocation.figures()


def read_lists(file: Path, authorities: Path) -> RevocationLists:
    """The lists in a PEM file, one or several. Raises ValueError with the end of a sentence about it."""
    from cryptography import x509  # heavy, and wanted where lists are set only

    data = _contents(file)
    known = _authorities_in(authorities)
    newest: dict[tuple[str, bytes], RevocationList] = {}
    for number, block in enumerate(_blocks(data), 1):
        try:
            read = x509.load_pem_x509_crl(block)
            issuer, begins, ends = _dn(read.issuer), read.last_update_utc, read.next_update_utc
        except ValueError as error:
            raise ValueError(
                f"has a list that cannot be read, the one with number {number}: {error}"
            ) from None
        key = issuer, _issuer_key(read, known)
        before = newest.get(key)
        if before is None or before.begins < begins:  # OpenSSL, too, takes the newest
            newest[key] = RevocationList(issuer, begins, ends)
    if not any(key for _, key in newest):
        raise ValueError(f"has no list of an authority in {authorities}, but one of {min(newest)[0]}")
    keys = {key for _, key in newest}
    missing = dict.fromkeys(_dn(authority.subject) for authority in known if _key(authority) not in keys)
    return RevocationLists(data, tuple(newest.values()), tuple(missing))


@contextlib.contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """The name of a file with these contents, so that what was checked is used. Raises OSError.

    OpenSSL reads lists from files only.
    """
    in_memory = sys.platform == "linux"  # where folders for temporary files may be read-only
    with os.fdopen(os.memfd_create("lists"), "w+b") if in_memory else tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        file.seek(0)
        yield f"/proc/self/fd/{file.fileno()}" if in_memory else f"/dev/fd/{file.fileno()}"


def _contents(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(LONGEST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {(error.strerror or str(error)).lower()}") from None
    if len(data) > LONGEST_BYTES:
        raise ValueError(f"has more than {LONGEST_BYTES} bytes")
    if not data.strip():
        raise ValueError("is empty")
    return data


def _blocks(data: bytes) -> Sequence[bytes]:
    """Raises ValueError."""
    labels = [label.decode("ascii", "replace") for label in _BEGINNING.findall(data)]
    if not labels:
        raise ValueError(
            f"has no revocation list in PEM (BEGIN {_LABEL}); openssl crl -inform DER converts one"
        )
    # OpenSSL would take a certificate in that file for an authority to believe.
    other = next((label for label in labels if label != _LABEL), "")
    if other:
        raise ValueError(f"has a {other}, and may have revocation lists only ({_LABEL})")
    blocks = _BLOCK.findall(data)
    if len(blocks) != len(labels) or any(block.count(b"-----BEGIN ") != 1 for block in blocks):
        raise ValueError("ends inside of a list: it is written only in part")
    return cast("list[bytes]", blocks)


def _authorities_in(file: Path) -> Sequence[x509.Certificate]:
    """Raises ValueError."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(file.read_bytes())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    except ValueError as error:
        reason = str(error)
    raise ValueError(f"cannot be compared with the authorities in {file}: {reason}")


def _issuer_key(read: x509.CertificateRevocationList, authorities: Sequence[x509.Certificate]) -> bytes:
    """The key that signed it, which tells authorities of one name apart; empty: of none of these authorities.

    Raises ValueError for a list that its authority did not sign, or may not.
    """
    named = [authority for authority in authorities if authority.subject == read.issuer]
    for authority in named:
        if _has_signed(authority, read):
            if not _may_sign(authority):
                raise ValueError(
                    f"has a list of {_dn(read.issuer)}, whose certificate does not allow it to sign lists"
                    " (key usage cRLSign)"
                )
            return _key(authority)
    if named:
        raise ValueError(f"has a list of {_dn(read.issuer)} that this authority has not signed")
    return b""


def _has_signed(authority: x509.Certificate, read: x509.CertificateRevocationList) -> bool:
    try:
        return read.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a kind of key that signs nothing
        return False


def _may_sign(authority: x509.Certificate) -> bool:
    from cryptography import x509

    try:
        return authority.extensions.get_extension_for_class(x509.KeyUsage).value.crl_sign
    except x509.ExtensionNotFound:
        return True


def _key(authority: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return authority.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _dn(name: x509.Name) -> str:
    return name.rfc4514_string()


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _described(lists: Sequence[RevocationList]) -> str:
    return "; ".join(
        f"{known.issuer}, {f'until {_time(known.ends)}' if known.ends is not None else 'without an end'}"
        for known in lists
    )
