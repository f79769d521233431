"""TLS of doors: a certificate and its key, reloaded when their files change: renewal needs no restart."""

from __future__ import annotations

import ipaddress
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from popgate.tls.renewed_context import RenewedContext, TlsContents, TlsFiles, load_pair, text_of
from popgate.tls.revocation_file import RevocationFile
from popgate.tls.shown_certificates import note_certificates
from popgate.tls.watched_files import as_file

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
        if crl_file is not None and client_ca is None:
            raise ValueError("tls.crl_file needs tls.client_ca")
        self._sources = TlsFiles(
            *self._files,
            client_ca,
            crl_file,
            crl_setting="tls.crl_file",
            peers="clients",
            pair_name=f"the certificate {certificate}",
            authorities_name="the authorities for clients",
        )
        stays = "the certificate from before stays in use"
        self._renewed = RenewedContext(self._sources, self._make, stays=stays, now=now)

    def __repr__(self) -> str:
        return f"<Certificate {self._files[0]}>"

    @property
    def generation(self) -> int:
        """How often it was renewed, or its authorities or lists were."""
        return self._renewed.generation

    @property
    def revocation(self) -> RevocationFile | None:
        """The lists for client certificates; None: nobody looks whether one is revoked."""
        return self._renewed.revocation

    def open(self) -> None:
        """What has to be done before the first handshake. Raises OSError with a sentence."""
        self._renewed.report()

    def current(self) -> ssl.SSLContext:
        """The context for a new handshake: with the current pair and the current authorities for clients.

        After a renewal it is a new one, which resumes no session of the previous one: the client has to show
        its certificate again, because it may have been revoked, or its authority removed.
        """
        return self._renewed.current()

    def figures(self) -> dict[str, float]:
        """For the metrics. The files are looked at, as for a handshake."""
        return self._renewed.figures()

    def warnings(self) -> list[str]:
        """Sentences about revocation lists that refuse clients, now or soon. The files are looked at."""
        return self._renewed.warnings()

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

    def _make(self, contents: TlsContents) -> ssl.SSLContext:
        """Raises ValueError, OSError."""
        context = _context()
        load_pair(context, self._sources, contents)
        if self._client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            _believe(context, self._client_ca, contents.authorities, lists=self._sources.crl is not None)
            note_certificates(context)
        if self._sources.crl is not None:
            # Sessions are resumed without a look at the lists. Those of TLS 1.2 remain: their tickets are of
            # this context, and there is a new one when the lists change, and when one of them ends. Without
            # tickets OpenSSL would keep each of these sessions in memory, with the client's whole chain.
            context.num_tickets = 0
        return context


def _believe(context: ssl.SSLContext, file: Path, authorities: bytes, *, lists: bool) -> None:
    """`lists`: revocation lists are set, and any in this file do not count. Raises ValueError, OSError."""
    try:
        if lists:
            context.load_verify_locations(cadata=text_of(authorities))
        else:
            with as_file(authorities) as name:
                context.load_verify_locations(name)
    except (ssl.SSLError, ValueError):
        raise ValueError(f"{file} has no certificate of an authority for clients, in PEM") from None


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
