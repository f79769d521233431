"""The status of groups for the scrape: requested from the broker in slices, for a bounded number of groups.

A scrape looks at a limited number of queues; with more queues some values come from an earlier scrape. If
there are more groups than label values, groups with a backlog take precedence over idle ones, and the rest
is summed up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

from popgate.errors import GatewayError
from popgate.model import GroupStatus
from popgate.naming import told_group
from processors.admin.held_messages import together

_QUEUES_AT_ONCE = 1_024
_FRESH_S = 1.0

Ask = Callable[[int, int], Awaitable[tuple[list[GroupStatus], int | None]]]
"""The broker's `standings`."""


class Standings:
    """A table of at most `most` groups' standings; `others` adds up the rest of the last full round."""

    def __init__(self, *, most: int, now: Callable[[], float]) -> None:
        self.ask: Ask | None = None
        self.whole = True
        """Whether the broker reports held messages; see `Traits.tells_deliveries`."""
        self.others = Sum()
        self._most = most
        self._now = now
        self._table: dict[tuple[str, str], tuple[int, GroupStatus]] = {}
        self._members: dict[tuple[str, str], GroupStatus] = {}
        self._rest = Sum()
        self._round = 0
        self._start = 0
        self._asked: float | None = None
        self._asking = False

    def __repr__(self) -> str:
        return f"<Standings {len(self._table)} round {self._round}>"

    def __iter__(self) -> Iterator[GroupStatus]:
        return iter([standing for _, standing in self._table.values()])

    async def refresh(self) -> None:
        """Request the next slice, once a second at most. A broker without this feature changes nothing."""
        now = self._now()
        # A slice that came twice would be counted twice, and end its round twice: the rest would be gone.
        if self.ask is None or self._asking or (self._asked is not None and now - self._asked < _FRESH_S):
            return
        self._asked, self._asking = now, True
        try:
            standings, following = await self.ask(self._start, _QUEUES_AT_ONCE)
        except GatewayError:
            return
        finally:
            self._asking = False
        for standing in standings:
            if told_group(standing.group) == standing.group:
                self._keep(standing)
            else:
                self._gather(standing)
        self._start = following or 0
        if following is None:
            self._end_round()

    def _keep(self, standing: GroupStatus) -> None:
        key = (standing.topic, standing.group)
        if key not in self._table and len(self._table) >= self._most and not self._make_room(standing):
            self._rest.add(standing)
            return
        self._table[key] = self._round, standing

    def _gather(self, standing: GroupStatus) -> None:
        """Clients of a broadcast group are counted separately, and summed up after the round."""
        group = told_group(standing.group)
        key = (standing.topic, group)
        before = self._members.get(key)
        if before is not None:
            self._members[key] = together(before, standing)
        elif len(self._members) < self._most:
            self._members[key] = replace(standing, group=group)
        else:
            self._rest.add(standing)

    def _make_room(self, standing: GroupStatus) -> bool:
        if not standing.lag:
            return False
        for key, (seen, other) in self._table.items():
            if not other.lag:
                del self._table[key]
                if seen == self._round:
                    # Else it comes again in this round, and is counted then.
                    self._rest.add(other)
                return True
        return False

    def _end_round(self) -> None:
        """Remove groups that were not seen in this round."""
        for standing in self._members.values():
            self._keep(standing)
        self._members.clear()
        self._table = {key: kept for key, kept in self._table.items() if kept[0] == self._round}
        self._round += 1
        self.others, self._rest = self._rest, Sum()


class Sum:
    """The sum over groups that have no label of their own."""

    __slots__ = ("behind", "free", "groups", "in_flight", "lag", "receivers", "unread")

    def __init__(self) -> None:
        self.groups = self.lag = self.unread = self.in_flight = self.free = self.behind = self.receivers = 0

    def add(self, standing: GroupStatus) -> None:
        self.groups += 1
        self.lag += standing.lag
        self.unread += standing.unread
        self.in_flight += standing.in_flight
        self.free += standing.free
        self.behind += standing.behind
        self.receivers += standing.receivers
