"""Certificate revocation lists (RFC 5280 section 5): what is in a file of them, and which of them count.

OpenSSL refuses every certificate whose issuer has no valid list. It is given only lists that were understood
here, encoded anew, one of each authority: what it would make of others in a file is no matter.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from popgate.tls.watched_files import as_file, contents_of

if TYPE_CHECKING:
    from cryptography import x509

LONGEST_BYTES: Final = 4 << 20
"""Of a file: some 85,000 revoked certificates. It is read in the event loop, in about 0.15 s."""
_SOON: Final = timedelta(days=14)
_SOON_PART: Final = 0.05
"""Lists last for hours or for months: a warning comes in the last twentieth, at most `_SOON` ahead.

Weekly lists that are renewed half a day before their end are no reason for one."""
_LABEL: Final = "X509 CRL"
_CRITICAL: Final = b"\x01\x01\xff"
"""TRUE in DER, as `critical` of an extension."""
_BEGINNING: Final = re.compile(rb"-----BEGIN ([^-\r\n]+)-----")
_BLOCK: Final = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)

Identity = tuple[str, bytes]
"""Of an authority: its name, and its key, which tells authorities of one name apart."""


class Authorities:
    """The certificates of those who may issue certificates, from a PEM file."""

    def __init__(self, file: Path, data: bytes) -> None:
        """Raises ValueError with a sentence."""
        from cryptography import x509  # heavy, and wanted where lists are set only

        self.file = file
        self.data = data
        try:
            self.certificates: Sequence[x509.Certificate] = x509.load_pem_x509_certificates(data)
            self.identities: Mapping[Identity, None] = dict.fromkeys(map(_identity, self.certificates))
        except Exception as error:  # of many kinds: whatever the library does not understand
            raise ValueError(f"lists cannot be compared with the authorities in {file}: {error}") from None

    @classmethod
    def read(cls, file: Path) -> Authorities:
        """Raises ValueError with a sentence."""
        return cls(file, contents_of(file, f"the authorities in {file}"))

    def __repr__(self) -> str:
        return f"<Authorities {self.file}>"


@dataclass(slots=True, frozen=True)
class RevocationList:
    """Of one authority. `number`: which of its lists (0: it numbers none); `ends`: None: never."""

    identity: Identity
    begins: datetime
    ends: datetime | None
    number: int
    pem: bytes

    @property
    def issuer(self) -> str:
        return self.identity[0]

    @property
    def age(self) -> tuple[datetime, int]:
        """Greater for newer lists of an authority."""
        return self.begins, self.number

    def counts(self, now: datetime) -> bool:
        """Whether it is valid."""
        return self.begins <= now and (self.ends is None or now < self.ends)

    def warns_from(self) -> datetime | None:
        """From when on its end is near."""
        if self.ends is None:
            return None
        return self.ends - min(_SOON, (self.ends - self.begins) * _SOON_PART)


@dataclass(frozen=True)
class RevocationLists:
    """The contents of a file, as they count at a time: one list of each authority."""

    data: bytes
    authorities: Authorities
    all: tuple[RevocationList, ...]
    left_out: tuple[str, ...]
    """What is not used, as the end of a sentence."""
    now: datetime

    @cached_property
    def by_identity(self) -> dict[Identity, RevocationList]:
        """Of several lists of an authority the newest that is valid, or else the newest."""
        chosen: dict[Identity, RevocationList] = {}
        for known in sorted(self.all, key=lambda known: (known.counts(self.now), known.age)):
            chosen[known.identity] = known
        return chosen

    @property
    def lists(self) -> tuple[RevocationList, ...]:
        return tuple(self.by_identity.values())

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """The authorities without a list."""
        absent = (each for each in self.authorities.identities if each not in self.by_identity)
        return tuple(dict.fromkeys(name for name, _ in absent))

    @cached_property
    def until(self) -> datetime | None:
        """When a list begins or ends next, so that others may count."""
        times = (moment for known in self.all for moment in (known.begins, known.ends))
        return min((moment for moment in times if moment is not None and moment > self.now), default=None)

    def install(self, context: ssl.SSLContext) -> None:
        """Have certificates of peers checked against them, and those of their authorities up to the root.

        As nginx, HAProxy and Envoy do by default: a revoked intermediate authority vouches for nobody.
        Raises ValueError, OSError.
        """
        try:
            if data := b"".join(known.pem for known in self.lists):
                with as_file(data) as name:
                    context.load_verify_locations(name)
        except ssl.SSLError as error:
            raise ValueError(f"OpenSSL does not take it: {error.reason or error}") from None
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN


def lists_in(data: bytes, authorities: Authorities, now: datetime) -> RevocationLists:
    """The lists in a PEM file, one or several. Raises ValueError with the end of a sentence; OSError."""
    known: list[RevocationList] = []
    left_out: dict[str, None] = {}
    for number, block in enumerate(_blocks(data), 1):
        read, why = _understood(block, number, authorities)
        if why:
            left_out[why] = None
        else:
            known.append(read)
    lists = RevocationLists(data, authorities, tuple(known), tuple(left_out), now)
    lists.install(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))  # where it does no harm
    return lists


def has_usable(lists: RevocationLists) -> bool:
    """Whether one is of a known authority; without it everybody would be refused."""
    return any(identity in lists.by_identity for identity in lists.authorities.identities)


def _understood(block: bytes, number: int, authorities: Authorities) -> tuple[RevocationList, str]:
    """A list, and why it is left out. Raises ValueError."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    try:
        read = x509.load_pem_x509_crl(block)
        extensions = list(read.extensions)
        issuer, begins, ends = _dn(read.issuer), read.last_update_utc, read.next_update_utc
        pem = read.public_bytes(serialization.Encoding.PEM)
        key, why = _issuer_key(read, authorities.certificates, extensions)
    except Exception as error:  # of many kinds: whatever the library does not understand
        raise ValueError(f"has a list that cannot be read, the one with number {number}: {error}") from None
    if odd := _partial(extensions) or _odd_entry(read, pem):
        raise ValueError(f"has a list of {issuer} that {odd}")
    count = next((each.value.crl_number for each in extensions if isinstance(each.value, x509.CRLNumber)), 0)
    return RevocationList((issuer, key), begins, ends, count, pem), why


def _partial(extensions: Iterable[x509.Extension[x509.ExtensionType]]) -> str:
    """Why OpenSSL would not use it for all certificates of its issuer, or take it for what it is not."""
    from cryptography import x509

    for each in extensions:
        if isinstance(each.value, x509.DeltaCRLIndicator):
            return "has only what changed (a delta list): leave it out, the complete one is needed"
        if isinstance(each.value, x509.IssuingDistributionPoint):
            return "is for some certificates only (issuing distribution point): a complete one is needed"
        if each.critical and not isinstance(each.value, x509.AuthorityKeyIdentifier):
            return f"has a critical extension that OpenSSL does not know ({each.oid.dotted_string})"
    return ""


def _odd_entry(read: x509.CertificateRevocationList, pem: bytes) -> str:
    """Why OpenSSL would use nothing of the list. Raises whatever the library does not understand."""
    if _CRITICAL not in ssl.PEM_cert_to_DER_cert(pem.decode().replace(_LABEL, "CERTIFICATE")):
        return ""  # nearly always, and a walk over all entries takes time
    for entry in read:
        for each in entry.extensions:
            if each.critical:
                return f"has an entry with a critical extension ({each.oid.dotted_string})"
    return ""


def _blocks(data: bytes) -> Sequence[bytes]:
    """Raises ValueError."""
    if len(data) > LONGEST_BYTES:
        raise ValueError(f"has more than {LONGEST_BYTES} bytes")
    if not data.strip():
        raise ValueError("is empty")
    labels = [label.decode("ascii", "replace") for label in _BEGINNING.findall(data)]
    if not labels:
        raise ValueError(
            f"has no revocation list in PEM (BEGIN {_LABEL}); openssl crl -inform DER converts one"
        )
    # A certificate in that file is a mistake: it might be taken for an authority to believe.
    other = next((label for label in labels if label != _LABEL), "")
    if other:
        raise ValueError(f"has a {other}, and may have revocation lists only ({_LABEL})")
    blocks = _BLOCK.findall(data)
    if len(blocks) != len(labels) or any(block.count(b"-----BEGIN ") != 1 for block in blocks):
        raise ValueError("ends inside of a list: it is written only in part")
    return cast("list[bytes]", blocks)


def _issuer_key(
    read: x509.CertificateRevocationList,
    authorities: Sequence[x509.Certificate],
    extensions: Iterable[x509.Extension[x509.ExtensionType]],
) -> tuple[bytes, str]:
    """The key that signed it, and why it cannot be used.

    Of an authority that is not known, as an intermediate one: what the list says of its key.
    """
    from cryptography import x509

    named = [authority for authority in authorities if authority.subject == read.issuer]
    signed = [authority for authority in named if _has_signed(authority, read)]
    a_list = f"has a list of {_dn(read.issuer)}"
    for authority in signed:
        if not _may_sign(authority):
            reason = "whose certificate does not allow it to sign lists (key usage cRLSign)"
            return _key(authority), f"{a_list}, {reason}"
        if _is_meant(authority, extensions):
            return _key(authority), ""
    if signed:
        reason = "names another certificate of this authority (authority key identifier)"
        return _key(signed[0]), f"{a_list} that {reason}"
    if named:
        return b"", f"has a list of {_dn(read.issuer)} that this authority has not signed"
    said = (each.value for each in extensions if isinstance(each.value, x509.AuthorityKeyIdentifier))
    return next((value.key_identifier or b"" for value in said), b""), ""


def _has_signed(authority: x509.Certificate, read: x509.CertificateRevocationList) -> bool:
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        return read.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (TypeError, ValueError, UnsupportedAlgorithm):  # a kind of key that signs nothing
        return False


def _is_meant(authority: x509.Certificate, extensions: Iterable[x509.Extension[x509.ExtensionType]]) -> bool:
    """Whether the authority key identifier of a list is that of the certificate (RFC 5280 section 5.2.1).

    Of a certificate that it does not mean OpenSSL uses no list, though its key signed it.
    """
    from cryptography import x509

    said = next(
        (each.value for each in extensions if isinstance(each.value, x509.AuthorityKeyIdentifier)), None
    )
    if said is None:
        return True
    own = [each.value for each in authority.extensions if isinstance(each.value, x509.SubjectKeyIdentifier)]
    if said.key_identifier is not None and own and own[0].digest != said.key_identifier:
        return False
    serial = said.authority_cert_serial_number
    issuers = [
        name.value for name in said.authority_cert_issuer or () if isinstance(name, x509.DirectoryName)
    ]
    return (serial is None or serial == authority.serial_number) and (
        not issuers or authority.issuer in issuers
    )


def _may_sign(authority: x509.Certificate) -> bool:
    from cryptography import x509

    try:
        return authority.extensions.get_extension_for_class(x509.KeyUsage).value.crl_sign
    except x509.ExtensionNotFound:
        return True


def _identity(authority: x509.Certificate) -> Identity:
    return _dn(authority.subject), _key(authority)


def _key(authority: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return authority.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _dn(name: x509.Name) -> str:
    return name.rfc4514_string()
