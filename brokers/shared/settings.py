"""Every number of a shared broker, with its unit in its name; `proxy` fills it from `[shared]`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, frozen=True)
class SharedSettings:
    """Values for `SharedBroker` and `BrokerHost`; nobody below them reads a configuration."""

    secret: str = field(default="", repr=False)
    """What host and guests prove to each other that they know; needed beyond loopback."""
    gateway: str = ""
    """The name by which the host knows a guest, for its log."""

    connect_timeout_s: float = 3.0
    hello_s: float = 5.0
    """A connection that has not proved itself after so long is closed."""
    startup_timeout_s: float = 10.0
    """How long a guest that starts tries to reach its host."""
    request_timeout_s: float = 10.0
    """For calls where the caller has no shorter time; a pop may wait so long beyond its own wait."""
    reconnect_first_s: float = 0.05
    reconnect_longest_s: float = 2.0
    reconnect_wait_s: float = 2.0
    """How long a call waits for a host that is just being reached again."""
    state_s: float = 2.0
    """How often a guest asks how its host is."""

    probe_s: float = 3.0
    """A side that answers nothing for so long is asked for a sign of life, and cut so long after that."""
    heartbeat_s: float = 10.0
    max_in_flight: int = 65_536
    """Calls of one guest that have no answer yet, waiting pops included."""
    max_queued_bytes: int = 64 * 1024 * 1024
    """What waits to be written because the other side does not read; pops take no more then."""
    max_frame_bytes: int = 16 * 1024 * 1024
    max_answer_bytes: int = 8 * 1024 * 1024
    """What one pop or pull is asked for at most, and one send is cut into."""
    max_guests: int = 256
    max_members: int = 100_000
    """Clients of one guest that the broker is told of."""
    max_lite_clients: int = 100_000
    """Clients whose subscriptions to lite topics a guest remembers."""
    stop_s: float = 2.0
    """How long a host that stops lets calls finish."""
