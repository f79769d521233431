"""Sends clients their settings again when topics or groups that they use have changed.

Changes that are made together are sent together, once to each client, and only to the clients concerned.
"""

from __future__ import annotations

from popgate.clock import Clock, Timer
from processors.clients.client_registry import ClientHandle, ClientRegistry

_TOGETHER_S = 0.1
"""How long a change waits for others; a file of settings changes hundreds."""
_MOST_NAMES = 4_096
"""Changed names that are remembered; with more all clients are told."""


class SettingsPush:
    """Collects changes for a moment, then notifies the clients."""

    def __init__(self, clients: ClientRegistry, clock: Clock) -> None:
        self._clients = clients
        self._clock = clock
        self._topics: set[str] = set()
        self._groups: set[str] = set()
        self._timer: Timer | None = None

    def __repr__(self) -> str:
        return f"<SettingsPush topics {len(self._topics)} groups {len(self._groups)}>"

    def topic_changed(self, name: str) -> None:
        """The topic was created, updated or deleted."""
        self._note(self._topics, name)

    def group_changed(self, name: str) -> None:
        """The group was created, updated or deleted."""
        self._note(self._groups, name)

    def stop(self) -> None:
        """Stop notifying clients."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._topics.clear()
        self._groups.clear()

    def _note(self, names: set[str], name: str) -> None:
        if not len(self._clients):
            return
        if len(names) <= _MOST_NAMES:
            names.add(name)
        if self._timer is None:
            self._timer = self._clock.call_later(_TOGETHER_S, self._tell)

    def _tell(self) -> None:
        self._timer = None
        for client in self._concerned():
            if client.alive:
                client.refresh()
        self._topics.clear()
        self._groups.clear()

    def _concerned(self) -> list[ClientHandle]:
        if max(len(self._topics), len(self._groups)) > _MOST_NAMES:
            return list(self._clients.all())
        if not self._topics:
            return [client for group in self._groups for client in self._clients.consumers_of(group)]
        return [
            client
            for client in self._clients.all()
            if client.group in self._groups or not self._topics.isdisjoint(client.topics)
        ]
