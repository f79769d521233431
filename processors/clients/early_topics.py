"""Topics of producers whose settings have not arrived yet.

A client that names no topics when it is made opens its Telemetry stream with its first send, on another
stream of the connection: the gateway may process the send first. Source: the official Python client 5.1.2.
"""

from __future__ import annotations

_MOST_CLIENTS = 1_024
_MOST_TOPICS = 16


class EarlyTopics:
    """By the client's key; the oldest client makes room for a new one."""

    def __init__(self) -> None:
        self._topics: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def add(self, key: str, topic: str) -> None:
        """An unknown client has sent to `topic`; ignored beyond 16 topics of one client."""
        topics = self._topics.get(key)
        if topics is None:
            if len(self._topics) >= _MOST_CLIENTS:
                del self._topics[next(iter(self._topics))]
            topics = self._topics[key] = set()
        if len(topics) < _MOST_TOPICS:
            topics.add(topic)

    def take(self, key: str) -> set[str]:
        """The topics of a client that is known now."""
        return self._topics.pop(key, set())
