"""Limits of a connection, and of all connections together."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from protocols.grpc.http2.frames.codes import Flood

_SPARE: Final = 64
"""Of what may be held, so many parts; one of them is given up beyond what has to be."""


class Holder(Protocol):
    """A connection that holds something."""

    holds: int

    def give_up(self) -> bool:
        """Refuse the request that holds most of it. False: it is the only one of all."""
        ...


INFLATED_AT_ONCE = 1024 * 1024
"""Bytes that compressed messages come to, after which a connection waits: less than 5 ms of inflating."""


class InflationBudget:
    """Decompressed bytes of all connections of a server, as a debt that is paid off at a steady rate.

    A connection that caused much decompression waits until its debt is paid off, and others that send
    compressed messages wait behind it: those that send none are not delayed.
    """

    __slots__ = ("_paid_off", "rate")

    def __init__(self, rate: int = 128 * 1024 * 1024) -> None:
        self.rate = rate
        """Bytes per second: about a third of a core."""
        self._paid_off = 0.0

    def __repr__(self) -> str:
        return f"<InflationBudget paid off at {self._paid_off:.3f}>"

    def rest(self, size: int, now: float) -> float:
        """The wait in seconds after decompressing so many bytes; at most `LONGEST_REST_S`."""
        self._paid_off = max(now, min(self._paid_off, now + LONGEST_REST_S)) + size / self.rate
        return min(self._paid_off - now, LONGEST_REST_S)


LONGEST_REST_S = 5.0


class HeldBytes:
    """Bytes of requests that are not there as a whole, or not read, of all connections of a server.

    And of whole answers, while the windows of their peers have no room for them.
    """

    __slots__ = ("holders", "most", "used")

    def __init__(self, most: int = 256 * 1024 * 1024) -> None:
        self.most = most
        self.used = 0
        self.holders: set[Holder] = set()

    def make_room(self) -> None:
        """Above the limit, the connections that hold the most give up data, not the most recent ones.

        Somewhat more than they have to: to look through all of them for every frame would be dear.
        """
        least = self.most - self.most // _SPARE
        heap = [(-holder.holds, number, holder) for number, holder in enumerate(self.holders)]
        heapq.heapify(heap)
        while self.used > least and heap:
            _, number, holder = heap[0]
            if not holder.give_up():
                return
            if holder.holds:
                heapq.heapreplace(heap, (-holder.holds, number, holder))
            else:
                heapq.heappop(heap)

    def __repr__(self) -> str:
        return f"<HeldBytes {self.used} of {self.most}>"


def _calm() -> Mapping[Flood, int]:
    return {
        Flood.RESETS: 1000,
        Flood.CONTINUATIONS: 2000,
        Flood.SETTINGS: 100,
        Flood.PINGS: 2000,
        Flood.EMPTY_FRAMES: 2000,
        Flood.WINDOW_UPDATES: 200_000,
        Flood.PRIORITIES: 2000,
        Flood.BOMBS: 20,
    }


@dataclass(slots=True, frozen=True)
class Http2Limits:
    """Sizes in bytes, `_s` in seconds of the loop's clock.

    `max_streams` may be open on a connection at a time. A peer may send `stream_window` for a request before
    anybody looked at it; for all of its connection 65,535, and up to `connection_window` when it sends much.
    `max_continuations` frames may follow one HEADERS. Who has not greeted within `greeting_s` is cut off, as
    is one whose request hardly grows for `slow_s`, or who takes hardly any of what it asked for in that time.
    After `ping_s` of silence it is asked for a sign of life, which must come within half of that. Of each
    kind of `Flood` so many frames are borne within `calm_s`.
    """

    max_streams: int = 1024
    stream_window: int = 1024 * 1024
    connection_window: int = 4 * 1024 * 1024
    max_headers_bytes: int = 16 * 1024
    max_continuations: int = 16
    max_message_bytes: int = 130 * 1024 * 1024
    max_plain_bytes: int = 64 * 1024
    greeting_s: float = 10.0
    ping_s: float = 20.0
    slow_s: float = 60.0
    age_s: float = 0.0
    age_grace_s: float = 30.0
    calm_s: float = 10.0
    calm: Mapping[Flood, int] = field(default_factory=_calm)
    holding: HeldBytes = field(default_factory=HeldBytes)
    inflating: InflationBudget = field(default_factory=InflationBudget)
