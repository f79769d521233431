"""Every number of the remote broker, with its unit in its name; `proxy` fills it from `[remote]`."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass, field
from enum import Enum, unique
from pathlib import Path


@unique
class Verify(Enum):
    """What of a server's certificate is looked at; RocketMQ's own clients look at the chain only."""

    NAME = "name"
    CHAIN = "chain"
    NONE = "none"


_SLOW_S = 10.0


@dataclass(slots=True, frozen=True)
class Credentials:
    """The gateway's own account at the cluster: every request is signed with it (protocol facts 5.12)."""

    access_key: str
    secret_key: str = field(repr=False)


@dataclass(slots=True, frozen=True)
class Tls:
    """TLS to brokers and name servers. PEM files; without `ca` the system's authorities are believed.

    `server_name` is the name that certificates must have, for all of them; empty: the host dialled.
    """

    ca: Path | None = None
    crl: Path | None = None
    """Revocation lists of the authorities in `ca`."""
    certificate: Path | None = None
    key: Path | None = None
    verify: Verify = Verify.NAME
    server_name: str = ""


@dataclass(slots=True, frozen=True)
class RemoteSettings:
    """Values for `RemoteBroker`; nobody below it reads a configuration. `name_servers` are "host:port"."""

    name_servers: tuple[str, ...] = ()
    client_id: str = ""
    """By what name the gateway's heartbeats go; empty: made of the host and the process id."""

    connect_timeout_s: float = 3.0
    request_timeout_s: float = 3.0
    """For requests that do not wait at the broker, where the caller has no shorter time."""

    probe_s: float = 3.0
    """A link that answers nothing for so long is asked for a sign of life, and cut so long after that."""
    heartbeat_s: float = 30.0
    """A link on which nothing happens is used so often: brokers cut it after 120 s (protocol facts 5.11)."""
    reconnect_first_s: float = 0.1
    reconnect_longest_s: float = 2.0
    link_idle_s: float = 600.0
    """A link that nobody used for so long is closed and forgotten."""

    max_links: int = 64
    """Links to one broker: the i-th client of a group registers on link i."""
    max_addresses: int = 4_096
    """Links in all; of each address the first one is made also beyond that, for so many addresses."""
    max_in_flight: int = 8_192
    """Requests of one link that have no answer yet."""
    max_queued_bytes: int = 32 * 1024 * 1024
    """Requests of one link that are not written yet, because the broker does not read."""
    max_frame_bytes: int = 16 * 1024 * 1024
    max_asked: int = 256
    """Requests of one broker to the gateway that are being answered."""

    name_refresh_s: float = 30.0
    """How often names of name servers are looked up anew."""
    route_refresh_s: float = 20.0
    route_expiry_s: float = 300.0
    missing_route_s: float = 1.0
    """How long the answer 'no such topic' is believed without asking again."""
    max_routes: int = 20_000

    transaction_keys: tuple[bytes, ...] = field(
        default_factory=lambda: (secrets.token_bytes(32),), repr=False
    )
    """Ids of transactions are made with the first and read with each; shared by all replicas."""
    transaction_check_after_s: int = 30
    """When a producer is asked that said nothing; later commits are refused (3.9)."""
    max_known_ends: int = 10_000
    """Transactions whose ends are remembered, so that a second one is answered alike."""
    client_heartbeat_s: float = 25.0
    """How often brokers are told of each client; they forget one after 120 s."""

    credentials: Credentials | None = None
    tls: Tls | None = None
    ready_needs_brokers: bool = False
    """Whether this gateway says that it is not ready while no broker can be reached."""
    zone: str = ""
    zone_only: bool = False
    """Whether name servers are asked to hide the brokers of other zones."""

    @property
    def slow_s(self) -> float:
        """For answers that are long, pops, and changes that a broker writes to its disk before it answers."""
        return max(_SLOW_S, self.request_timeout_s)

    @property
    def name(self) -> str:
        """The gateway as a client of its own."""
        return self.client_id or f"{socket.gethostname()}@popgate-{os.getpid()}"
