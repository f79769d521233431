"""The admin port: health, metrics, and the JSON interface under /api/ that the command line uses."""

from __future__ import annotations

import os

_AUTHORITIES = "SSL_CERT_FILE"
"""Where OpenSSL looks first for the authorities that a machine trusts."""


def _load_aiohttp() -> None:
    """Load aiohttp without the authorities of its client.

    It reads those of the machine when it is imported (`aiohttp.connector`, 3.14), which is a seventh of the
    time that a gateway takes to start and 1 MB that stays. Our only client of it asks worker processes over
    unix sockets. Whoever needs its client for TLS gives it a context of its own.
    """
    set_by_operator = os.environ.get(_AUTHORITIES)
    os.environ[_AUTHORITIES] = os.devnull
    try:
        import aiohttp.connector  # noqa: F401
    finally:
        if set_by_operator is None:
            del os.environ[_AUTHORITIES]
        else:
            os.environ[_AUTHORITIES] = set_by_operator


_load_aiohttp()
