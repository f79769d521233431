"""Stores messages: limits, type, queue, then the broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from popgate.context import Context
from popgate.errors import GatewayError, TopicNotFound
from popgate.kinds import Action
from popgate.messages.compaction_key import check_compactable
from popgate.messages.packed_messages import PackedMessages, SentTogether
from popgate.model import Message, MessageType, Queue, Sent
from popgate.naming import check_topic
from processors.clients.client_registry import ClientRegistry
from processors.core import ProcessorCore
from processors.policies.queue_selector import GroupsThenTurns
from processors.produce.message_checks import check_count, check_message, finish_message, topic_of
from processors.routing import check_queue, check_type, place


class Sender:
    """The processor's `send`, `check_all` and `send_packed`."""

    def __init__(self, core: ProcessorCore, clients: ClientRegistry) -> None:
        self._broker = core.broker
        self._clock = core.clock
        self._limits = core.limits
        self._policies = core.policies
        self._observer = core.observer
        self._admit, self._admits_all = core.admit, core.admits_all
        self._permit = core.permit
        self._routing = core.routing
        self._clients = clients

    async def send(
        self, context: Context, messages: Sequence[Message], *, system: bool = False
    ) -> list[Sent | GatewayError]:
        """Store messages of one topic; one result each, in order.

        `system`: the topic may belong to the system, as that of classic clients' traces does.
        Raises the first fault of the first bad message (protocol facts 2.2), and then nothing is
        stored; TopicNotFound, Forbidden, and what the broker raises.
        """
        clock, limits = self._clock, self._limits
        began = clock.monotonic()
        try:
            topic = topic_of(messages, limits, system=system)
            if not self._admits_all:
                self._admit(context, Action.PUBLISH, topic=topic, amount=len(messages))
            now_ms = clock.now_ms()
            max_delay_ms = min(limits.max_delay_ms, self._broker.traits.max_delay_ms)
            refusal: GatewayError | None = None
            try:
                for message in messages:
                    check_message(message, limits, now_ms=now_ms, max_delay_ms=max_delay_ms)
            except GatewayError as error:
                refusal = error
            if refusal is not None:
                limits = await self._routing.for_tombstones(topic, limits, refusal)
                for message in messages:
                    check_message(message, limits, now_ms=now_ms, max_delay_ms=max_delay_ms)
            route = await self._routing.route(topic, system=system)
            place(messages, route, self._pick(), began, check_types=limits.check_message_types)
            size, tombstones = 0, route.route.tombstones
            for message in messages:
                finish_message(message)
                if tombstones:
                    check_compactable(topic, message.properties, message.lite_topic)
                size += len(message.body)
                if message.type is MessageType.TRANSACTION:
                    self._clients.produces(context.client_key, topic)
            try:
                results = await self._broker.send(context, messages)
            except TopicNotFound:
                self._routing.forget_topic(topic)
                raise
        except GatewayError as error:  # as `Watch` does it, without its calls
            self._observer.failed("send", error.fault)
            raise
        self._sent(topic, results, size, began)
        return results

    async def check_all(self, context: Context, messages: Sequence[Message], *, system: bool = False) -> None:
        """Look at messages of one topic that are sent in parts, as `send` does it with each part.

        Raises as it: of those that are refused no part is to be stored.
        """
        topic, limits, now_ms = messages[0].topic, self._limits, self._clock.now_ms()
        max_delay_ms = min(limits.max_delay_ms, self._broker.traits.max_delay_ms)
        try:
            self._permit(context, Action.PUBLISH, topic=topic)
            route = (await self._routing.route(topic, system=system)).route
            if route.tombstones:
                limits = replace(limits, refuse_empty_bodies=False)
            for message in messages:
                check_message(message, limits, now_ms=now_ms, max_delay_ms=max_delay_ms)
                if limits.check_message_types:
                    check_type(message.type, route)
                if route.tombstones:
                    check_compactable(topic, message.properties, message.lite_topic)
        except GatewayError as error:
            self._observer.failed("send", error.fault)
            raise

    def takes_packed(self, count: int) -> bool:
        """Whether so many go to the broker as they are, packed: whoever chooses queues would unpack them."""
        return self._pick() is None or (
            count > 1 and self._broker.traits.stores_packed and type(self._policies.queues) is GroupsThenTurns
        )

    @property
    def takes_blocks(self) -> bool:
        """Whether no policy of others looks at what a message says of itself."""
        return type(self._policies.queues) is GroupsThenTurns

    async def send_packed(self, context: Context, packed: PackedMessages) -> Sequence[Sent | GatewayError]:
        """As `send`, of messages whose door has found that nothing is wrong with them."""
        clock, limits = self._clock, self._limits
        began = clock.monotonic()
        try:
            topic, count = check_topic(packed.topic), len(packed.message_ids)
            check_count(count, limits)
            if not self._admits_all:
                self._admit(context, Action.PUBLISH, topic=topic, amount=count)
            route = await self._routing.route(topic)
            if limits.check_message_types:
                check_type(MessageType.NORMAL, route.route)
            if route.route.tombstones:
                for block in packed.properties:
                    check_compactable(topic, block, "")
            if packed.queue_id >= 0:
                check_queue(packed.broker, packed.queue_id, topic, route.writable)
            try:
                results = await self._broker.send_packed(context, packed)
            except TopicNotFound:
                self._routing.forget_topic(topic)
                raise
        except GatewayError as error:
            self._observer.failed("send", error.fault)
            raise
        self._sent(topic, results, packed.body_bytes, began)
        return results

    def _sent(self, topic: str, results: Sequence[Sent | GatewayError], size: int, began: float) -> None:
        stored = len(results)
        if not isinstance(results, SentTogether):
            for result in results:
                if isinstance(result, GatewayError):
                    stored -= 1
                    self._observer.failed("send", result.fault)
        self._observer.sent(topic, stored, size, self._clock.monotonic() - began)

    def _pick(self) -> Callable[[Message, Sequence[Queue], float], Queue] | None:
        """Chooses queues; None: the broker does, because it knows more than the gateway's own policy."""
        queues = self._policies.queues
        if self._broker.traits.chooses_queues and type(queues) is GroupsThenTurns:
            return None
        return queues.pick
