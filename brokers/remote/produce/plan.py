"""Assigns the messages of a send to queues and requests, before any request is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brokers.remote.access.cluster_access import ClusterAccess
from brokers.remote.clients.registration import ClientRegistration
from brokers.remote.produce.batches import is_held_back
from brokers.remote.produce.queue_selector import Target, writable_queues, zones_of
from brokers.remote.produce.send_request import complete
from brokers.remote.traits import TRAITS
from brokers.remote.transactions.ids import half_properties, producer_group_of
from popgate.errors import (
    BadRequest,
    BrokerUnavailable,
    DelayTooLong,
    Forbidden,
    GatewayError,
    Unsupported,
    shown,
)
from popgate.model import Message, MessageType, Sent
from popgate.wire.bodies.routes import TopicRoute

_MOST_TOPICS = 4_096


@dataclass(slots=True, frozen=True)
class Places:
    """Where a topic can be written to, worked out once for each route."""

    route: TopicRoute
    queues: tuple[Target, ...]
    zones: dict[str, str]


class Unit:
    """Messages for one queue, by their places in the call.

    `pinned`: the queue that the caller names. `chosen`: the queue of the previous ones, if available.
    """

    __slots__ = ("at", "chosen", "messages", "pinned")

    def __init__(self, pinned: Target | None) -> None:
        self.pinned = pinned
        self.chosen: Target | None = None
        self.messages: list[Message] = []
        self.at: list[int] = []

    @property
    def bound(self) -> bool:
        """Whether it may go nowhere else."""
        return self.pinned is not None or any(message.message_group for message in self.messages[:1])


class SendPlanner:
    """The half of sending that asks no broker."""

    def __init__(self, access: ClusterAccess, registration: ClientRegistration) -> None:
        self._clock = access.clock
        self._settings = access.settings
        self._routes = access.routes
        self._registration = registration
        self._places: dict[str, Places] = {}

    async def places_of(self, topic: str, *, anew: bool = False) -> Places:
        """Raises TopicNotFound, Forbidden (nothing to write to), BrokerUnavailable."""
        route = None if anew else self._routes.kept(topic)
        if route is None:
            route = await (self._routes.now(topic) if anew else self._routes.of(topic))
        places = self._places.get(topic)
        if places is None or places.route is not route:
            if len(self._places) >= _MOST_TOPICS:
                self._places.clear()
            places = self._places[topic] = Places(route, writable_queues(topic, route), zones_of(route))
        if not places.queues:
            if any(queues.writable and queues.write_queues for queues in route.queues):
                raise BrokerUnavailable(f"no broker of topic {topic} has a master that takes messages now")
            raise Forbidden(f"topic {topic} is not writable")
        return places

    def units(
        self,
        topic: str,
        messages: Sequence[Message],
        places: Places,
        results: list[Sent | GatewayError | None],
    ) -> list[Unit]:
        """Who goes where, and with whom. What cannot go anywhere gets its result."""
        units: dict[object, Unit] = {}
        now_ms = self._clock.now_ms()
        plain = None  # the unit of those that nothing is said of, which are nearly all
        for at, message in enumerate(messages):
            nothing_said = (
                message.type is MessageType.NORMAL
                and message.queue_id < 0
                and message.priority is None
                and not (message.message_group or message.deliver_at_ms or message.lite_topic)
                and message.topic == topic
            )
            if nothing_said and plain is not None:
                try:
                    complete(message)
                except GatewayError as error:
                    results[at] = error
                else:
                    plain.messages.append(message)
                    plain.at.append(at)
                continue
            try:
                pinned = self._prepared(topic, message, places, now_ms)
            except GatewayError as error:
                results[at] = error
                continue
            key: object
            if is_held_back(message):
                key = at
            elif pinned is not None:
                key = pinned
            elif message.message_group:
                key = message.message_group
            else:
                key = message.priority
            unit = units.get(key)
            if unit is None:
                unit = units[key] = Unit(pinned)
            unit.messages.append(message)
            unit.at.append(at)
            if nothing_said:
                plain = unit
        return list(units.values())

    def _prepared(self, topic: str, message: Message, places: Places, now_ms: int) -> Target | None:
        """Make a message ready; the queue that it names.

        Raises BadRequest, PropertiesTooLarge, DelayTooLong, Unsupported.
        """
        if message.topic != topic:
            raise BadRequest(f"messages for {topic} and other topics cannot be sent together")
        if message.lite_topic:
            raise Unsupported("a lite topic in a RocketMQ cluster, from which this gateway delivers none")
        delay_ms, longest_ms = message.deliver_at_ms - now_ms, TRAITS.max_delay_ms
        if delay_ms > longest_ms:
            raise DelayTooLong(delay_ms, longest_ms)
        complete(message)
        if message.type is MessageType.TRANSACTION:
            message.properties = half_properties(message, self._settings.transaction_check_after_s)
            self._registration.registry.expect_checks(topic, producer_group_of(message))
        if message.queue_id < 0:
            return None
        return writable_queue(topic, places, message.broker, message.queue_id)


def writable_queue(topic: str, places: Places, broker: str, queue_id: int) -> Target:
    """The queue that a caller names; an empty `broker` is any. Raises BadRequest."""
    for target in places.queues:
        if target.queue_id == queue_id and (broker in ("", target.broker) or places.route.mappings):
            return target
    where = f" at broker {shown(broker)}" if broker else ""
    raise BadRequest(f"topic {topic} has no writable queue {queue_id}{where}")
