"""A TLS context from files, made anew whenever one of them changes: one that was given out is never changed.

So no handshake meets half a renewal, and no TLS session outlives the files it was made with.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from popgate.tls.revocation_file import RevocationFile
from popgate.tls.revocation_lists import Authorities, RevocationLists
from popgate.tls.watched_files import Unreadable, WatchedFiles, as_file, contents_of, reason_of

_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class TlsFiles:
    """Which files there are; None: there is none. `key` may be in the certificate's file.

    `crl_setting` and `peers`: what names the lists, and whose certificates are looked at, in sentences.
    `pair_name` begins sentences about the certificate and its key; `authorities_name`: about authorities.
    """

    certificate: Path | None
    key: Path | None
    authorities: Path | None
    crl: Path | None
    crl_setting: str
    peers: str
    pair_name: str
    authorities_name: str


@dataclass(slots=True, frozen=True)
class TlsContents:
    """What was in them."""

    certificate: bytes = b""
    key: bytes = b""
    authorities: bytes = b""


class RenewedContext:
    """The current context. Contents that cannot be used are logged, and the last good ones stay in use.

    The certificate, its key and the authorities are one whole. Lists of revoked certificates are another, so
    that neither holds up the other. `make` raises ValueError, OSError.
    """

    def __init__(
        self,
        files: TlsFiles,
        make: Callable[[TlsContents], ssl.SSLContext],
        *,
        stays: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ValueError with a sentence. `stays` ends the sentences about what cannot be used."""
        self._files = files
        self._make = make
        self._stays = stays
        self._logged = ""
        self._watched = WatchedFiles((files.certificate, files.key, files.authorities), now)
        try:
            self._contents = read_contents(files)
            self._current, self._known = self._made_of(self._contents)
        except OSError as error:
            raise ValueError(f"{files.pair_name} cannot be used: {reason_of(error)}") from None
        self.revocation: RevocationFile | None = None
        if files.crl is not None and self._known is not None:
            self.revocation = RevocationFile(
                files.crl_setting, files.crl, self._known, peers=files.peers, clock=now
            )
            try:
                self.revocation.current.install(self._current)  # which nobody has seen
            except OSError as error:
                raise ValueError(f"{self.revocation.name} cannot be used: {error}") from None
        self.generation = 0
        """How often it was made anew."""

    def __repr__(self) -> str:
        return f"<RenewedContext {self._watched!r} generation {self.generation}>"

    def current(self) -> ssl.SSLContext:
        """The context for a new connection. At most once a second the files are looked at."""
        if self._watched.is_due():
            self._look()
        return self._current

    def figures(self) -> dict[str, float]:
        """For the metrics, of the lists; empty without. The files are looked at, as for a connection."""
        if self.revocation is None:
            return {}
        self.current()
        return self.revocation.figures()

    def warnings(self) -> list[str]:
        """Sentences about lists that refuse peers, now or soon, or are refused. The files are looked at."""
        if self.revocation is None:
            return []
        self.current()
        return [sentence for sentence, _ in self.revocation.doubts()]

    def report(self) -> None:
        """Log those sentences, each once."""
        if self.revocation is not None:
            self.revocation.report()

    def _look(self) -> None:
        contents, context, known = self._contents, self._current, self._known
        changed = False
        if self._watched.changed():
            try:
                contents = read_contents(self._files)
                if contents == self._contents:  # it was away for a moment, or only touched
                    self._logged = ""
                else:
                    context, known = self._made_of(contents)
                    changed = True
            except (ValueError, OSError) as error:
                self._refuse(error)
                contents = self._contents
        lists: RevocationLists | None = None
        try:
            if self.revocation is not None and known is not None:
                lists = self.revocation.look(known)
                if changed or lists is not self.revocation.current:
                    context = context if changed else self._make(contents)
                    lists.install(context)
        except (ValueError, OSError) as error:  # too many open files, for instance
            self._refuse(error)
            self._watched.retry()
            if self.revocation is not None:
                self.revocation.retry()
            return
        if context is not self._current:
            self._contents, self._current, self._known = contents, context, known
            self.generation += 1
        if self.revocation is not None and lists is not None:
            self.revocation.accept(lists)
            self.revocation.report()
        if changed:
            self._logged = ""
            _log.info("%s was renewed", self._files.pair_name)

    def _refuse(self, error: Exception) -> None:
        reason = str(error)
        if isinstance(error, OSError):
            reason = f"{self._files.pair_name} cannot be read: {reason_of(error)}"
        sentence = f"{reason}; {self._stays}"
        if sentence != self._logged:
            _log.error("%s", sentence)
        self._logged = sentence
        if isinstance(error, OSError | Unreadable):
            self._watched.retry()

    def _made_of(self, contents: TlsContents) -> tuple[ssl.SSLContext, Authorities | None]:
        """A new context of these contents, without lists. Raises ValueError, OSError."""
        files = self._files
        context = self._make(contents)
        known = None
        if files.crl is not None and files.authorities is not None:
            known = Authorities(files.authorities, contents.authorities)
        return context, known


def read_contents(files: TlsFiles) -> TlsContents:
    """Raises ValueError with a sentence."""
    certificate, key, authorities = files.certificate, files.key, files.authorities
    return TlsContents(
        contents_of(certificate, f"the TLS certificate {certificate}") if certificate is not None else b"",
        contents_of(key, f"the TLS key {key}") if key is not None else b"",
        contents_of(authorities, f"{files.authorities_name} {authorities}")
        if authorities is not None
        else b"",
    )


def load_pair(context: ssl.SSLContext, files: TlsFiles, contents: TlsContents) -> None:
    """The certificate and its key. Raises ValueError with a sentence, OSError."""
    certificate, key = files.certificate, files.key if files.key is not None else files.certificate
    try:
        with as_file(contents.certificate) as chain, as_file(contents.key or contents.certificate) as secret:
            context.load_cert_chain(chain, secret, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError(f"the TLS key {key} is not that of the certificate {certificate}") from None
        raise ValueError(f"{certificate} and {key} are no TLS certificate and its key, in PEM") from None
    except _Encrypted:
        raise ValueError(f"the TLS key {key} is encrypted: a gateway has nobody to ask") from None


def check_authorities(authorities: bytes) -> None:
    """Raises ValueError where no certificate is.

    Without one `create_default_context` would believe the authorities of the system.
    """
    if b"-----BEGIN " not in authorities:
        raise ValueError("no certificate in PEM")


def text_of(authorities: bytes) -> str:
    """For `cadata` of the ssl module, which takes certificates only and no lists. Raises ValueError."""
    check_authorities(authorities)
    return authorities.decode("ascii", "ignore")


class _Encrypted(Exception):
    pass


def _no_password() -> str:
    raise _Encrypted
