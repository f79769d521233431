"""TLS of doors: a certificate and its key, reloaded when their files change: renewal needs no restart."""

from __future__ import annotations

import ipaddress
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from popgate.tls.refused_clients import note_certificates
from popgate.tls.revocation_lists import RevocationFile, figures_of
from popgate.tls.watched_files import WatchedFiles

_ALPN: Final = "h2"
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: what HTTP/2 does not forbid (RFC 9113 appendix A)."""
IP_ADDRESS: Final = "IP Address"
"""The kind of an alternative name, in OpenSSL's words."""
ALTERNATIVE_KINDS: Final = frozenset({"DNS", "URI", "email", IP_ADDRESS})
"""Those that name a client (RFC 5280 section 4.2.1.6). DirName and others have no one form as text."""
HANDSHAKE_S: Final = 10.0
"""How long a client may take until it is known who speaks."""

_MOST_TOLD: Final = 1_000
"""Addresses of clients; who has more has read it by then."""

_log = logging.getLogger(__name__)


class Certificate:
    """A gateway's certificate. `key` may be in the certificate's file, and is not encrypted.

    With `client_ca` clients need a certificate, too, from an authority in that file, and with `crl_file` one
    that is not in that file of revocation lists.

    A pair that cannot be read, or whose parts do not match, leaves the previous one in use, is logged
    once, and retried when a file changes: tools that renew write one file after the other. So do lists that
    cannot be used, without holding up the pair.
    """

    revocation: RevocationFile | None = None
    """The lists for client certificates; None: nobody looks whether one is revoked."""

    def __init__(
        self,
        certificate: Path,
        key: Path | None = None,
        *,
        client_ca: Path | None = None,
        crl_file: Path | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ValueError with a sentence for the operator."""
        self._files = (certificate, key if key is not None else certificate)
        self._client_ca = client_ca
        self._watched = WatchedFiles((*self._files, client_ca), now)
        if crl_file is not None:
            if client_ca is None:
                raise ValueError("tls.crl_file needs tls.client_ca")
            self.revocation = RevocationFile("tls.crl_file", crl_file, client_ca, peers="clients")
        self._current = self._load()
        self.generation = 0
        """How often it was renewed."""

    def __repr__(self) -> str:
        return f"<Certificate {self._files[0]} renewed {self.generation} times>"

    def open(self) -> None:
        """What has to be done before the first handshake. Raises OSError with a sentence."""
        if self.revocation is not None:
            self.revocation.report()

    def current(self) -> ssl.SSLContext:
        """The context for a new handshake: with the current pair and the current authorities for clients.

        After a renewal it is a new one, which resumes no session of the previous one: the client has to show
        its certificate again, because its authority may have been removed.
        """
        if self._watched.is_due():
            self._look()
        return self._current

    def figures(self) -> dict[str, float]:
        """For the metrics. The files are looked at, as for a handshake."""
        return figures_of(self.revocation, self.current)

    def warnings(self) -> list[str]:
        """Sentences about revocation lists that refuse clients, now or soon. The files are looked at."""
        if self.revocation is None:
            return []
        self.current()
        return [sentence for sentence, _ in self.revocation.doubts()]

    def pem(self) -> tuple[bytes, bytes]:
        """The key, and the certificates, for who has no use for a context. Raises OSError."""
        certificate, key = self._files
        return key.read_bytes(), certificate.read_bytes()

    @property
    def asks_clients(self) -> bool:
        """Whether clients have to show a certificate."""
        return self._client_ca is not None

    def client_authorities(self) -> bytes | None:
        """The authorities for client certificates, in PEM; None: none are requested. Raises OSError."""
        return self._client_ca.read_bytes() if self._client_ca is not None else None

    def _look(self) -> None:
        renewed = self.revocation if self.revocation is not None and self.revocation.look() else None
        changed = self._watched.changed()
        if not changed and renewed is None:
            return
        try:
            self._current = self._load()
        except (ValueError, OSError) as error:  # the latter of a file that goes just now
            _log.error("%s; the certificate from before stays in use", error)
            if renewed is not None:
                renewed.install(self._current)  # of two lists of an authority OpenSSL takes the newest
            return
        self.generation += 1
        if changed:
            _log.info("the certificate %s was renewed", self._files[0])

    def _load(self) -> ssl.SSLContext:
        """Raises ValueError."""
        context = _context()
        certificate, key = self._files
        for part, file in (("certificate", certificate), ("key", key)):
            try:
                file.open("rb").close()
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise ValueError(f"the TLS {part} {file} cannot be read: {reason}") from None
        try:
            context.load_cert_chain(certificate, key, password=_no_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ValueError(f"the TLS key {key} is not that of the certificate {certificate}") from None
            raise ValueError(f"{certificate} and {key} are no TLS certificate and its key, in PEM") from None
        except _Encrypted:
            raise ValueError(f"the TLS key {key} is encrypted: a gateway has nobody to ask") from None
        if self._client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            _believe(context, self._client_ca)
            note_certificates(context)
        if self.revocation is not None:
            self.revocation.install(context)
        return context


def _believe(context: ssl.SSLContext, file: Path) -> None:
    """Raises ValueError."""
    try:
        context.load_verify_locations(file)
    except ssl.SSLError:
        raise ValueError(f"{file} has no certificate of an authority for clients, in PEM") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ValueError(f"the authorities for clients {file} cannot be read: {reason}") from None


class _Encrypted(Exception):
    pass


def _no_password() -> str:
    raise _Encrypted


def _context() -> ssl.SSLContext:
    """A server's, without a certificate (RFC 9113 section 9.2)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols([_ALPN])
    return context


class TlsStrangers:
    """Logs clients that speak TLS at a door without it, once for each address."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, peer: str, place: str) -> None:
        """`peer` is the "host:port" of the client, `place` that of the door."""
        host = peer.rpartition(":")[0] or "a client"
        if host in self._told or len(self._told) >= _MOST_TOLD:
            return
        self._told.add(host)
        _log.warning(
            "%s speaks TLS at %s, where it is switched off: set tls.mode to optional or required, or switch"
            " it off in the client",
            host,
            place,
        )


def names_of(connection: ssl.SSLObject) -> tuple[str, ...]:
    """What the client's certificate names it, with the kind of each name, sorted; empty for one without it.

    Like ("CN:orders", "DNS:orders.example.com", "URI:spiffe://example.com/orders"): common names, and
    alternative names of the kinds that all transports know. gRPC's library (the transport grpcio) has one
    common name only.
    """
    shown: Mapping[str, Any] = connection.getpeercert() or {}
    common = [value for part in shown.get("subject", ()) for kind, value in part if kind == "commonName"]
    others = shown.get("subjectAltName", ())
    named = [f"{kind}:{alternative_name(kind, name)}" for kind, name in others if kind in ALTERNATIVE_KINDS]
    return tuple(sorted([*(f"CN:{common_name}" for common_name in common), *named]))


def alternative_name(kind: str, name: str) -> str:
    """A subject alternative name as every transport has it: an IP address in its shortest form (RFC 5952).

    OpenSSL writes IPv6 in capitals without "::", gRPC's library does not. What is no address stays as it is.
    """
    if kind != IP_ADDRESS:
        return name
    try:
        return str(ipaddress.ip_address(name.strip()))
    except ValueError:
        return name


def speaks_http2(connection: ssl.SSLObject) -> bool:
    """Whether client and server agreed on HTTP/2 (ALPN, RFC 9113 section 3.2)."""
    return connection.selected_alpn_protocol() == _ALPN
