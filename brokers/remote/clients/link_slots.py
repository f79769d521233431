"""Assigns clients of a group to connections: a broker knows one client per group and connection.

The first client of a group takes slot (seat) 0, which is link 0, the next one slot 1, and so on. So there are
as many links to a broker as the largest group of this process has clients, up to a limit. Clients beyond the
limit are merged: brokers know their groups through the other members, but not these clients themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, unique
from typing import NamedTuple


@unique
class Role(Enum):
    """The values are the fields of UNREGISTER_CLIENT (protocol facts 5.5)."""

    PRODUCER = "producerGroup"
    CONSUMER = "consumerGroup"


class Membership(NamedTuple):
    role: Role
    group: str


@dataclass(slots=True)
class _Group:
    """`seats`: the client of each; None: it left, and brokers are being notified, maybe for the second time.
    `merged`: in order."""

    seats: dict[int, str | None] = field(default_factory=dict)
    merged: dict[str, None] = field(default_factory=dict)


class LinkSlots:
    """The seats of all groups, at most `most` in each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._groups: dict[Membership, _Group] = {}
        self.merged = 0

    def __repr__(self) -> str:
        return f"<LinkSlots of {len(self._groups)} groups, merged {self.merged}>"

    def __contains__(self, membership: Membership) -> bool:
        """Whether the group has a client here that is not leaving."""
        group = self._groups.get(membership)
        return group is not None and (bool(group.merged) or any(group.seats.values()))

    def highest(self) -> int:
        """The highest occupied seat; -1 when there is none."""
        return max((max(group.seats) for group in self._groups.values() if group.seats), default=-1)

    def seated(self, membership: Membership, seat: int) -> str | None:
        """The client in a seat; None: nobody, or one that left."""
        group = self._groups.get(membership)
        return group.seats.get(seat) if group is not None else None

    def take(self, membership: Membership, client_id: str) -> int | None:
        """The lowest free seat, for a client that has none; None: it is merged, until a seat is free."""
        group = self._groups.setdefault(membership, _Group())
        for seat in range(min(len(group.seats) + 1, self._most)):
            if seat not in group.seats:
                group.seats[seat] = client_id
                return seat
        group.merged[client_id] = None
        self.merged += 1
        return None

    def reserve(self, membership: Membership, seat: int) -> bool:
        """Keep a free seat from everybody until it is `vacated`. False: somebody has it."""
        group = self._groups.get(membership)
        if group is not None and seat in group.seats:
            return False
        self._groups.setdefault(membership, _Group()).seats[seat] = None
        return True

    def leave(self, membership: Membership, client_id: str, seat: int | None) -> None:
        """The client leaves. Its seat is free when brokers have been notified: `vacated`."""
        group = self._groups[membership]
        if seat is not None:
            group.seats[seat] = None
        elif client_id in group.merged:
            del group.merged[client_id]
            self.merged -= 1
        self._forget(membership, group)

    def vacated(self, membership: Membership, seat: int) -> str | None:
        """Brokers know no more who sat there. The client that was merged and has the seat now, if any."""
        group = self._groups[membership]
        del group.seats[seat]
        following = next(iter(group.merged), None)
        if following is not None:
            del group.merged[following]
            self.merged -= 1
            group.seats[seat] = following
        self._forget(membership, group)
        return following

    def _forget(self, membership: Membership, group: _Group) -> None:
        if not group.seats and not group.merged:
            del self._groups[membership]
