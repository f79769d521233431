"""The table `[remote]` of the configuration file: connections to a RocketMQ cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PlainSerializer

from proxy.config.enums import Verify
from proxy.config.tables import Count, Group, Seconds

MASK = "********"


def masked(value: str) -> str:
    """The displayed form of a secret: only whether it is set."""
    return MASK if value else ""


Secret = Annotated[str, PlainSerializer(masked, when_used="json")]
"""A text that is told to nobody."""


class Remote(Group):
    """A RocketMQ cluster as the broker (`broker = "rocketmq://ns-1:9876,ns-2:9876"`). Brokers are found
    through its name servers. Clients are authorised by the gateway, so the cluster sees a single account, the
    one set here."""

    access_key: str = Field(default="", max_length=1024)
    """Access key of the gateway's own account at the cluster; empty: requests are not signed."""
    secret_key: Secret = ""
    """Secret key of that account. It is never shown. A file is safer."""
    secret_key_file: str = Field(default="", max_length=4096)
    """File that contains the secret key, read at startup; surrounding whitespace is ignored."""
    tls: bool = False
    """Whether to connect to brokers and name servers with TLS."""
    ca_file: str = Field(default="", max_length=4096)
    """PEM file of the certificate authorities to trust; empty: those of the system. This file and the three
    below are reloaded when they change; if they are unusable, the previous ones stay in use."""
    crl_file: str = Field(default="", max_length=4096)
    """PEM file of certificate revocation lists, one of each authority in `ca_file` and in the chains of
    brokers: brokers and name servers with a revoked certificate are not used, and none whose authority has no
    valid list. At most 4 MiB. Empty: revocation is not checked."""
    cert_file: str = Field(default="", max_length=4096)
    """PEM file of the gateway's own certificate, for brokers that require one."""
    key_file: str = Field(default="", max_length=4096)
    """PEM file of the key of that certificate; empty: the key is in the certificate's file."""
    verify: Verify = Verify.NAME
    """What is verified: `name`, the chain and the name of the certificate; `chain`, the chain only, as
    RocketMQ's own clients do (brokers are addressed by IP, and few certificates contain addresses); `none`,
    nothing, which allows interception."""
    server_name: str = Field(default="", max_length=253)
    """Name that every certificate must contain; empty: the host or address that is connected to."""
    connect_timeout_s: Seconds = Field(default=3.0, gt=0, le=60)
    """Timeout for a connection, including TLS."""
    request_timeout_s: Seconds = Field(default=3.0, gt=0, le=600)
    """Timeout for requests other than long polls; shorter if the caller's deadline is earlier."""
    probe_s: Seconds = Field(default=3.0, ge=0.1, le=300)
    """A broker that owes a response and is silent for this time is probed, and disconnected after the same
    time again: requests in progress fail, and other brokers are used."""
    ready_needs_brokers: bool = False
    """Whether `/ready` returns 503, and gRPC's health check NOT_SERVING, when no broker could be reached for
    10 s. If not, they only report it: an outage of the brokers affects all gateways, and would leave none
    ready."""
    heartbeat_s: Seconds = Field(default=30.0, ge=0.1, le=100)
    """Interval of heartbeats on an idle connection; brokers close it after 120 s."""
    reconnect_s: Seconds = Field(default=2.0, gt=0, le=60)
    """Longest pause between two attempts to reach a broker."""
    max_links: Count = Field(default=64, ge=1, le=1024)
    """Connections to one broker. As many are opened as the largest group of this gateway has clients; each
    takes a socket on both sides and some 75 kB here. A broker registers one client of a group per connection;
    further clients of the group are not registered themselves, and the cluster's tools do not show them."""
    transaction_key: Secret = ""
    """Key that seals transaction ids, at least 16 characters, the same for all gateways of the cluster.
    Without it each gateway generates one at its start, and a transaction can be ended only through the
    gateway that accepted its message, and not after its restart. It is never shown. A file is safer."""
    transaction_key_file: str = Field(default="", max_length=4096)
    """File that contains that key, read at startup; surrounding whitespace is ignored."""
    transaction_key_before: Secret = ""
    """Second key that is accepted in transaction ids, to rotate keys: first set the new key here on every
    gateway, then exchange the two, and remove the old one when its last transaction has ended."""
    transaction_key_before_file: str = Field(default="", max_length=4096)
    """File that contains that second key."""
    transaction_check_s: Seconds = Field(default=30.0, ge=1, le=300)
    """Time until the producer of a half message is first asked for the outcome, if the client sets none; a
    client's own time counts up to 300 s."""
    route_refresh_s: Seconds = Field(default=20.0, ge=0.1, le=3600)
    """Age at which routes are refreshed, in the background; the old route is used meanwhile."""
    name_refresh_s: Seconds = Field(default=30.0, ge=1, le=3600)
    """Interval at which host names of name servers are resolved again; sooner when none of them responds."""
    zone: str = Field(default="", max_length=255)
    """Zone of this gateway; brokers in the same zone are preferred."""
    zone_only: bool = False
    """Whether brokers in other zones are excluded; requires name servers that support zones."""
