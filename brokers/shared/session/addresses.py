"""The address where a host listens and a guest connects: TCP, or a socket in the file system."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from popgate.errors import BadRequest, shown
from popgate.sockets.unix_sockets import parse_path


@dataclass(slots=True, frozen=True)
class Address:
    """Either `path`, or `host` and `port`."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"

    @property
    def is_private(self) -> bool:
        """Whether nobody outside of this machine gets there."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_listening(url: str) -> Address:
    """`tcp://host:port` or `unix:/path`. Raises BadRequest with a sentence for the operator."""
    scheme, _, rest = url.partition(":")
    if scheme == "unix":
        return _parse_path(url, rest)
    if scheme == "tcp":
        return _parse_host(url, "tcp://127.0.0.1:8084 or unix:/run/popgate.sock")
    raise BadRequest(f"{shown(url)} is no place to share a broker at: write tcp://host:port or unix:/path")


def parse_hosted(url: str) -> Address:
    """`popgate://host:port` or `popgate+unix:/path`. Raises BadRequest with a sentence for the operator."""
    scheme, _, rest = url.partition(":")
    if scheme == "popgate+unix":
        return _parse_path(url, rest)
    address = _parse_host(url, "popgate://host:port or popgate+unix:/path")
    if not address.port:
        raise BadRequest(f"{shown(url)} is no shared broker: its port is missing")
    return address


def _parse_path(url: str, rest: str) -> Address:
    try:
        return Address(path=parse_path(rest))
    except ValueError as error:
        raise BadRequest(f"{shown(url)} {error}") from None


def _parse_host(url: str, example: str) -> Address:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise BadRequest(f"{shown(url)} is no address: {error}") from None
    extra = parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None
    if not host or port is None or extra:
        raise BadRequest(f"{shown(url)} is no address: write it like {example}")
    return Address(host, port)
