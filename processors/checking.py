"""A broker's question about a half message finds its way to a producer."""

from __future__ import annotations

from popgate.model import TransactionCheck
from processors.clients import Clients
from processors.observing import Observer


class Checking:
    """Asks one of the topic's producers, another one each time; the next when one cannot take it."""

    __slots__ = ("_clients", "_observer")

    def __init__(self, clients: Clients, observer: Observer) -> None:
        self._clients = clients
        self._observer = observer

    def ask(self, check: TransactionCheck) -> bool:
        """Whether a producer was asked. Over gRPC its group is its topic (protocol facts 9.3, 39)."""
        topic = check.topic
        asked = False
        for producer in self._clients.producers_of(topic):
            self._clients.rotate(topic, producer.client_id)
            if producer.alive and producer.check_transaction(check):
                asked = True
                break
        self._observer.checked(topic, asked)
        return asked
