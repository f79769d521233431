"""TLS to brokers and name servers: certificate authorities, a client certificate, the server's name."""

from __future__ import annotations

import ssl

from brokers.remote.settings import Tls, Verify
from popgate.errors import BadRequest


def client_context(tls: Tls) -> ssl.SSLContext:
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
    return context
