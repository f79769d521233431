"""The messages that clients hold, by connection, and by the places that they name when they send one back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from popgate.context import Context
from protocols.remoting.mapped.offsets import Fate, Held, QueueHoldings, QueueKey
from protocols.remoting.mapped.retries import Retries

MOST_QUEUES: Final = 16_384
"""Of one connection; of those that are not needed any more the numbers are forgotten first."""


class ConnectionHoldings:
    """What the clients of one connection hold."""

    __slots__ = ("_groups", "context", "gone", "queues", "retries")

    def __init__(self, context: Context, retries: Retries) -> None:
        self.context = context
        """In whose name things are asked that no request of its clients waits for."""
        self.gone = False
        self.retries = retries
        self.queues: dict[QueueKey, QueueHoldings] = {}
        self._groups: dict[str, dict[QueueKey, QueueHoldings]] = {}

    def __repr__(self) -> str:
        return f"<ConnectionHoldings {self.context.peer} queues {len(self.queues)}>"

    def queue(self, key: QueueKey) -> QueueHoldings | None:
        """Of this key, made when it is not there; None: there are too many."""
        queue = self.queues.get(key)
        if queue is None:
            if len(self.queues) >= MOST_QUEUES and not self._make_room():
                return None
            queue = QueueHoldings(key)
            self.put_back(queue)
        return queue

    def put_back(self, queue: QueueHoldings) -> bool:
        """Have a queue here, also if room was made of it meanwhile. False: its key has another one by now."""
        if self.queues.setdefault(queue.key, queue) is not queue:
            return False
        self._groups.setdefault(queue.key.group, {})[queue.key] = queue
        return True

    def find(self, group: str, topic: str, queue_id: int, broker: str) -> QueueHoldings | None:
        """Without a broker: the queue of the only broker that is read here."""
        if broker:
            return self.queues.get(QueueKey(group, topic, broker, queue_id))
        queues = [
            queue
            for key, queue in self._groups.get(group, {}).items()
            if (key.topic, key.queue_id) == (topic, queue_id)
        ]
        return queues[0] if len(queues) == 1 else None

    def of_group(self, group: str) -> list[QueueHoldings]:
        return list(self._groups.get(group, {}).values())

    @property
    def groups(self) -> set[str]:
        """Whose queues are read here."""
        return set(self._groups)

    def _make_room(self) -> bool:
        """New numbers are higher than forgotten ones: `offsets.beginning`."""
        idle = [key for key, queue in self.queues.items() if not queue.held and queue.waits is None]
        for key in idle:
            del self.queues[key]
            of_group = self._groups[key.group]
            del of_group[key]
            if not of_group:
                del self._groups[key.group]
        return bool(idle)


class PlaceIndex:
    """What is held here, by group and physical offset: a client names no more when it sends back."""

    def __init__(self) -> None:
        self._at: dict[tuple[str, int], list[tuple[ConnectionHoldings, Held]]] = {}
        self.held = 0
        """How many messages are in it."""

    def __repr__(self) -> str:
        return f"<PlaceIndex {len(self._at)}>"

    def __len__(self) -> int:
        return len(self._at)

    def add(self, connection: ConnectionHoldings, taken: Sequence[Held]) -> None:
        self.held += len(taken)
        for delivery in taken:
            self._at.setdefault((delivery.queue.key.group, delivery.physical), []).append(
                (connection, delivery)
            )

    def drop(self, delivery: Held) -> None:
        place = delivery.queue.key.group, delivery.physical
        known = self._at.get(place)
        if known is None:
            return
        left = [pair for pair in known if pair[1] is not delivery]
        self.held -= len(known) - len(left)
        if left:
            self._at[place] = left
        else:
            del self._at[place]

    def find(
        self, group: str, broker: str, physical: int, connection: ConnectionHoldings | None
    ) -> tuple[ConnectionHoldings, Held] | None:
        """The newest there, sooner on this connection. Where no broker is named there must be no doubt."""
        pairs = [
            pair
            for pair in self._at.get((group, physical), ())
            if broker in ("", pair[1].broker) and pair[1].fate is Fate.HELD
        ]
        if not pairs or len({delivery.broker for _, delivery in pairs}) > 1:
            return None
        return max(pairs, key=lambda pair: (pair[0] is connection, pair[1].delivered))


def all_held(connections: Iterable[ConnectionHoldings]) -> Iterator[Held]:
    for connection in connections:
        for queue in connection.queues.values():
            yield from queue.held.values()
