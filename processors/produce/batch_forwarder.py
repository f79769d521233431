"""A producer's batch, forwarded to its broker in one piece."""

from __future__ import annotations

from collections.abc import Callable

from brokers.batches import Batch, ForwardsBatches, StoredBatch
from brokers.port import Broker
from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import GatewayError, TopicNotFound, Unsupported
from popgate.kinds import Action
from popgate.model import MessageType
from popgate.naming import check_topic
from processors.limits import Limits
from processors.observer import Observer
from processors.produce.message_checks import check_count
from processors.routing import Routing, check_type


class BatchForwarder:
    """What the processor's `send` does, for a batch that a door has checked."""

    def __init__(
        self,
        broker: Broker | None,
        routing: Routing,
        clock: Clock,
        limits: Limits,
        observer: Observer,
        admit: Callable[..., None],
    ) -> None:
        """`broker` None: batches are never forwarded."""
        self._broker = broker.capability(ForwardsBatches) if broker is not None else None
        self._routing = routing
        self._clock = clock
        self._limits = limits
        self._observer = observer
        self._admit = admit

    @property
    def supported(self) -> bool:
        """Whether the broker takes batches in one piece."""
        return self._broker is not None

    async def forward(self, context: Context, batch: Batch) -> StoredBatch:
        """Store all of a batch, or nothing. Raises as `MessagingProcessor.send`, and Unsupported."""
        clock, limits = self._clock, self._limits
        if self._broker is None:
            raise Unsupported("a batch in one piece at this broker")
        began = clock.monotonic()
        try:
            topic = check_topic(batch.topic)
            check_count(batch.count, limits)
            self._admit(context, Action.PUBLISH, topic=topic, amount=batch.count)
            route = await self._routing.route(topic)
            if limits.check_message_types:
                check_type(MessageType.NORMAL, route.route)
            try:
                stored = await self._broker.forward_batch(context, batch)
            except TopicNotFound:
                self._routing.forget_topic(topic)
                raise
        except GatewayError as error:
            self._observer.failed("send", error.fault)
            raise
        self._observer.sent(topic, batch.count, batch.body_bytes, clock.monotonic() - began)
        return stored
