"""TLS for doors whose address does not configure it, and the certificate that doors present."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brokers.capabilities import ReportsTls
from brokers.port import Broker
from protocols.adapter import Listen, parse_listen
from protocols.tls import Certificate
from proxy.config.enums import TlsMode
from proxy.config.error import SettingsWrong
from proxy.config.mapping import path_or_none
from proxy.tls.self_signed import CERTIFICATE, KEY, pair_in

if TYPE_CHECKING:
    from proxy.config.settings import Settings

OWN_FOLDER: Final = "tls"
"""In the data folder: the gateway's self-signed certificate."""
_OPTION: Final = {TlsMode.OPTIONAL: "permissive", TlsMode.REQUIRED: "true"}

_log = logging.getLogger(__name__)


def door_urls(settings: Settings) -> tuple[str, ...]:
    """The addresses of `listen`, each with its TLS mode.

    `tls.mode` applies to those without the option `tls`. Unix domain sockets are not encrypted unless they
    have the option, because no third party is on the path. An invalid address is kept: opening it reports
    the fault.
    """
    return tuple(with_tls(url, settings.tls.mode) for url in settings.listen)


def with_tls(url: str, mode: TlsMode) -> str:
    """This address, with the mode of `tls.mode` unless it has its own."""
    try:
        listen = parse_listen(url)
    except ValueError:
        return url
    option = _OPTION.get(mode)
    if option == "permissive" and listen.options.get("transport") == "grpcio":
        option = None  # it listens by itself, for one of both only
    if option is None or listen.path or "tls" in listen.options:
        return url
    return f"{url}{'&' if listen.options else '?'}tls={option}"


def speaks_tls(listen: Listen) -> bool:
    """Whether clients may speak TLS there."""
    return listen.options.get("tls", "false") != "false"


def certificate(settings: Settings, listens: Sequence[Listen], *, tell: bool = True) -> Certificate | None:
    """The certificate of the doors: the configured one, or a self-signed one that is created when opened.

    None: no door uses TLS.

    `tell`: whether an unverifiable certificate is logged. Raises ValueError with a sentence, SettingsWrong.
    """
    tls = settings.tls
    if tls.certificate:
        _check_revocation(settings, listens)
        return Certificate(
            Path(tls.certificate).expanduser(),
            path_or_none(tls.key),
            client_ca=path_or_none(tls.client_ca),
            crl_file=path_or_none(tls.crl_file),
        )
    for name in ("key", "client_ca", "crl_file"):
        if getattr(tls, name):
            raise SettingsWrong(f"tls.{name} needs tls.certificate")
    if not any(speaks_tls(listen) for listen in listens):
        return None
    return OwnCertificate(settings.data / OWN_FOLDER, tell=tell)


def _check_revocation(settings: Settings, listens: Sequence[Listen]) -> None:
    """Raises SettingsWrong for lists that would not be looked at."""
    if not settings.tls.crl_file:
        return
    if not settings.tls.client_ca:
        raise SettingsWrong("tls.crl_file needs tls.client_ca, the authorities of client certificates")
    for listen in listens:
        if listen.options.get("transport") == "grpcio" and speaks_tls(listen):
            raise SettingsWrong(
                f"tls.crl_file has no effect at {listen.url(listen.port)}: gRPC's library for Python takes no"
                " revocation lists; leave transport=grpcio out, or the list"
            )


def tls_warnings(certificate: Certificate | None, broker: Broker) -> list[str]:
    """Sentences about revocation lists that are missing, expired, near their end, or refused."""
    of_broker = broker.capability(ReportsTls)
    return [
        *(certificate.warnings() if certificate is not None else ()),
        *(of_broker.tls_warnings() if of_broker is not None else ()),
    ]


class OwnCertificate(Certificate):
    """One that the gateway makes for itself when it is opened for the first time.

    Before that nothing is written, and there is no context. Clients show no certificates, so it has no lists.
    """

    def __init__(self, folder: Path, *, tell: bool) -> None:
        self._folder = folder
        self._tell = tell
        self._files = (folder / CERTIFICATE, folder / KEY)

    def open(self) -> None:
        try:
            made, key = pair_in(self._folder)
            super().__init__(made, key)
        except (OSError, ValueError) as error:
            anew = f"remove {self._folder} to have one made anew, or " if self._folder.exists() else ""
            raise OSError(
                f"{error} ({anew}set tls.certificate and tls.key to one of yours, or tls.mode to off)"
            ) from None
        if self._tell:
            _log.warning(
                "clients that speak TLS are shown %s, which this gateway made for itself, so that nobody can"
                " verify it: set tls.certificate and tls.key",
                made,
            )

    def figures(self) -> dict[str, float]:
        return {}

    def warnings(self) -> list[str]:
        return []
