"""The table `[tls]` of the configuration file: encryption at the doors."""

from __future__ import annotations

from pydantic import Field

from proxy.config.enums import TlsMode
from proxy.config.tables import Group


class Tls(Group):
    """TLS of the listeners. Files are reloaded when they change; if a new pair is unusable, the previous one
    stays in use and the log reports it."""

    mode: TlsMode = TlsMode.OPTIONAL
    """For listeners whose address has no option `tls`: `optional`, TLS and plain text on the same port;
    `required`, TLS only; `off`, plain text only. Unix sockets always use plain text; with `transport=grpcio`
    `optional` means `off`."""
    certificate: str = Field(default="", max_length=4096)
    """PEM file of the certificate, followed by its intermediate certificates. Empty: a self-signed
    certificate, generated at the first start and kept in the data folder. Official clients, which use TLS
    unless configured otherwise, accept it; nobody can verify it."""
    key: str = Field(default="", max_length=4096)
    """PEM file of its unencrypted key; empty: the key is in the certificate's file."""
    client_ca: str = Field(default="", max_length=4096)
    """PEM file of authorities for client certificates: clients must present one issued by them. Empty: no
    client certificate is requested. Plain-text clients present none: `mode = "required"` keeps them out."""
    crl_file: str = Field(default="", max_length=4096)
    """PEM file of certificate revocation lists, one of each authority in `client_ca` and in the chains of
    clients: revoked client certificates are refused, and so are all whose authority has no valid list. At
    most 4 MiB. Empty: revocation is not checked. Not with `transport=grpcio`."""
