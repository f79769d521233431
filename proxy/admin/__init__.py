"""The admin port: health, metrics, and the JSON interface under /api/ that the command line uses."""

from __future__ import annotations

import os

_AUTHORITIES = "SSL_CERT_FILE"
"""Where OpenSSL looks first for the authorities that a machine trusts."""


def _load_aiohttp() -> None:
    """Load aiohttp without the certificate authorities of its client.

    It loads those of the machine on import (`aiohttp.connector`, 3.14): 0.08 s of CPU at each start, and 1.7
    MB that stay. Our only use of its client connects to worker processes over Unix sockets. A TLS client
    would need a context of its own.
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
