"""Connections of a door that does not listen itself: another process hands them over."""

from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

Adopt = Callable[[socket.socket], Coroutine[Any, Any, Any]]
"""Serve a connection that was accepted elsewhere; the socket is closed when it is over."""


class Listener(Protocol):
    """Somebody else accepts, and hands over the connections that are ours."""

    async def start(self, adopt: Adopt) -> int:
        """From now on each connection is adopted; the port that clients dial."""
        ...

    async def taken(self, longest_s: float) -> None:
        """Wait for adopted connections that are not open yet, at most so many seconds."""
        ...

    def stop(self) -> None:
        """What still comes is closed at once."""
        ...
