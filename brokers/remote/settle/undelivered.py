"""Deliveries that reached no consumer and were returned, which the broker still counts as attempts.

With one attempt allowed, a cancelled receive would turn a message that nobody saw into a dead letter. So
a message is not dead-lettered by the count alone while this process knows better (any-replica, section 1).
"""

from __future__ import annotations

from typing import Final

_MOST: Final = 8_192
_MOST_TIMES: Final = 1_000


class Undelivered:
    """Soft state, bounded: without an entry the broker's count applies."""

    __slots__ = ("_most", "_old", "_times", "_young")

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        """The message of a handle, both by their hashes; the older generation is forgotten first."""
        self._times: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Undelivered {len(self._times)}>"

    def __len__(self) -> int:
        return len(self._times)

    def delivered(self, handle: str, group: str, message: bytes) -> None:
        """Remember of which message a handle is, in case it comes back undelivered."""
        if len(self._young) >= self._most:
            self._young, self._old = {}, self._young
        self._young[hash(handle)] = hash((group, message))

    def returned(self, handle: str) -> None:
        """This delivery reached no consumer."""
        key = hash(handle)
        message = self._young.pop(key, None)
        if message is None:
            message = self._old.pop(key, None)
        if message is None:
            return
        times = self._times.pop(message, 0)
        if len(self._times) >= self._most:
            del self._times[next(iter(self._times))]
        self._times[message] = min(times + 1, _MOST_TIMES)

    def times(self, group: str, message: bytes) -> int:
        """The number of deliveries of a message that reached no consumer, as far as is known here."""
        return self._times.get(hash((group, message)), 0) if self._times else 0
