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
    through its name servers; what clients are allowed is decided here, so the cluster sees one account, this
    one."""

    access_key: str = Field(default="", max_length=1024)
    """The gateway's own account at the cluster; empty: requests are not signed."""
    secret_key: Secret = ""
    """The secret of that account. It is never shown; a file is better still."""
    secret_key_file: str = Field(default="", max_length=4096)
    """A file that has the secret, read at the start; blanks around it do not count."""
    tls: bool = False
    """Whether brokers and name servers are spoken to by TLS."""
    ca_file: str = Field(default="", max_length=4096)
    """PEM: the authorities that their certificates must come from; empty: those of the system."""
    cert_file: str = Field(default="", max_length=4096)
    """PEM: the gateway's own certificate, for brokers that want one."""
    key_file: str = Field(default="", max_length=4096)
    """PEM: the key of that certificate; empty: it is in the same file."""
    verify: Verify = Verify.NAME
    """What is looked at: `name`, the certificate's authority and its name; `chain`, the authority only, as
    RocketMQ's own clients do (brokers are dialled by address, and few certificates name addresses); `none`,
    nothing, so that anybody can listen."""
    server_name: str = Field(default="", max_length=253)
    """The name that every certificate must have; empty: the host or address that is dialled."""
    connect_timeout_s: Seconds = Field(default=3.0, gt=0, le=60)
    """How long a connection may take, TLS included."""
    request_timeout_s: Seconds = Field(default=3.0, gt=0, le=600)
    """How long a broker may take for what does not wait there; less when the caller has less time."""
    probe_s: Seconds = Field(default=3.0, ge=0.1, le=300)
    """A broker that owes an answer and is silent for so long is asked for a sign of life, and given up
    so long after that: what was under way fails, and others are asked."""
    ready_needs_brokers: bool = False
    """Whether `/ready` answers 503, and gRPC's health check NOT_SERVING, when no broker could be reached for
    10 s. Off, they only say so: what is missing is missing to all gateways, and none would be left."""
    heartbeat_s: Seconds = Field(default=30.0, ge=0.1, le=100)
    """How often an idle connection is used; brokers close it after 120 s."""
    reconnect_s: Seconds = Field(default=2.0, gt=0, le=60)
    """The longest rest between two attempts to reach a broker."""
    max_links: Count = Field(default=64, ge=1, le=1024)
    """Connections to one broker: as many are made as the largest group of this gateway has clients, each of
    them costs both sides a socket, and this one some 75 kB. A broker keeps one client of a group for each;
    further clients of a group share, and the cluster's tools see them as one."""
    transaction_key: Secret = ""
    """The key that ids of transactions are made with, the same for all gateways of the cluster: 16 characters
    or more. Without one, each makes its own, and a transaction can be ended only through the gateway, and
    during the life of the process, that took its message. It is never shown; a file is better still."""
    transaction_key_file: str = Field(default="", max_length=4096)
    """A file that has that key, read at the start; blanks around it do not count."""
    transaction_key_before: Secret = ""
    """A second key that ids are read with, while keys are changed: first give every gateway the new key here,
    then change it for the old one, and leave it out when the last transaction with it is over."""
    transaction_key_before_file: str = Field(default="", max_length=4096)
    """A file that has that second key."""
    transaction_check_s: Seconds = Field(default=30.0, ge=1, le=300)
    """How long after its message a transaction may be ended unasked, where the client does not say; then its
    producer is asked. A client's own time counts up to 300 s."""
    route_refresh_s: Seconds = Field(default=20.0, ge=0.1, le=3600)
    """How old routes get before they are asked for again; in the background, the old one serves meanwhile."""
    name_refresh_s: Seconds = Field(default=30.0, ge=1, le=3600)
    """How often the names of name servers are looked up; sooner when none of them answers."""
    zone: str = Field(default="", max_length=255)
    """The zone of this gateway; brokers of the same one are preferred."""
    zone_only: bool = False
    """Whether brokers of other zones are not used at all; needs name servers that know of zones."""
