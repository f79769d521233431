"""The table `[shared]` of the configuration file: one broker for several gateways."""

from __future__ import annotations

from pydantic import Field

from proxy.config.remote_table import Secret
from proxy.config.tables import Count, Group, Seconds


class Shared(Group):
    """One embedded broker for several gateways: the process that has it says `share_broker`, the others
    `broker = "popgate://host:port"`. What passes between them is not encrypted."""

    secret: Secret = ""
    """What gateways prove to each other that they know; needed wherever others than this machine get. It
    is never shown, and never sent; a file is better still."""
    secret_file: str = Field(default="", max_length=4096)
    """A file that has the secret, read at the start; blanks around it do not count."""
    max_guests: Count = Field(default=256, ge=1, le=10_000)
    """Gateways that one process serves its broker to."""
    connect_timeout_s: Seconds = Field(default=3.0, gt=0, le=60)
    """How long a connection to the process that has the broker may take."""
    startup_timeout_s: Seconds = Field(default=10.0, le=3600)
    """How long a gateway that starts tries to reach it before it gives up."""
    request_timeout_s: Seconds = Field(default=10.0, gt=0, le=600)
    """How long it may take for what does not wait there; less when the caller has less time."""
    probe_s: Seconds = Field(default=3.0, ge=0.1, le=300)
    """A side that owes an answer and is silent for so long is asked for a sign of life, and given up
    so long after that."""
    reconnect_s: Seconds = Field(default=2.0, gt=0, le=60)
    """The longest rest between two attempts to reach it again."""
