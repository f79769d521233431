"""What a producer sends, forwarded to its broker: a batch in one piece, or one message."""

from __future__ import annotations

from collections.abc import Callable

from brokers.batches import Batch, ForwardsBatches, Single, StoredBatch
from brokers.port import Broker
from popgate.clock import Clock
from popgate.context import Context
from popgate.errors import GatewayError, TopicNotFound, Unsupported
from popgate.kinds import Action
from popgate.model import MessageType, Sent
from popgate.naming import check_topic
from processors.limits import Limits
from processors.observer import Observer
from processors.produce.message_checks import check_count
from processors.routing import Routing, check_queue, check_type


class BatchForwarder:
    """What the processor's `send` does, for what a door has checked."""

    def __init__(
        self,
        broker: Broker | None,
        routing: Routing,
        clock: Clock,
        limits: Limits,
        observer: Observer,
        admit: Callable[..., None],
    ) -> None:
        """`broker` None: nothing is ever forwarded."""
        self._broker = broker.capability(ForwardsBatches) if broker is not None else None
        self._routing = routing
        self._clock = clock
        self._limits = limits
        self._observer = observer
        self._admit = admit

    @property
    def supported(self) -> bool:
        """Whether the broker takes batches in one piece, and messages as they came."""
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
            route = self._routing.kept_route(topic, began) or await self._routing.route(topic)
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

    async def forward_message(self, context: Context, message: Single) -> Sent:
        """Store one message. Raises as `MessagingProcessor.send`, and Unsupported."""
        clock = self._clock
        if self._broker is None:
            raise Unsupported("a message as it came at this broker")
        began = clock.monotonic()
        try:
            topic = check_topic(message.topic)
            self._admit(context, Action.PUBLISH, topic=topic)
            route = self._routing.kept_route(topic, began) or await self._routing.route(topic)
            if self._limits.check_message_types:
                check_type(MessageType.NORMAL, route.route)
            check_queue(message.broker, message.queue_id, topic, route.writable)
            try:
                stored = await self._broker.forward_message(context, message)
            except TopicNotFound:
                self._routing.forget_topic(topic)
                raise
        except GatewayError as error:
            self._observer.failed("send", error.fault)
            raise
        self._observer.sent(topic, 1, len(message.body), clock.monotonic() - began)
        return stored
