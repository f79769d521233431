"""Selects the queue of a message: by its message group, else in turn, avoiding brokers in trouble.

Source: protocol facts 3.2 (the hash, and the order of the queues it counts) and 6.3.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from brokers.remote.cluster.queues import places_of
from brokers.remote.produce.broker_latency import BrokerLatency
from popgate.ids.hashes import consistent_hash, java_hash
from popgate.model import Permission
from popgate.wire.bodies.routes import TopicRoute


class Target(NamedTuple):
    """A queue that can be written to now."""

    broker: str
    queue_id: int


def writable_queues(topic: str, route: TopicRoute) -> tuple[Target, ...]:
    """The queues of a route that have a master, sorted as RocketMQ sorts them."""
    return tuple(
        Target(place.broker, place.queue_id)
        for place in places_of(topic, route)
        if place.permission & Permission.WRITE
    )


def led_now(queue: Target, queues: Sequence[Target]) -> Target | None:
    """A queue of a static topic by its number, wherever it is led now; None: nowhere."""
    return next((candidate for candidate in queues if candidate.queue_id == queue.queue_id), None)


def zones_of(route: TopicRoute) -> dict[str, str]:
    return {broker.name: broker.zone for broker in route.brokers if broker.zone}


@lru_cache(maxsize=8192)
def _place(message_group: str, queues: int) -> int:
    return consistent_hash(java_hash(message_group), queues)


class QueueSelector:
    """Chooses queues. Of brokers that are left alone for a while none is chosen unless there is no other."""

    def __init__(self, latency: BrokerLatency, zone: str) -> None:
        self._latency = latency
        self._zone = zone
        self._turn = random.randrange(1 << 16)  # noqa: S311

    def __repr__(self) -> str:
        return f"<QueueSelector {self._latency!r}>"

    def pick(
        self,
        queues: Sequence[Target],
        zones: Mapping[str, str],
        now: float,
        *,
        message_group: str = "",
        priority: int | None = None,
        without: Collection[str] = (),
    ) -> Target | None:
        """One of `queues`, which are at least one; None when all of them are of brokers to do `without`.

        A message group has one queue as long as the route stays: never another one, also when its broker
        is in trouble, because its order would be lost. A priority is a queue's number, the last one for
        those above.
        """
        if message_group:
            chosen = queues[_place(message_group, len(queues))]
            return None if chosen.broker in without else chosen
        self._turn += 1
        if priority is not None:
            queues = _of_priority(queues, priority)
        fit: Sequence[Target] = queues
        if without:
            fit = [queue for queue in queues if queue.broker not in without]
        if not fit:
            return None
        if len(self._latency):
            fit = [queue for queue in fit if self._latency.available(queue.broker, now)] or fit
        if self._zone and zones:
            fit = [queue for queue in fit if zones.get(queue.broker) == self._zone] or fit
        return fit[self._turn % len(fit)]


def _of_priority(queues: Sequence[Target], priority: int) -> list[Target]:
    """On each broker the queue with this number, or its last one."""
    last: dict[str, int] = {}
    for queue in queues:
        last[queue.broker] = max(queue.queue_id, last.get(queue.broker, 0))
    return [queue for queue in queues if queue.queue_id == min(priority, last[queue.broker])]
