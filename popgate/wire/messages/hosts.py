"""Addresses in the record layout: 4 or 16 bytes of IP, then the port as int32.

Source: protocol facts 3.7 and 5.6.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from popgate.errors import LocalWireError

V4_SIZE = 8
V6_SIZE = 20
NOWHERE = bytes(V4_SIZE)
"""0.0.0.0:0, for peers without an address."""


@lru_cache(maxsize=4096)
def pack_host(text: str) -> bytes:
    """Pack "1.2.3.4:5" into 8 bytes or "[::1]:5" into 20.

    The layout has no names: an invalid IP address becomes 0.0.0.0, an invalid port 0. Born
    hosts come from clients, so this must not fail.
    """
    host, colon, port_text = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        host, port_text = text, ""
    port = int(port_text) if port_text.isascii() and port_text.isdigit() and len(port_text) <= 5 else 0
    try:
        address: IPv4Address | IPv6Address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return NOWHERE
    return address.packed + (port if port < 65_536 else 0).to_bytes(4, "big")


@lru_cache(maxsize=4096)
def host_text(packed: bytes) -> str:
    """ "1.2.3.4:5" or "[::1]:5". Raises LocalWireError for another length than 8 or 20 bytes."""
    if len(packed) not in (V4_SIZE, V6_SIZE):
        raise LocalWireError(f"a packed host has 8 or 20 bytes, not {len(packed)}")
    port = int.from_bytes(packed[-4:], "big", signed=True)
    if len(packed) == V4_SIZE:
        return f"{packed[0]}.{packed[1]}.{packed[2]}.{packed[3]}:{port}"
    return f"[{IPv6Address(packed[:16])}]:{port}"
