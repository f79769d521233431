"""Counters by label, for a bounded number of label values.

When all places are taken, a new value is counted under `_other`. A value without activity for a
long time is removed and its place is reused, so names that come and go do not exhaust the bound.
Its series ends, which Prometheus tolerates; nothing is counted twice. Where the series of several processes
are added, it would not end but fall, which looks as if the others had begun anew: there an idle value is
removed only when its place is needed.

Finding idle values costs the hot path nothing: the counters of a value are compared with those of an
earlier check, at a scrape or when all places are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, ItemsView
from typing import Generic, Protocol, TypeVar

OTHER = "_other"


class Figures(Protocol):
    """The counters of one label value."""

    def activity(self) -> float:
        """A value that changes whenever something is counted."""
        ...


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", bound=Figures)


class Capped(Generic[Key, Value]):
    """At most `most` values, each with figures made by `make`; `other` is the key of all others together.

    `added`: the figures are added to those of other processes.
    """

    __slots__ = (
        *("_added", "_forget_s", "_looked", "_make", "_most", "_now", "_other", "_seen", "_table"),
        "_wanted",
    )

    def __init__(
        self,
        make: Callable[[], Value],
        other: Key,
        *,
        most: int,
        forget_s: float,
        now: Callable[[], float],
        added: bool = False,
    ) -> None:
        self._added = added
        self._make = make
        self._other = other
        self._most = most
        self._forget_s = forget_s
        self._now = now
        self._table: dict[Key, Value] = {}
        self._seen: dict[Key, tuple[float, float]] = {}
        """By key: the activity at the last look that found something new, and when that was."""
        self._looked = self._wanted = now()
        """The last look, and the last one when a place was needed."""

    def __repr__(self) -> str:
        return f"<Capped {len(self._table)} of {self._most}>"

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, key: Key) -> Value:
        series = self._table.get(key)
        return series if series is not None else self._add(key)

    def known(self, key: Key) -> Value:
        """Figures of a value that is there already, else those of the others: it takes up no room."""
        series = self._table.get(key)
        return series if series is not None else self._others()

    def items(self) -> ItemsView[Key, Value]:
        return self._table.items()

    def forget_idle(self, *, needed: bool = False) -> None:
        """Remove label values that were idle for long; scans all, at most a few times in that period.

        `needed`: a new value has no place.
        """
        now = self._now()
        if now - (self._wanted if needed else self._looked) < self._forget_s / 4:
            return
        if needed:
            self._wanted = now
        self._looked = now
        for key, value in list(self._table.items()):
            activity = value.activity()
            seen = self._seen.get(key)
            if seen is None or seen[0] != activity:
                self._seen[key] = activity, now
            elif key != self._other and now - seen[1] >= self._forget_s and (needed or not self._added):
                del self._table[key], self._seen[key]

    def _add(self, key: Key) -> Value:
        if len(self._table) - (self._other in self._table) >= self._most:
            self.forget_idle(needed=True)
            if len(self._table) - (self._other in self._table) >= self._most:
                return self._others()
        made = self._table[key] = self._make()
        return made

    def _others(self) -> Value:
        series = self._table.get(self._other)
        if series is None:
            series = self._table[self._other] = self._make()
        return series
