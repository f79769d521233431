"""Certificates for tests, issued by a test authority with the command `openssl`."""

from __future__ import annotations

import subprocess
from pathlib import Path

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


class Papers:
    """An authority in a folder (`authority`: its file), and certificates for localhost and 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        """Raises FileNotFoundError: there is no openssl."""
        self._folder = folder
        self.authority = folder / "authority.pem"
        self._make("authority", "-nodes", "-subj", "/CN=authority")

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
                str(self._folder / "authority.key"),
            )
        return certificate, self._folder / f"{name}.key"

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


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)  # noqa: S603, S607 - of tests
