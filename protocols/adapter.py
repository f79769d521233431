"""What a door is: something that listens at a URL and brings requests to the processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

from popgate.clock import Clock
from popgate.faults import Faults
from popgate.kinds import Authenticator
from processors.messaging import MessagingProcessor
from protocols.draining import Farewell
from protocols.observing import CallObserver, NullCalls


@dataclass(slots=True, frozen=True)
class Listen:
    """Where a door listens. Port 0 lets the system choose; the adapter tells which it was."""

    scheme: str
    host: str
    port: int
    options: Mapping[str, str] = field(default_factory=dict)

    def url(self, port: int) -> str:
        """The address without options, with the port that was chosen."""
        return f"{self.scheme}://{joined(self.host, port)}"


def parse_listen(url: str) -> Listen:
    """Parse `scheme://host:port?option=value`. Raises ValueError with a sentence for the operator."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is no address to listen at: {error}") from None
    if not parts.scheme or not parts.hostname or port is None:
        raise ValueError(f"{url!r} is no address to listen at: it must look like grpc://127.0.0.1:8081")
    if parts.path not in ("", "/") or parts.fragment or parts.username or parts.password:
        raise ValueError(f"{url!r} is no address to listen at: only options may follow the port")
    options = parse_qsl(parts.query, keep_blank_values=True)
    if len(dict(options)) != len(options):
        raise ValueError(f"{url!r}: an option is given twice")
    return Listen(parts.scheme, parts.hostname, port, dict(options))


def joined(host: str, port: int) -> str:
    """ "host:port", with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_advertised(text: str) -> tuple[str, int]:
    """Split "host:port"; port 0 when there is none. Raises ValueError with a sentence for the operator."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{text!r} is no address to advertise: {error}") from None
    if not host or parts.path or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"{text!r} is no address to advertise: it must look like gateway.example.com:8081")
    return host, port or 0


def _always() -> bool:
    return True


@dataclass(slots=True, frozen=True)
class House:
    """What every adapter is lent.

    `advertised` is the "host:port" that clients are told to connect to; empty: what each client
    dialled itself. Without an `authenticator` every caller is anonymous and credentials are ignored.
    A connection silent for `connection_ping_s` is asked for a sign of life, and closed without one.
    A connection older than `connection_age_s` (0: any age is fine; spread by a tenth up or down, so
    that those of one start do not end together) is told to go, and has `connection_grace_s` to end
    what it is doing. `faults` are for tests only; a door claims those it knows when it is made.
    `calls` is told how every call ended. With `namespaces` the names of a client are its namespace's own.
    `reflection`: whether a door tells tools what it serves. `healthy`: whether the broker can write.
    """

    processor: MessagingProcessor
    clock: Clock
    advertised: str = ""
    authenticator: Authenticator | None = None
    connection_age_s: float = 0.0
    connection_ping_s: float = 20.0
    connection_grace_s: float = 30.0
    faults: Faults | None = None
    calls: CallObserver = field(default_factory=NullCalls)
    namespaces: bool = False
    reflection: bool = True
    healthy: Callable[[], bool] = _always


class Adapter(Protocol):
    """One protocol at one address."""

    @property
    def addresses(self) -> list[str]:
        """After the start: where it listens, with the ports that were chosen."""
        ...

    async def start(self) -> None:
        """Listen. Raises OSError with a sentence for the operator."""
        ...

    async def drain(self, deadline: float) -> None:
        """Take no new work and let the old finish, until `deadline` (loop seconds) at most."""
        ...

    def farewell(self) -> Farewell:
        """After the stop: what became of what was under way when the drain began."""
        ...

    async def stop(self) -> None:
        """Cut off what is left; nothing remains open."""
        ...
