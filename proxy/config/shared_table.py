"""The table `[shared]` of the configuration file: one broker for several gateways."""

from __future__ import annotations

from pydantic import Field

from proxy.config.remote_table import Secret
from proxy.config.tables import Count, Group, Seconds


class Shared(Group):
    """One embedded broker shared by several gateways: its process sets `share_broker`, the others `broker =
    "popgate://host:port"`. Traffic between them is not encrypted."""

    secret: Secret = ""
    """Secret by which gateways authenticate each other; required if other machines can connect. It is never
    shown or sent. A file is safer."""
    secret_file: str = Field(default="", max_length=4096)
    """File that contains the secret, read at startup; surrounding whitespace is ignored."""
    max_guests: Count = Field(default=256, ge=1, le=10_000)
    """Gateways that may connect to the broker of one process."""
    connect_timeout_s: Seconds = Field(default=3.0, gt=0, le=60)
    """Timeout for a connection to the process that has the broker."""
    startup_timeout_s: Seconds = Field(default=10.0, le=3600)
    """How long a starting gateway tries to reach that process before it gives up."""
    request_timeout_s: Seconds = Field(default=10.0, gt=0, le=600)
    """Timeout for requests other than long polls; shorter if the caller's deadline is earlier."""
    probe_s: Seconds = Field(default=3.0, ge=0.1, le=300)
    """A peer that owes a response and is silent for this time is probed, and disconnected after the same time
    again."""
    reconnect_s: Seconds = Field(default=2.0, gt=0, le=60)
    """Longest pause between two attempts to reconnect."""
