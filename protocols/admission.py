"""Limits of connections: of a door in total, and of one address.

An address is an IPv4 address, or an IPv6 network of 64 bits, since whoever has one address of it has all.
Connections over sockets in the file system have no address. TLS handshakes in progress count, too.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable
from typing import Any, Final

from protocols.observers import ConnectionObserver

_COMPLAINTS_S: Final = 60.0
"""Between two log lines about too many connections."""
_NETWORK: Final = 64

_log = logging.getLogger(__name__)


class Admission:
    """Counts the connections of a door. `per_address` 0: so many may come from one as there may be in all."""

    def __init__(
        self,
        door: object,
        most: int,
        per_address: int,
        observer: ConnectionObserver,
        now: Callable[[], float],
    ) -> None:
        self._door = door
        self._most = most
        self._per_address = per_address
        self._observer = observer
        self._now = now
        self._quiet_until = {"connections.max": 0.0, "connections.max_per_address": 0.0}
        self._places: dict[str, int] = {}
        self.count = 0

    def __repr__(self) -> str:
        return f"<Admission {self.count} of {self._most} from {len(self._places)} addresses>"

    def enter(self, peername: Any) -> str | None:
        """Admit a connection and return the key for `leave`; None: refused."""
        if self.count >= self._most:
            self._observer.turned_away()
            self._complain("connections.max", self._most, "")
            return None
        place = place_of(peername) if self._per_address else ""
        if place:
            there = self._places.get(place, 0)
            if there >= self._per_address:
                self._observer.crowded_out()
                self._complain("connections.max_per_address", self._per_address, place)
                return None
            self._places[place] = there + 1
        self.count += 1
        return place

    def leave(self, place: str) -> None:
        """One that entered is over."""
        self.count -= 1
        if place:
            left = self._places[place] - 1
            if left:
                self._places[place] = left
            else:
                del self._places[place]

    def _complain(self, setting: str, most: int, place: str) -> None:
        now = self._now()
        if now >= self._quiet_until[setting]:
            self._quiet_until[setting] = now + _COMPLAINTS_S
            _log.warning(
                "%r has as many connections%s as %s allows (%d): more are closed at once",
                self._door,
                f" from {place}" if place else "",
                setting,
                most,
            )


def place_of(peername: Any) -> str:
    """The key by which connections are counted; empty for one that is not counted."""
    if not isinstance(peername, tuple) or not peername:
        return ""
    host = str(peername[0]).partition("%")[0]
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, _NETWORK), strict=False))
