"""Free loopback ports for servers that cannot choose one themselves."""

from __future__ import annotations

import contextlib
import random
import socket

_LOWEST, _HIGHEST = 12_000, 32_000
"""Below the range from which systems assign ports, so that none of these is assigned meanwhile."""
_MOST_TRIES = 1_000


def free_ports(count: int = 1) -> int:
    """The first of `count` adjacent free ports. Another process may take them: then try again."""
    for _ in range(_MOST_TRIES):
        first = random.randrange(_LOWEST, _HIGHEST - count)  # noqa: S311 - no secret
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise RuntimeError(f"there are no {count} adjacent ports on this machine")


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return True
    return False


def is_open(port: int) -> bool:
    """Whether a process accepts connections there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False
