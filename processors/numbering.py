"""Numbers of queues, for clients that know the queues of several brokers by numbers alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from brokers.numbering import BROKERS, NumbersQueues
from brokers.port import Broker
from popgate.context import Context
from popgate.errors import Unsupported
from popgate.kinds import Action
from popgate.queue_numbers import Numbered, QueueNumbers


class Numbering:
    """What the broker keeps of it, if it is one that has several."""

    def __init__(self, broker: Broker, admit: Callable[..., None]) -> None:
        self._name = broker.name
        self._numbers = broker if isinstance(broker, NumbersQueues) else None
        self._admit = admit

    @property
    def is_kept(self) -> bool:
        """Else there is one broker only, whose queues have the numbers that they have there."""
        return self._numbers is not None

    async def queues(self, context: Context, topic: str, queues: Sequence[Numbered]) -> QueueNumbers:
        """Those of a topic's queues, and first of these. Raises BrokerUnavailable, Unsupported."""
        self._admit(context, Action.GET, topic=topic)
        return await self._kept().numbered(context, topic, queues)

    async def brokers(self, context: Context, names: Sequence[str]) -> QueueNumbers:
        """Those of brokers, each as its queue 0. Raises as `queues`."""
        self._admit(context, Action.GET)
        return await self._kept().numbered(context, BROKERS, [(name, 0) for name in names])

    def _kept(self) -> NumbersQueues:
        if self._numbers is None:
            raise Unsupported(f"to number the queues of {self._name}")
        return self._numbers
