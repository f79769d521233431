"""The queues of a topic, as the domain sees them, and the broker to ask about each.

Queues of a static topic have numbers that do not depend on their current leader: the number alone identifies
the queue, and the broker that a caller names may have led it before a remap. Brokers
translate numbers and offsets themselves. Source: protocol facts 6.2, 6.3 and 6.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from popgate.errors import BadRequest, PeerWireError, shown
from popgate.model import Permission, Queue
from popgate.wire.bodies.routes import BrokerData, QueueData, TopicRoute
from popgate.wire.bodies.static_topics import leaders


class Place(NamedTuple):
    """A queue as its broker knows it; `static` when the number is that of a logic queue."""

    topic: str
    broker: str
    queue_id: int
    permission: Permission
    static: bool = False


def places_of(topic: str, route: TopicRoute) -> list[Place]:
    """All queues of a topic, by broker and number; those of brokers without any address are left out.

    Written to is a queue whose broker has a master, read one whose broker has a slave at least.
    """
    brokers = {broker.name: broker for broker in route.brokers if broker.addresses}
    if route.mappings:
        by_broker = {data.broker: data for data in route.queues}
        return [
            Place(topic, led.broker, logic, _allowed(by_broker[led.broker], brokers[led.broker]), True)
            for logic, led in sorted(leaders(route.mappings.values()).items())
            if led.broker in brokers and led.broker in by_broker
        ]
    ordered = _order_queues(route)
    places = []
    for data in sorted(route.queues, key=lambda queues: queues.broker):
        broker = brokers.get(data.broker)
        if broker is None:
            continue
        allowed = _allowed(data, broker)
        writable = data.write_queues if ordered is None else ordered.get(data.broker, 0)
        for queue_id in range(max(data.read_queues, data.write_queues)):
            here = Permission.NONE
            if queue_id < data.read_queues:
                here |= allowed & Permission.READ
            if queue_id < writable:
                here |= allowed & Permission.WRITE
            places.append(Place(topic, data.broker, queue_id, here))
    return places


def queues_of(topic: str, route: TopicRoute) -> tuple[Queue, ...]:
    """The queues as the domain has them."""
    return tuple(Queue(place.broker, place.queue_id, place.permission) for place in places_of(topic, route))


def place_of(topic: str, route: TopicRoute, broker: str, queue_id: int) -> Place:
    """One queue; an empty `broker` will do where there is only one. Raises BadRequest: no such queue."""
    if route.mappings:
        led = leaders(route.mappings.values()).get(queue_id)
        data = None if led is None else route.broker(led.broker)
        if led is not None and data is not None and data.addresses:
            queues = next((entry for entry in route.queues if entry.broker == led.broker), None)
            allowed = Permission.NONE if queues is None else _allowed(queues, data)
            return Place(topic, led.broker, queue_id, allowed, True)
        raise _no_queue(topic, broker, queue_id)
    for data_here in route.queues:
        if data_here.broker != broker and (broker or len(route.queues) > 1):
            continue
        owner = route.broker(data_here.broker)
        if owner is None or not 0 <= queue_id < max(data_here.read_queues, data_here.write_queues):
            break
        allowed = _allowed(data_here, owner)
        if queue_id >= data_here.read_queues:
            allowed &= ~Permission.READ
        return Place(topic, owner.name, queue_id, allowed)
    raise _no_queue(topic, broker, queue_id)


def _allowed(queues: QueueData, broker: BrokerData) -> Permission:
    allowed = Permission.READ if queues.readable else Permission.NONE
    if queues.writable and broker.master is not None:
        allowed |= Permission.WRITE
    return allowed


def _order_queues(route: TopicRoute) -> Mapping[str, int] | None:
    if not route.order_conf:
        return None
    try:
        return route.order_queues()
    except PeerWireError:
        return None  # an operator's text: better the queues that there are than none


def _no_queue(topic: str, broker: str, queue_id: int) -> BadRequest:
    where = f" at broker {shown(broker)}" if broker else ""
    return BadRequest(f"topic {topic} has no queue {queue_id}{where}")
