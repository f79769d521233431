"""Locks of queues, for clients that read in order by offset: advisory, short, in memory only.

Source: protocol facts 7.8 (60 s from the last lock or renewal by the same client).
"""

from __future__ import annotations

from popgate.clock import Clock

Place = tuple[str, int]
"""topic, queue"""


class Locks:
    """Who holds which queue for which group, until when in loop seconds."""

    def __init__(self, clock: Clock, *, lock_ms: int, most: int) -> None:
        self._clock = clock
        self._seconds = lock_ms / 1000
        self._most = most
        self._held: dict[tuple[str, Place], tuple[str, float]] = {}

    def __repr__(self) -> str:
        return f"<Locks {len(self._held)}>"

    def take(self, group: str, client_id: str, place: Place) -> bool:
        """Lock or renew; False when another client has it, or there are too many locks."""
        now = self._clock.monotonic()
        key = (group, place)
        holder, until = self._held.get(key, (client_id, now))
        if holder != client_id and until > now:
            return False
        if key not in self._held and len(self._held) >= self._most:
            self._held = {known: lock for known, lock in self._held.items() if lock[1] > now}
            if len(self._held) >= self._most:
                return False
        self._held[key] = (client_id, now + self._seconds)
        return True

    def give_up(self, group: str, client_id: str, place: Place) -> None:
        key = (group, place)
        if self._held.get(key, ("", 0.0))[0] == client_id:
            self._held.pop(key, None)
