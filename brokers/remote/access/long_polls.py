"""How many requests wait at each broker for messages, so that they leave room for all others.

They share a connection with sends, pops and acknowledgements, of which only so many requests may be under
way (`RemoteSettings.max_in_flight`).
"""

from __future__ import annotations


class LongPolls:
    """At most `most` at each broker."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<LongPolls {sum(self._waiting.values())}>"

    def begin(self, broker: str) -> bool:
        """Whether one more may wait there; `end` must follow then."""
        waiting = self._waiting.get(broker, 0)
        if waiting >= self._most:
            return False
        self._waiting[broker] = waiting + 1
        return True

    def end(self, broker: str) -> None:
        """One waits no longer."""
        left = self._waiting.pop(broker) - 1
        if left:
            self._waiting[broker] = left
