"""The bounds of a channel, as those who open one give them."""

from __future__ import annotations

from typing import Protocol


class ChannelSettings(Protocol):
    """The numbers of a channel.

    Silent for `probe_s` while it owes an answer, or for `heartbeat_s`: the other side is asked for a
    sign of life, and has `probe_s` for it.
    """

    @property
    def probe_s(self) -> float: ...
    @property
    def heartbeat_s(self) -> float: ...
    @property
    def max_in_flight(self) -> int: ...
    @property
    def max_queued_bytes(self) -> int: ...
    @property
    def max_frame_bytes(self) -> int: ...
