"""Makes the context of a TLS client, the same with each version of Python."""

from __future__ import annotations

import ssl


def client_context(*, cafile: str | None = None, cadata: str | None = None) -> ssl.SSLContext:
    """As `ssl.create_default_context`, also for certificates of older tools. Raises OSError, ValueError.

    From Python 3.13 on that refuses an authority without a key usage, as `openssl req -x509` makes it, and a
    certificate without the identifier of its authority's key. Other clients of RocketMQ take both.
    """
    context = ssl.create_default_context(cafile=cafile, cadata=cadata)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
