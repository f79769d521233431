"""Limits of memory that requests use: per connection, per consumer group, and in the whole process.

The memory of requests in progress and of answers that are not written yet counts. Counters are plain
integers, kept only while they are above 0; the hot path adds to them once per request. A holder with nothing
may always take one item, however large it is, so no limit makes a message impossible; and a consumer takes at
least one message while it has any room, so that one message at most exceeds the limit.

The process budget is shared fairly: no holder may have more than what is left free for the others. A single
greedy holder gets half of it, two get a third each, and some is always left for the next one.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from popgate.errors import TooManyRequests

_RETRY_S = 0.1


class Budgets:
    """The counters. All sizes are in bytes."""

    __slots__ = ("_connections", "_groups", "connection_bytes", "group_bytes", "process_bytes", "used")

    def __init__(self, *, process_bytes: int, group_bytes: int, connection_bytes: int) -> None:
        self.process_bytes = process_bytes
        self.group_bytes = group_bytes
        self.connection_bytes = connection_bytes
        self.used = 0
        """Of the whole process."""
        self._connections: dict[object, int] = {}
        self._groups: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Budgets {self.used} of {self.process_bytes} connections {len(self._connections)}>"

    def __len__(self) -> int:
        """How many connections and groups have something under way."""
        return len(self._connections) + len(self._groups)

    def allowance(self, connection: object) -> Allowance:
        """What one request of this connection holds: nothing yet. Its owner releases it."""
        return Allowance(self, connection)

    def of_connection(self, connection: object) -> int:
        return self._connections.get(connection, 0)

    def of_group(self, group: str) -> int:
        return self._groups.get(group, 0)

    def room(self, connection: object, group: str, size: int) -> int:
        """How many bytes may be taken now, at least `size`. Raises TooManyRequests.

        An empty group is none.
        """
        own = self._connections.get(connection, 0)
        room = self.connection_bytes - own
        if room < size and own:
            raise TooManyRequests(
                _full(f"connection {connection}", own, self.connection_bytes, size), _RETRY_S, alone=True
            )
        if group:
            own = self._groups.get(group, 0)
            of_group = self.group_bytes - own
            if of_group < size and own:
                raise TooManyRequests(_full(f"consumer group {group}", own, self.group_bytes, size), _RETRY_S)
            room = min(room, of_group)
        used = self.used
        of_all = self.process_bytes - used - own
        if of_all < size and used:
            who = f"consumer group {group}" if group else f"connection {connection}"
            raise TooManyRequests(
                f"{_full('the gateway', used, self.process_bytes, size)}; {own} of them are of {who},"
                " which may not hold more than is left free",
                _RETRY_S,
            )
        return max(min(room, of_all), size)

    def add(self, connection: object, group: str, size: int) -> None:
        """Count `size` bytes more, or fewer when it is below 0."""
        self.used += size
        _count(self._connections, connection, size)
        if group:
            _count(self._groups, group, size)


class Allowance:
    """What one request holds of the budgets; a `popgate.context.Allowance`.

    `group` is set before anything is counted for it; what was counted before is of no group.
    """

    __slots__ = ("_budgets", "_connection", "_group", "_of_group", "size")

    def __init__(self, budgets: Budgets, connection: object) -> None:
        self._budgets = budgets
        self._connection = connection
        self._group = ""
        self._of_group = 0
        self.size = 0
        """What is held now."""

    def __repr__(self) -> str:
        return f"<Allowance {self.size} of connection {self._connection} group {self._group!r}>"

    def __enter__(self) -> Allowance:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def for_group(self, group: str) -> None:
        """What is taken from here on is for this group; a request has one group."""
        if group != self._group:
            if self._of_group:
                raise ValueError(f"{self!r} cannot become one of group {group!r}")
            self._group = group

    def room(self) -> int:
        return self._budgets.room(self._connection, self._group, 1)

    def take(self, size: int) -> None:
        """Hold `size` bytes more, if the budgets allow it. Raises TooManyRequests."""
        self._budgets.room(self._connection, self._group, size)
        self.add(size)

    def add(self, size: int) -> None:
        if size:
            self.size += size
            if self._group:
                self._of_group += size
            self._budgets.add(self._connection, self._group, size)

    def release(self) -> None:
        """Hold nothing any more. May be repeated."""
        if self.size:
            of_group, of_none = self._of_group, self.size - self._of_group
            if of_group:
                self._budgets.add(self._connection, self._group, -of_group)
            if of_none:
                self._budgets.add(self._connection, "", -of_none)
            self.size = self._of_group = 0


def _count(table: dict[Any, int], key: object, size: int) -> None:
    left = table.get(key, 0) + size
    if left:
        table[key] = left
    else:
        table.pop(key, None)


def _full(budget: str, used: int, limit: int, size: int) -> str:
    more = f"and this request has {size} more" if size > 1 else "and this request wants more"
    return f"{budget} has {used} of its {limit} bytes under way, {more}: try again when some are done"
