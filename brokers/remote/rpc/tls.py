"""TLS to brokers and name servers: certificate authorities, a client certificate, the server's name."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable

from brokers.remote.settings import Tls, Verify
from popgate.errors import BadRequest
from popgate.tls.revocation_lists import RevocationFile, figures_of
from popgate.tls.watched_files import WatchedFiles

_log = logging.getLogger(__name__)


class BrokerTls:
    """The context for each new connection. Files that were renewed are read again, at most once a second.

    Those that cannot be used are logged, and the previous ones stay in use. Connections stay as they are.
    """

    def __init__(self, tls: Tls, now: Callable[[], float] = time.monotonic) -> None:
        """Raises BadRequest with a sentence when a file cannot be used."""
        self._tls = tls
        self._watched = WatchedFiles((tls.ca, tls.certificate, tls.key), now)
        self.revocation = _revocation(tls)
        self._current = client_context(tls, self.revocation)
        if self.revocation is not None:
            self.revocation.report()

    def __repr__(self) -> str:
        return f"<BrokerTls {self._watched!r}>"

    def current(self) -> ssl.SSLContext:
        """The context for a new connection."""
        if self._watched.is_due():
            renewed = self.revocation if self.revocation is not None and self.revocation.look() else None
            if self._watched.changed() or renewed is not None:
                self._renew(renewed)
        return self._current

    def figures(self) -> dict[str, float]:
        """For the metrics. The files are looked at, as for a connection."""
        return figures_of(self.revocation, self.current)

    def _renew(self, renewed: RevocationFile | None) -> None:
        try:
            self._current = client_context(self._tls, self.revocation)
        except BadRequest as error:
            _log.error("%s; the TLS files for brokers from before stay in use", error.sentence)
            if renewed is not None:
                renewed.install(self._current)  # of two lists of an authority OpenSSL takes the newest


def _revocation(tls: Tls) -> RevocationFile | None:
    """Raises BadRequest."""
    if tls.crl is None:
        return None
    if tls.ca is None:
        raise BadRequest("remote.crl_file needs remote.ca_file, the authorities whose lists it has")
    if tls.verify is Verify.NONE:
        raise BadRequest("remote.crl_file needs another remote.verify than none: no certificate is looked at")
    try:
        return RevocationFile("remote.crl_file", tls.crl, tls.ca, peers="brokers and name servers")
    except ValueError as error:
        raise BadRequest(str(error)) from None


def client_context(tls: Tls, revocation: RevocationFile | None = None) -> ssl.SSLContext:
    """Reads the files. Raises BadRequest with a sentence when one cannot be used."""
    if tls.key is not None and tls.certificate is None:
        raise BadRequest("a TLS key for brokers needs its certificate")
    try:
        context = ssl.create_default_context(cafile=None if tls.ca is None else str(tls.ca))
    except (OSError, ValueError) as error:
        raise BadRequest(f"the authorities in {tls.ca} cannot be read: {error}") from None
    if tls.verify is not Verify.NAME:
        context.check_hostname = False
    if tls.verify is Verify.NONE:
        context.verify_mode = ssl.CERT_NONE
    if tls.certificate is not None:
        try:
            context.load_cert_chain(str(tls.certificate), None if tls.key is None else str(tls.key))
        except (OSError, ValueError) as error:
            raise BadRequest(f"the certificate in {tls.certificate} cannot be used: {error}") from None
    if revocation is not None:
        try:
            revocation.install(context)
        except ValueError as error:
            raise BadRequest(str(error)) from None
    return context
