"""TLS to brokers and name servers: certificate authorities, a client certificate, the server's name."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from typing import Final

from brokers.capabilities import ReportsTls
from brokers.remote.settings import Tls, Verify
from popgate.errors import BadRequest
from popgate.tls.client_context import client_context
from popgate.tls.renewed_context import (
    RenewedContext,
    TlsContents,
    TlsFiles,
    check_authorities,
    load_pair,
    text_of,
)
from popgate.tls.shown_certificates import Messages, described, note_certificates
from popgate.tls.watched_files import as_file

_OF_AUTHORITIES: Final = frozenset({2, 18, 19, 20, 21})
_OF_LISTS: Final = frozenset({3, 8, 11, 12, 23, 35, 36, 44})
"""Why a certificate is refused, by the file that decides it, in OpenSSL's numbers (x509_vfy.h)."""
_REVOKED: Final = 23
_MOST_LOGGED: Final = 1_000

_log = logging.getLogger(__name__)


class BrokerTls(ReportsTls):
    """The context for each new connection. Files that were renewed are read again, at most once a second.

    Those that cannot be used are logged, and the previous ones stay in use. Connections stay as they are.
    """

    def __init__(self, tls: Tls, now: Callable[[], float] = time.monotonic) -> None:
        """Raises BadRequest with a sentence when a file cannot be used."""
        _check(tls)
        self._tls = tls
        self._logged: set[tuple[str, str]] = set()
        self._logged_of = 0
        stays = "the TLS files for brokers from before stay in use"
        try:
            self._renewed = RenewedContext(
                _files(tls), lambda read: _context(tls, read), stays=stays, now=now
            )
        except (OSError, ValueError) as error:
            raise BadRequest(str(error)) from None
        self._renewed.report()

    def __repr__(self) -> str:
        return f"<BrokerTls {self._renewed!r}>"

    def current(self) -> ssl.SSLContext:
        """The context for a new connection."""
        return self._renewed.current()

    def refused(self, address: str, error: ssl.SSLCertVerificationError, shown: Messages) -> str:
        """Why the certificate at an address is not believed, to end a sentence.

        It is logged too, once until the files are renewed: while other brokers serve nobody else reports it.
        """
        reason = f"its certificate is not believed: {error.verify_message}"
        if error.verify_code in _OF_LISTS and self._tls.crl is not None:
            also = " (or an authority in its chain)" if error.verify_code == _REVOKED else ""
            reason += f"{also}, by remote.crl_file, {self._tls.crl}; {described(shown)}"
        elif error.verify_code in _OF_AUTHORITIES:
            authorities = f"remote.ca_file, {self._tls.ca}" if self._tls.ca is not None else "the system"
            reason += f", by {authorities}"
        if self._logged_of != self._renewed.generation or len(self._logged) >= _MOST_LOGGED:
            self._logged.clear()
            self._logged_of = self._renewed.generation
        if (address, reason) not in self._logged:
            self._logged.add((address, reason))
            _log.warning("%s is not used: %s", address, reason)
        return reason

    def figures(self) -> dict[str, float]:
        """For the metrics. The files are looked at, as for a connection."""
        return self._renewed.figures()

    def tls_warnings(self) -> list[str]:
        """The files are looked at, as for a connection."""
        return self._renewed.warnings()


def _check(tls: Tls) -> None:
    """Raises BadRequest."""
    if tls.key is not None and tls.certificate is None:
        raise BadRequest("a TLS key for brokers needs its certificate")
    if tls.crl is None:
        return
    if tls.ca is None:
        raise BadRequest("remote.crl_file needs remote.ca_file, the authorities whose lists it has")
    if tls.verify is Verify.NONE:
        raise BadRequest("remote.crl_file needs another remote.verify than none: no certificate is looked at")


def _files(tls: Tls) -> TlsFiles:
    return TlsFiles(
        tls.certificate,
        tls.key,
        tls.ca,
        tls.crl,
        crl_setting="remote.crl_file",
        peers="brokers and name servers",
        pair_name="the TLS context for brokers",
        authorities_name="the authorities in",
    )


def _context(tls: Tls, contents: TlsContents) -> ssl.SSLContext:
    """Raises ValueError, OSError."""
    try:
        if tls.crl is not None:
            context = client_context(cadata=text_of(contents.authorities))
        elif tls.ca is not None:
            check_authorities(contents.authorities)
            with as_file(contents.authorities) as name:
                context = client_context(cafile=name)
        else:
            context = client_context()
    except (OSError, ValueError) as error:
        raise ValueError(f"the authorities in {tls.ca} cannot be read: {error}") from None
    if tls.verify is not Verify.NAME:
        context.check_hostname = False
    if tls.verify is Verify.NONE:
        context.verify_mode = ssl.CERT_NONE
    if tls.certificate is not None:
        load_pair(context, _files(tls), contents)
    if tls.crl is not None:
        note_certificates(context)
    return context
