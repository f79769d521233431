"""Routes a broker's transaction check to a producer of the group, or of the topic."""

from __future__ import annotations

from popgate.model import TransactionCheck
from processors.clients.client_registry import ClientRegistry
from processors.observer import Observer


class CheckRouter:
    """Sends a check to one producer, a different one each time; to the next if one cannot take it."""

    __slots__ = ("_clients", "_observer")

    def __init__(self, clients: ClientRegistry, observer: Observer) -> None:
        self._clients = clients
        self._observer = observer

    def ask(self, check: TransactionCheck) -> bool:
        """Whether a producer received the check. Classic producers are found by the half message's group.

        gRPC producers have no group name of their own, so theirs is the topic (protocol facts 9.3, 39).
        """
        topic, group = check.topic, check.producer_group
        asked = False
        producers = self._clients.producers_in(group)
        if group in ("", topic):
            producers += self._clients.producers_of(topic)
        for producer in producers:
            self._clients.rotate(producer, topic)
            if producer.alive and producer.check_transaction(check):
                asked = True
                break
        self._observer.checked(topic, asked)
        return asked
