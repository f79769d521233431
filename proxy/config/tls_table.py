"""The table `[tls]` of the configuration file: encryption at the doors."""

from __future__ import annotations

from pydantic import Field

from proxy.config.enums import TlsMode
from proxy.config.tables import Group


class Tls(Group):
    """TLS of the doors. The files are read anew when they change; a pair that cannot be used leaves the one
    before in use and is told in the log."""

    mode: TlsMode = TlsMode.OPTIONAL
    """What clients may speak at doors whose address has no option `tls`: `optional`, TLS or not, at the same
    port; `required`, TLS only; `off`, no TLS. Sockets in the file system are in the clear, and with
    `transport=grpcio` `optional` is `off`."""
    certificate: str = Field(default="", max_length=4096)
    """A PEM file: the certificate, and behind it those that lead to an authority that clients know. Empty:
    one that the gateway makes for itself at its first start, and keeps in the data folder. Official clients,
    which speak TLS unless they are told not to, take it; nobody can verify it."""
    key: str = Field(default="", max_length=4096)
    """Its key, not encrypted, in a PEM file; empty: it is in the certificate's."""
    client_ca: str = Field(default="", max_length=4096)
    """A PEM file of authorities: clients have to show a certificate that leads to one of them. Empty: clients
    are not asked for one. Who speaks no TLS shows none: `required` keeps those out."""
