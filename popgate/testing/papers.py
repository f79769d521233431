"""Certificates and revocation lists for tests, issued by a test authority with the command `openssl`.

What needs dates of its own is made with cryptography.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
_CONFIGURATION = """
[req]
distinguished_name = name
[name]
commonName = Name
[host]
basicConstraints = critical, CA:FALSE
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = DNS:localhost, IP:127.0.0.1
"""
"""OpenSSL's default certificates may sign others, and rustls refuses such a certificate of a server."""
_MAY_SIGN = "keyUsage=critical,keyCertSign,cRLSign"
"""Clients of Python 3.13 refuse an authority without it (`ssl.VERIFY_X509_STRICT`)."""


class Papers:
    """An authority in a folder (`authority`: its file), and certificates for localhost and 127.0.0.1.

    With an `issuer` it is an intermediate one, whose certificate comes from that authority.
    """

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "authority",
        issuer: Papers | None = None,
        extensions: Sequence[str] = (_MAY_SIGN,),
    ) -> None:
        """Raises FileNotFoundError: there is no openssl. `extensions`: of the authority's certificate."""
        self._folder = folder
        self.authority = folder / "authority.pem"
        issued = () if issuer is None else ("-CA", str(issuer.authority), "-CAkey", str(issuer._key_file()))
        more = (word for extension in extensions for word in ("-addext", extension))
        self._make("authority", "-nodes", "-subj", f"/CN={name}", *issued, *more)

    def pair(self, name: str) -> tuple[Path, Path]:
        """A certificate and its key, the same for each name."""
        certificate = self._folder / f"{name}.pem"
        if not certificate.exists():
            configuration = self._folder / "host.cnf"
            configuration.write_text(_CONFIGURATION)
            self._make(
                name,
                "-config",
                str(configuration),
                "-extensions",
                "host",
                "-nodes",
                "-subj",
                f"/CN={name}",
                "-CA",
                str(self.authority),
                "-CAkey",
                str(self._key_file()),
            )
        return certificate, self._folder / f"{name}.key"

    def dated(self, name: str, begins: timedelta, ends: timedelta) -> tuple[Path, Path]:
        """As `pair`, but valid between these times from now on."""
        certificate, key = self.pair(name)
        read, now = _certificate(certificate), datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .issuer_name(_certificate(self.authority).subject)
            .subject_name(read.subject)
            .public_key(read.public_key())
            .serial_number(read.serial_number)
            .not_valid_before(now + begins)
            .not_valid_after(now + ends)
        )
        for extension in read.extensions:
            builder = builder.add_extension(extension.value, extension.critical)
        _write(certificate, builder.sign(self._private_key(), hashes.SHA256()))
        return certificate, key

    def revocations(
        self,
        *names: str,
        authorities: Sequence[Path] = (),
        begins: timedelta = timedelta(days=-1),
        ends: timedelta = timedelta(days=30),
        extensions: Sequence[x509.ExtensionType] = (),
        of_entries: Sequence[x509.ExtensionType] = (),
        identifier: x509.AuthorityKeyIdentifier | None = None,
    ) -> bytes:
        """A revocation list, in PEM, with the certificates of `pair` of these names and in these files.

        `extensions`: of the list, critical unless it is its number; `of_entries`: of all entries, critical.
        `identifier`: of the authority's key; None: the right one.
        """
        authority, now = _certificate(self.authority), datetime.now(UTC)
        authority_key = self._private_key().public_key()
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(authority.subject)
            .last_update(now + begins)
            .next_update(now + ends)
            .add_extension(
                identifier or x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key),
                critical=False,
            )
        )
        for extension in extensions:
            builder = builder.add_extension(extension, not isinstance(extension, x509.CRLNumber))
        for file in (*(self.pair(name)[0] for name in names), *authorities):
            revoked = x509.RevokedCertificateBuilder()
            revoked = revoked.serial_number(_certificate(file).serial_number)
            for extension in of_entries:
                revoked = revoked.add_extension(extension, critical=True)
            builder = builder.add_revoked_certificate(revoked.revocation_date(now).build())
        signed = builder.sign(self._private_key(), hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)

    def serial(self, name: str) -> str:
        """The serial number of a certificate of `pair`, in hexadecimal."""
        return f"{_certificate(self.pair(name)[0]).serial_number:X}"

    def _key_file(self) -> Path:
        return self._folder / "authority.key"

    def _private_key(self) -> ec.EllipticCurvePrivateKey:
        key = serialization.load_pem_private_key(self._key_file().read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)  # noqa: S101 - of tests
        return key

    def encrypted(self, name: str) -> Path:
        """The key of a certificate, encrypted."""
        key = self._folder / f"{name}.encrypted.key"
        _openssl("ec", "-in", str(self.pair(name)[1]), "-aes128", "-passout", "pass:secret", "-out", str(key))
        return key

    def _make(self, name: str, *options: str) -> None:
        _openssl(
            "req", "-x509", *_NEW_KEY, "-days", "2", *options,
            "-keyout", str(self._folder / f"{name}.key"), "-out", str(self._folder / f"{name}.pem"),
        )  # fmt: skip


def _certificate(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def _write(file: Path, certificate: x509.Certificate) -> None:
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)  # noqa: S603, S607 - of tests
