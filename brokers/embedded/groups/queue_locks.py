"""Locks of queues, for clients that read in order by offset: advisory, short, in memory only.

Source: protocol facts 7.8 (60 s from the last lock or renewal by the same client).
"""

from __future__ import annotations

from popgate.clock import Clock

Place = tuple[str, int]
"""topic, queue"""


class QueueLocks:
    """Who holds which queue for which group, until when in loop seconds."""

    def __init__(self, clock: Clock, *, lock_ms: int, most: int) -> None:
        self._clock = clock
        self._seconds = lock_ms / 1000
        self._most = most
        self._held: dict[str, dict[Place, tuple[str, float]]] = {}
        """By group; none is empty."""
        self._count = 0
        self._all_hold_until = 0.0
        """Before this there is none whose time is over, as far as was looked: many ask at a full table."""

    def __repr__(self) -> str:
        return f"<QueueLocks {self._count}>"

    def take(self, group: str, client_id: str, place: Place) -> bool:
        """Lock or renew; False when another client has it, or there are too many locks."""
        now = self._clock.monotonic()
        held = self._held.get(group, {})
        holder, until = held.get(place, (client_id, now))
        if holder != client_id and until > now:
            return False
        if place not in held:
            if self._count >= self._most and now >= self._all_hold_until:
                self._forget_old(now)
            if self._count >= self._most:
                return False
            self._count += 1
        self._held.setdefault(group, {})[place] = (client_id, now + self._seconds)
        return True

    def any_of(self, group: str) -> bool:
        """Whether a client holds a queue for the group: it reads in order, by offset."""
        now, over = self._clock.monotonic(), []
        for place, (_, until) in self._held.get(group, {}).items():
            if until > now:
                break
            over.append(place)
        for place in over:  # nobody looks at them again
            self._drop(group, place)
        return group in self._held

    def give_up(self, group: str, client_id: str, place: Place) -> None:
        lock = self._held.get(group, {}).get(place)
        if lock is not None and lock[0] == client_id:
            self._drop(group, place)

    def _drop(self, group: str, place: Place) -> None:
        held = self._held[group]
        del held[place]
        self._count -= 1
        if not held:
            del self._held[group]

    def _forget_old(self, now: float) -> None:
        for group, held in list(self._held.items()):
            for place in [place for place, lock in held.items() if lock[1] <= now]:
                self._drop(group, place)
        left = [lock[1] for held in self._held.values() for lock in held.values()]
        self._all_hold_until = min(left, default=now)
