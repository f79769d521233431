"""Addresses of name servers as users write them, and the addresses to which their host names resolve."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Sequence

from popgate.errors import BadRequest, shown

DEFAULT_PORT = 9876
MOST_SERVERS = 64

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) -> addresses as "ip:port"; raises OSError."""

_HOST = re.compile(r"[A-Za-z0-9_.-]{1,253}\Z")


def parse_servers(text: str) -> tuple[str, ...]:
    """`ns-1:9876,ns-2:9876`, also with `;` between; without a port it is 9876. Raises BadRequest."""
    parts = [part.strip() for part in text.replace(";", ",").split(",")]
    servers = tuple(dict.fromkeys(_server(part) for part in parts if part))
    if not servers:
        raise BadRequest("rocketmq:// needs name servers: write rocketmq://ns-1:9876,ns-2:9876")
    if len(servers) > MOST_SERVERS:
        raise BadRequest(f"{len(servers)} name servers are too many, {MOST_SERVERS} can be named")
    return servers


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[::1]:port". Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65_536:
        raise ValueError(f"{shown(address)} is no address like host:port")
    return host.strip("[]"), int(port)


def is_literal(host: str) -> bool:
    """Whether a host is an address already, so that there is nothing to look up."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def resolve(host: str, port: int) -> list[str]:
    """All addresses of a host name, resolved outside of the event loop. Raises OSError."""
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    hosts = dict.fromkeys(str(place[0]) for _, _, _, _, place in addresses)
    return [f"[{literal}]:{port}" if ":" in literal else f"{literal}:{port}" for literal in hosts]


def _server(text: str) -> str:
    bracketed = text.startswith("[")
    full = text if (text.rpartition("]")[2] if bracketed else text).count(":") else f"{text}:{DEFAULT_PORT}"
    try:
        host, port = split_address(full)
    except ValueError:
        host, port = "", 0
    if not (is_literal(host) if bracketed else _HOST.match(host)):
        raise BadRequest(f"{shown(text)} is no name server: write host:port, like ns-1:9876")
    return f"[{host}]:{port}" if bracketed else f"{host}:{port}"
