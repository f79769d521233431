"""The PROXY protocol: the header in which a load balancer says who made the connection.

Versions 1 (a line of text) and 2 (binary). Source: "The PROXY protocol" by HAProxy, sections 2.1 and 2.2.
A connection without such a header did not come through the balancer, and nothing that it claims is trusted.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from struct import Struct
from typing import Any, Final

from popgate.errors import PeerWireError, shown

LONGEST_LINE: Final = 107
"""Bytes of a header of version 1, with its end."""
MOST_MORE: Final = 4096
"""Bytes that may follow the 16 of version 2: addresses, and what else is told, which is skipped."""

_LINE: Final = b"PROXY "
_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_FIXED: Final = 16
_LOCAL, _PROXY = 0, 1
_INET, _INET6 = 1, 2
_V4 = Struct(">4s4sHH")
_V6 = Struct(">16s16sHH")

Place = tuple[str, int]


@dataclass(slots=True, frozen=True)
class Proxied:
    """Who connects, and where to; None: the balancer speaks for itself, or does not know."""

    peer: Place | None = None
    local: Place | None = None


class ProxyHeader:
    """Reads one header; a `Wire` of `Proxied` that has one event. What came behind it is its `rest`."""

    __slots__ = ("_data", "_ended", "_told")

    def __init__(self) -> None:
        self._data = bytearray()
        self._ended = False
        self._told = False

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        if not len(data):
            self._ended = True
        self._data += data

    def next_event(self) -> Proxied | None:
        """None: more bytes are needed, or the event was returned already. Raises PeerWireError."""
        if self._told:
            return None
        data = self._data
        if data[: len(_SIGNATURE)] == _SIGNATURE[: len(data)] and data:
            proxied = self._binary()
        elif data[: len(_LINE)] == _LINE[: len(data)]:
            proxied = self._line()
        else:
            raise PeerWireError(f"no header of the PROXY protocol: {shown(_text(data[:12]))}")
        if proxied is None and self._ended:
            raise PeerWireError("the stream ended inside the header of the PROXY protocol")
        self._told = proxied is not None
        return proxied

    def data_to_send(self) -> list[bytes]:
        return []

    def rest(self) -> bytes:
        """What came behind the header, taken."""
        rest, self._data = bytes(self._data), bytearray()
        return rest

    def _line(self) -> Proxied | None:
        data = self._data
        end = data.find(b"\r\n", 0, LONGEST_LINE)
        if end < 0:
            if len(data) >= LONGEST_LINE:
                raise PeerWireError(f"a PROXY line is longer than {LONGEST_LINE} bytes")
            return None
        words = _text(data[:end]).split(" ")
        del data[: end + 2]
        if words[1] == "UNKNOWN":
            return Proxied()
        if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
            raise PeerWireError(f"a PROXY line of another form: {shown(' '.join(words))}")
        _, family, peer, local, peer_port, local_port = words
        make = IPv4Address if family == "TCP4" else IPv6Address
        try:
            return Proxied((str(make(peer)), _port(peer_port)), (str(make(local)), _port(local_port)))
        except ValueError as error:
            raise PeerWireError(f"a PROXY line with a wrong address: {error}") from None

    def _binary(self) -> Proxied | None:
        data = self._data
        if len(data) < _FIXED:
            return None
        kind, family, length = data[12], data[13] >> 4, int.from_bytes(data[14:16], "big")
        command = kind & 0xF
        if kind >> 4 != 2 or command not in (_LOCAL, _PROXY):
            raise PeerWireError(f"a PROXY header of the version {kind >> 4} and the command {command}")
        if length > MOST_MORE:
            raise PeerWireError(f"a PROXY header claims {length} bytes, {MOST_MORE} are read")
        if len(data) < _FIXED + length:
            return None
        more = bytes(data[_FIXED : _FIXED + length])
        del data[: _FIXED + length]
        if command == _LOCAL or family not in (_INET, _INET6):
            return Proxied()
        layout, make = (_V4, IPv4Address) if family == _INET else (_V6, IPv6Address)
        if len(more) < layout.size:
            raise PeerWireError(f"a PROXY header with {len(more)} bytes of addresses")
        peer, local, peer_port, local_port = layout.unpack_from(more)
        return Proxied((str(make(peer)), peer_port), (str(make(local)), local_port))


Wait = Callable[[socket.socket, asyncio.AbstractEventLoop], Coroutine[Any, Any, None]]


async def until_readable(
    link: socket.socket, loop: asyncio.AbstractEventLoop, come: asyncio.Future[None] | None = None
) -> None:
    """Wait until there is something to read, or until `come` is set."""
    waited = come if come is not None else loop.create_future()
    loop.add_reader(link.fileno(), _came, waited)
    try:
        await waited
    finally:
        loop.remove_reader(link.fileno())


def _came(waited: asyncio.Future[None]) -> None:
    if not waited.done():
        waited.set_result(None)


async def read_header(
    link: socket.socket, loop: asyncio.AbstractEventLoop, longest_s: float, wait: Wait = until_readable
) -> Proxied:
    """Read the header from a connection, and not a byte after it.

    `wait` waits until something can be read. Raises PeerWireError, OSError (also TimeoutError, when the
    header does not arrive in time).
    """
    wire = ProxyHeader()
    async with asyncio.timeout(longest_s):
        while True:
            await wait(link, loop)
            data = link.recv(_FIXED + MOST_MORE, socket.MSG_PEEK)
            wire.receive(data)
            proxied = wire.next_event()
            link.recv(len(data) - len(wire.rest()) if proxied is not None else len(data))
            if proxied is not None:
                return proxied


def _text(data: bytes | bytearray) -> str:
    return data.decode("latin-1")


def _port(text: str) -> int:
    """Raises ValueError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5) or (port := int(text)) > 0xFFFF:
        raise ValueError(f"{shown(text)} is no port")
    return port
