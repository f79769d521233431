"""A broker's question about a half message finds its way to a producer."""

from __future__ import annotations

from popgate.model import TransactionCheck
from processors.clients.client_registry import ClientRegistry
from processors.observer import Observer


class CheckRouter:
    """Asks one of the producers, another one each time; the next when one cannot take it."""

    __slots__ = ("_clients", "_observer")

    def __init__(self, clients: ClientRegistry, observer: Observer) -> None:
        self._clients = clients
        self._observer = observer

    def ask(self, check: TransactionCheck) -> bool:
        """Whether a producer was asked: classic ones by the group of the half message.

        Over gRPC the group of a producer is its topic (protocol facts 9.3, 39).
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
