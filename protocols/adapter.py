"""The interface of a door: it listens at a URL and passes requests to the processor."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, urlsplit

from popgate.clock import Clock
from popgate.faults import Faults
from popgate.kinds import Authenticator
from popgate.sockets.unix_sockets import parse_path
from processors.messaging import MessagingProcessor
from protocols.drain import DrainReport
from protocols.handed_connections import Listener
from protocols.observers import (
    CallObserver,
    ConnectionObserver,
    NullCalls,
    NullConnections,
    NullSniffing,
    SniffingObserver,
)
from protocols.tls import Certificate

_UNIX: Final = "+unix"
"""At the end of a scheme: the path of a socket follows."""


@dataclass(slots=True, frozen=True)
class Listen:
    """Where a door listens: at a host and a port, or at the `path` of a socket in the file system.

    With port 0 the system chooses; the adapter returns the choice. A scheme may name several protocols that
    share the address: `grpc+remoting`.
    """

    scheme: str
    host: str
    port: int
    options: Mapping[str, str] = field(default_factory=dict)
    path: str = ""

    @property
    def schemes(self) -> tuple[str, ...]:
        """Of each protocol, as they are named."""
        return tuple(self.scheme.split("+"))

    def url(self, port: int) -> str:
        """The address without options, with the port that was chosen."""
        if self.path:
            return f"{self.scheme}{_UNIX}:{self.path}"
        return f"{self.scheme}://{joined(self.host, port)}"


def parse_listen(url: str) -> Listen:
    """Parse `scheme://host:port?option=value`, or `scheme+unix:/path?option=value`.

    Raises ValueError with a sentence for the operator.
    """
    scheme, _, rest = url.partition(":")
    if scheme.endswith(_UNIX):
        place, _, query = rest.partition("?")
        try:
            path = parse_path(place)
        except ValueError as error:
            raise ValueError(f"{url!r} is no address to listen at: it {error}") from None
        return Listen(scheme.removesuffix(_UNIX), "", 0, _options(url, query), path)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is no address to listen at: {error}") from None
    if not parts.scheme or not parts.hostname or port is None:
        raise ValueError(f"{url!r} is no address to listen at: it must look like grpc://127.0.0.1:8081")
    if parts.path not in ("", "/") or parts.fragment or parts.username or parts.password:
        raise ValueError(f"{url!r} is no address to listen at: only options may follow the port")
    return Listen(parts.scheme, parts.hostname, port, _options(url, parts.query))


def _options(url: str, query: str) -> dict[str, str]:
    options = parse_qsl(query, keep_blank_values=True)
    if len(dict(options)) != len(options):
        raise ValueError(f"{url!r}: an option is given twice")
    return dict(options)


def mode_of(listen: Listen) -> int:
    """Who may connect to a socket in the file system, as of a file. Raises ValueError."""
    text = listen.options.get("mode")
    if text is None:
        return 0o600
    if not listen.path:
        raise ValueError(f"{listen.url(listen.port)} is no socket in the file system, which a mode is for")
    if not re.fullmatch("0?[0-7]{3}", text):
        raise ValueError(f"{listen.url(0)}: a mode is three digits from 0 to 7, like 660, not {text!r}")
    return int(text, 8)


def flag_of(listen: Listen, name: str) -> bool:
    """An option that is true or false, and false where it is not given. Raises ValueError."""
    wanted = listen.options.get(name, "false")
    if wanted not in ("true", "false"):
        raise ValueError(f"{listen.url(listen.port)}: the option {name} is true or false, not {wanted!r}")
    return wanted == "true"


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


def _never() -> bool:
    return False


@dataclass(slots=True, frozen=True)
class AdapterContext:
    """What every adapter is lent.

    `advertised` is the "host:port" that clients are told to connect to; empty: what each client
    dialled itself. Without an `authenticator` every caller is anonymous and credentials are ignored.
    A connection silent for `connection_ping_s` is asked for a sign of life, and closed without one.
    A connection older than `connection_age_s` (0: any age is fine; spread by a tenth up or down, so
    that those of one start do not end together) is told to go, and has `connection_grace_s` to end
    what it is doing. `faults` are for tests only; a door claims those it knows when it is made.
    There may be `max_connections` at a door, `max_per_address` of them from one address (0: all), and
    `max_streams` calls open on each. `calls` is told how every call ended, `connections` of what connections
    do and may not, `remoting_connections` of those that speak remoting. With `namespaces` the names of a
    client are its namespace's own.
    `reflection`: whether a door tells tools what it serves. `healthy`: whether the broker can write.
    `certificate`: what doors show that speak TLS.
    `leaves_streams`: asked when a drain begins, whether streams that last as long as their client go on until
    it is over, since others serve their clients meanwhile; else they are ended at once.
    `accepting`: where one of several processes gets the connections of its doors from; those that have to
    listen by themselves then share their ports.
    `sniffing` is told what connections of shared addresses speak. `opening` makes the entrance of a door that
    does not have its address for itself, in the place of `protocols.entrances.Entrance`.
    """

    processor: MessagingProcessor
    clock: Clock
    advertised: str = ""
    authenticator: Authenticator | None = None
    connection_age_s: float = 0.0
    connection_ping_s: float = 20.0
    connection_grace_s: float = 30.0
    faults: Faults | None = None
    max_connections: int = 50_000
    max_per_address: int = 0
    max_streams: int = 1024
    calls: CallObserver = field(default_factory=NullCalls)
    connections: ConnectionObserver = field(default_factory=NullConnections)
    remoting_connections: ConnectionObserver = field(default_factory=NullConnections)
    namespaces: bool = False
    reflection: bool = True
    healthy: Callable[[], bool] = _always
    accepting: Callable[[Listen], Listener] | None = None
    certificate: Certificate | None = None
    leaves_streams: Callable[[], bool] = _never
    sniffing: SniffingObserver = field(default_factory=NullSniffing)
    opening: Callable[..., Any] | None = None


def certificate_of(listen: Listen, adapter_context: AdapterContext) -> Certificate | None:
    """What a door shows; None: it speaks no TLS. Raises ValueError."""
    if not flag_of(listen, "tls"):
        return None
    if adapter_context.certificate is None:
        raise ValueError(f"{listen.url(listen.port)} has nothing to show: set tls.certificate and tls.key")
    return adapter_context.certificate


class Adapter(Protocol):
    """One protocol at one address."""

    @property
    def addresses(self) -> list[str]:
        """After the start: where it listens, with the ports that were chosen."""
        ...

    async def start(self) -> None:
        """Listen. Raises OSError with a sentence for the operator."""
        ...

    def copies(self) -> list[socket.socket]:
        """Copies of the listening sockets, for the door that replaces this one; empty if not possible."""
        ...

    def leave(self) -> None:
        """Report not ready, and keep serving, new connections too, until `drain`."""
        ...

    async def drain(self, deadline: float, ends: float | None = None) -> None:
        """Accept no new requests and finish those in progress, until `deadline` (loop seconds) at most.

        `ends`: when requests that are cancelled then must have returned what they took.
        """
        ...

    def farewell(self) -> DrainReport:
        """After the stop: the outcomes of the requests that were in progress when the drain began."""
        ...

    async def stop(self, ends: float | None = None) -> None:
        """Cancel remaining requests; nothing stays open. `ends` as for `drain`."""
        ...
