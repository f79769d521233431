"""What a broker may be able to do for clients that know the queues of a topic by numbers alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from popgate.context import Context
from popgate.ids.queue_numbers import Numbered, QueueNumbers

BROKERS: Final = ".brokers"
"""In the place of a topic, and no topic's name: for the numbers of the brokers, each as its queue 0."""
MOST_BROKERS: Final = 511
"""Brokers that may ever have a number: a place in a log has nine bits for it, and one number means nobody."""


class NumbersQueues(ABC):
    """A broker that is many, and keeps for all gateways which number a queue has (ADR 12)."""

    @abstractmethod
    async def numbered(self, context: Context, topic: str, queues: Sequence[Numbered]) -> QueueNumbers:
        """The numbers of a topic's queues; those of `queues` that have none get the next ones first.

        Brokers whose names no record can have get none, nor do those beyond `MOST_BROKERS`. Numbers that were
        given stay, also of queues that are gone. Raises BrokerUnavailable: it cannot be known now, or not be
        kept.
        """
