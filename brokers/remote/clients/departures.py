"""Clients that left their brokers a while ago, of which those are told for the second time.

A broker handles heartbeats and UNREGISTER_CLIENT in different threads: a heartbeat that was sent before can
register the client once more afterwards. Nobody repeats that registration, so after 120 s the broker closes
the connection, and every request on it is lost, whoever made it (`ProducerManager.scanNotActiveChannel` and
its counterpart for consumers). Seen on an idle RocketMQ 5.5.0: of 2,000 producers whose departure was sent
right behind their heartbeat some 190 stayed, and the connection was closed 124 s later. A connection that is
opened again sends both like that when a client leaves in that moment.

The second time is about the connection only. With the name of a producer the broker would forget where
replies to it go, though it is connected elsewhere by then (`ProducerManager.unregisterProducer`).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from brokers.remote.clients.link_slots import Membership

AGAIN_S: Final = 40.0
"""Seconds: later than a broker handles a heartbeat at all (its `waitTimeMillsInHeartbeatQueue` is 31 s), and
long before it closes the connection."""
_MOST: Final = 4_096
"""Seats that are remembered; of more the oldest ones are forgotten."""


class Departure(NamedTuple):
    """A client that left its seat in a group, and the brokers that knew it there; `again`: they were told."""

    client_id: str
    membership: Membership
    seat: int
    addresses: frozenset[str]
    again: bool = False


class Departures:
    """The last one of each seat, in the order in which they left. Times in loop seconds."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[Membership, int], tuple[float, Departure]] = OrderedDict()

    def add(self, departure: Departure, now: float) -> None:
        key = departure.membership, departure.seat
        self._last[key] = now + AGAIN_S, departure._replace(again=True)
        self._last.move_to_end(key)
        if len(self._last) > _MOST:
            self._last.popitem(last=False)

    def take_due(self, now: float) -> list[Departure]:
        """Those of which brokers are to be told now."""
        due: list[Departure] = []
        while self._last:
            at, departure = next(iter(self._last.values()))
            if at > now:
                break
            self._last.popitem(last=False)
            due.append(departure)
        return due
