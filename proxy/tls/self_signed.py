"""The self-signed certificate that a gateway creates at its first start, for clients that verify none.

The official clients use TLS by default, and most do not verify the certificate. Such a certificate protects
against eavesdropping but not against a man in the middle.

A program of its own creates it, because the library for certificates would stay in memory and is needed once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

CERTIFICATE: Final = "certificate.pem"
KEY: Final = "key.pem"
_DAYS: Final = 3650
_LONGEST_S: Final = 60.0


def pair_in(folder: Path) -> tuple[Path, Path]:
    """The certificate and the key in this folder, made if they are not there.

    Of several processes that make them at once, one's are kept. Raises OSError with a sentence.
    """
    certificate, key = folder / CERTIFICATE, folder / KEY
    if not (certificate.exists() and key.exists()):
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        try:
            _run(made)
            # Over an empty folder or none; one that has a pair by now stays.
            with contextlib.suppress(OSError):
                made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        for file in (certificate, key):
            file.open("rb").close()
    return certificate, key


def _run(folder: Path) -> None:
    """Raises OSError."""
    # With what this process finds, in the user's own packages too, but for the modules beside this file.
    command = [sys.executable, "-P", str(Path(__file__).resolve()), str(folder)]
    try:
        subprocess.run(  # noqa: S603 - ourselves
            command, check=True, capture_output=True, text=True, timeout=_LONGEST_S, stdin=subprocess.DEVNULL
        )
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip().splitlines()[-1:] or [f"exit code {error.returncode}"]
        raise OSError(f"no certificate could be made: {reason[0]}") from None
    except subprocess.TimeoutExpired:
        raise OSError(f"no certificate could be made within {_LONGEST_S:g} s") from None


def make_pair(folder: Path) -> None:
    """Write a key on the curve P-256, which only this user can read, and its certificate for ten years."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    host = socket.gethostname()[:64] or "popgate"
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    names = [x509.DNSName(each_name) for each_name in dict.fromkeys((_ascii(host), "localhost"))]
    addresses = [x509.IPAddress(ipaddress.ip_address(each_name)) for each_name in ("127.0.0.1", "::1")]
    # A day before: clocks of clients may be late.
    begins = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + datetime.timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([*names, *addresses]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(folder / KEY, text, 0o600)
    _write(folder / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _write(file: Path, text: bytes, mode: int) -> None:
    """All of it is on the disk, so that a machine that stops leaves the whole pair or none."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())


def _ascii(host: str) -> str:
    """A host name as certificates have it."""
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        return "popgate"


if __name__ == "__main__":
    make_pair(Path(sys.argv[1]))
