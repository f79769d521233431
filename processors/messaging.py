"""The one door to meaning: what every protocol asks for, in the words of the domain.

Every method is the same five steps in the same order, written down in each and hidden by no
chain: admit (permission, rate) → check → route → ask the broker → observe. `with self._watch_…`
reports a request that fails in any of them. What becomes of deliveries is in `processors.consume.settlement`,
topics, groups, positions and look-ups are in `processors.admin.metadata`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from brokers.port import Broker
from popgate.clock import Clock, Timer
from popgate.context import Context
from popgate.errors import Forbidden, GatewayError, GroupNotFound, IllegalFilter, NotFound, TopicNotFound
from popgate.kinds import Action
from popgate.lite import takes_lite_topics
from popgate.model import EndTransaction, GroupConfig, Message, MessageType, Queue, Route, Sent, StoredMessage
from popgate.naming import check_group, check_topic
from popgate.packed import PackedMessages
from processors.classic.classic import Classic
from processors.classic.retry_reclaim import Reclaiming
from processors.clients.check_router import Checking
from processors.clients.client_queries import Asking
from processors.clients.client_registry import ClientHandle
from processors.clients.settings_push import Announcing
from processors.consume.arrivals import Noticing
from processors.consume.lite import LiteSubscribing
from processors.consume.push import PushSession
from processors.consume.receive_rules import check_goodbye, pop_of, surely_held_until
from processors.limits import Limits
from processors.members.cluster_registration import Registering
from processors.members.mapped_groups import MappedGroups
from processors.members.mapping_rules import NamedGroups
from processors.members.queue_assignment import Assigning
from processors.observer import DoorSums, NullObserver, Observer, Watch
from processors.policies.picking import GroupsThenTurns
from processors.policies.registry import Policies
from processors.produce.batch_forwarder import BatchForwarder
from processors.produce.message_checks import check_count, check_message, finish_message, topic_of
from processors.produce.routing import check_queue, check_type, place
from processors.produce.transaction_checks import check_end, check_recall
from processors.requests import Assignments, Receive, Taken

_SWEEP_S = 10.0


class MessagingProcessor(Classic):
    """What doors call. Of one broker, and of as many doors as there are."""

    def __init__(
        self,
        broker: Broker,
        *,
        clock: Clock,
        limits: Limits | None = None,
        policies: Policies | None = None,
        observer: Observer | None = None,
    ) -> None:
        limits = limits if limits is not None else Limits()
        observer = observer if observer is not None else NullObserver()
        super().__init__(broker, clock, limits, policies if policies is not None else Policies(), observer)
        self.batches = BatchForwarder(broker, self._routing, clock, limits, observer, self._admit)
        self.checking = Checking(self.clients, observer)
        self.asking = Asking(broker, self.clients, clock, self._admit)
        self.assigning = Assigning(broker, self._routing, self._admit, self.consumers)
        self.noticing = Noticing(broker, self._routing, clock, limits, self._admit)
        self.mapping = MappedGroups(
            broker,
            self.clients,
            clock,
            NamedGroups(limits.mapped_groups, limits.pulled_groups),
            lambda group: self._routing.settings(group, make=False),
            self._admit,
        )
        self.reclaiming = Reclaiming(broker, self.clients, clock, self.mapping)
        self._registering = Registering(broker, self.clients, self.asking, self.mapping)
        self._announcing = Announcing(self.clients, clock)
        self.lite = LiteSubscribing(broker, self._routing, self.clients, limits, self._admit, observer)
        self.clients.on_leave = self._left
        self._topic_changed = self._announcing.topic_changed
        self._group_changed = self._announcing.group_changed
        self._sweep: Timer | None = None
        self.door_figures = DoorSums()
        self._watch_route = Watch(observer, "route")
        self._watch_receive = Watch(observer, "receive")
        self._watch_recall = Watch(observer, "recall")
        self._watch_end = Watch(observer, "end_transaction")

    def __repr__(self) -> str:
        soft = f"{self.clients!r} {self.renewing!r}"
        return f"<MessagingProcessor {self._broker.name} waiting {self._waiting} {soft}>"

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def broker_name(self) -> str:
        return self._broker.name

    async def start(self) -> None:
        """The broker has been started by whoever opened it."""
        self._broker.on_check(self.checking.ask)
        self._registering.start()
        self.mapping.start()
        self.reclaiming.start()
        if self._tells_consumers is not None:
            self._tells_consumers.on_members(self.clients.members_changed)
        if self._carries_replies is not None:
            self._carries_replies.on_reply(self.hand_reply)
        self.lite.start()
        self._arm_sweep()

    def drain(self) -> int:
        """Told before the doors end their streams: the clients are alive and take along what they hold.

        They are told to connect anew, which is elsewhere; how many were, each counted once.
        """
        self.renewing.releasing.drain()
        return self.asking.move_all()

    async def stop(self) -> None:
        """Let what is under way end. The broker is stopped afterwards, by whoever opened it."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._announcing.stop()
        await self.numbering.stop()
        await self.reclaiming.stop()
        await self.mapping.stop()
        await self.renewing.stop()
        await self.broadcasting.stop()
        while under_way := {*self._returns, *self._finishing}:
            await asyncio.wait(under_way)

    def figures(self) -> dict[str, float]:
        """Gauges for the metrics: plain names, no labels, cheap to read."""
        return {
            **self.door_figures.figures(),
            "clients": len(self.clients),
            "waiting_receives": self._waiting,
            **self.mapping.figures(),
            **self.reclaiming.figures(),
            "bytes_under_way": self.budgets.used,
            "known_holders": self.renewing.holdings.holders,
            "known_routes": len(self._routing),
            "held_deliveries": self.renewing.holdings.held,
            "longest_held_ms": self.renewing.holdings.longest_held_ms(self.renewing.now_ms()),
        }

    async def route(self, context: Context, topic: str) -> Route:
        """The topic's queues and types; made on first use. Raises IllegalTopic, TopicNotFound."""
        with self._watch_route:
            self._admit(context, Action.GET, topic=check_topic(topic))
            return (await self._routing.route(topic)).route

    async def assignments(self, context: Context, topic: str, group: str) -> Assignments:
        """What a consumer may receive from. Raises as `route`, and IllegalGroup, GroupNotFound, Forbidden."""
        with self._watch_route:
            self._admit(context, Action.SUBSCRIBE, topic=check_topic(topic), group=check_group(group))
            to = await self._routing.route(topic)
            return self._routing.assign(to, await self._routing.group(group))

    async def settings(self, context: Context, group: str, *, make: bool = True) -> GroupConfig:
        """What a consumer is told about its group; the defaults where it is not there and not made."""
        with self._watch_route:
            self._admit(context, Action.SUBSCRIBE, group=check_group(group))
            return await self._routing.settings(group, make=make)

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
            self._admit(context, Action.PUBLISH, topic=topic, amount=len(messages))
            now_ms = clock.now_ms()
            max_delay_ms = min(limits.max_delay_ms, self._broker.traits.max_delay_ms)
            try:
                for message in messages:
                    check_message(message, limits, now_ms=now_ms, max_delay_ms=max_delay_ms)
            except GatewayError as error:
                limits = await self._routing.for_tombstones(topic, limits, error)
                for message in messages:
                    check_message(message, limits, now_ms=now_ms, max_delay_ms=max_delay_ms)
            route = await self._routing.route(topic, system=system)
            place(messages, route, self._pick(), began, check_types=limits.check_message_types)
            size = 0
            for message in messages:
                finish_message(message)
                size += len(message.body)
                if message.type is MessageType.TRANSACTION:
                    self.clients.produces(context.client_id, topic)
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

    def takes_packed(self, count: int) -> bool:
        """Whether so many go to the broker as they are, packed: whoever chooses queues would unpack them."""
        return self._pick() is None or (
            count > 1 and self._broker.traits.stores_packed and type(self._policies.queues) is GroupsThenTurns
        )

    async def send_packed(self, context: Context, packed: PackedMessages) -> list[Sent | GatewayError]:
        """As `send`, of messages whose door has found that nothing is wrong with them."""
        clock, limits = self._clock, self._limits
        began = clock.monotonic()
        try:
            topic, count = check_topic(packed.topic), len(packed.message_ids)
            check_count(count, limits)
            self._admit(context, Action.PUBLISH, topic=topic, amount=count)
            route = await self._routing.route(topic)
            if limits.check_message_types:
                check_type(MessageType.NORMAL, route.route)
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
        for result in results:
            if isinstance(result, GatewayError):
                stored -= 1
                self._observer.failed("send", result.fault)
        self._observer.sent(topic, stored, size, self._clock.monotonic() - began)

    def _pick(self) -> Callable[[Message, Sequence[Queue], float], Queue] | None:
        """Who chooses queues; None: the broker, where it knows more than the house's own policy."""
        queues = self._policies.queues
        if self._broker.traits.chooses_queues and type(queues) is GroupsThenTurns:
            return None
        return queues.pick

    async def receive(self, context: Context, request: Receive) -> list[StoredMessage]:
        """Take messages; empty when none came in time, a margin before the request's deadline.

        Cancelled, it holds nothing. What could not be handed to the client goes to `give_back`.
        Raises IllegalTopic, IllegalGroup, TopicNotFound, GroupNotFound, Forbidden, IllegalFilter,
        BadRequest (ILLEGAL_INVISIBLE_TIME, ILLEGAL_POLLING_TIME), TooManyRequests.
        """
        return (await self._receive(context, request)).messages

    async def _receive(self, context: Context, request: Receive) -> Taken:
        began = self._clock.monotonic()
        with self._watch_receive:
            topic, group = check_topic(request.topic), check_group(request.group)
            self._admit(context, Action.SUBSCRIBE, topic=topic, group=group)
            config = await self._routing.group(group)
            pop = pop_of(context, request, config, self._limits, began)
            readable = (await self._routing.route(topic)).readable
            if not readable:
                raise Forbidden(f"topic {topic} has no readable queue", "no readable queue")
            lite = takes_lite_topics(config, topic)
            if lite and not pop.filter.everything:
                raise IllegalFilter(pop.filter.expression, "lite topics are received whole")
            if config.broadcast:
                pop.group = await self.broadcasting.join(context, config)
            if pop.broker and pop.queue_id < 0 and not any(q.broker == pop.broker for q in readable):
                # An older route of the client may name a broker that is gone (protocol facts 1.5, 7).
                pop.broker = ""
            if context.allowance is not None:
                context.allowance.for_group(group)
                pop.max_bytes = min(pop.max_bytes, context.allowance.room())
            self._check_waiting()
            self._waiting += 1
            if request.auto_renew:
                self.clients.polling(context.client_id)
                self.renewing.releasing.came_back(context.client_id)
            asked = self._clock.monotonic()
            try:
                if lite:
                    messages = await self.lite.topics.pop_lite(context, pop)
                else:
                    messages = await self._broker.pop(context, pop)
            except NotFound as error:
                # Deleted elsewhere: the next request finds out, or makes them anew.
                self._routing.forget_topic(topic)
                self._routing.forget_group(group)
                self.broadcasting.left(pop.group)
                if isinstance(error, GroupNotFound) and pop.group != group:
                    raise GroupNotFound(group) from error
                raise
            finally:
                self._waiting -= 1
                if request.auto_renew:
                    self.clients.polled(context.client_id)
        # From here on nothing waits: a receive that is cancelled is cancelled inside the pop.
        answered = self._clock.monotonic()
        until = surely_held_until(asked, answered, pop.invisible_ms)
        if messages and request.auto_renew:
            self.renewing.delivered(
                context,
                topic,
                pop.group,
                messages,
                ordered=pop.ordered,
                hold_ms=pop.invisible_ms,
                until=until,
            )
        size = sum([len(message.body) for message in messages])
        self._observer.received(topic, group, len(messages), size, answered - began)
        return Taken(messages, until)

    async def recall(self, context: Context, topic: str, recall_handle: str) -> str:
        """Take back a delayed message; its id. Raises BadRequest, MessageTypeMismatch, NotFound."""
        with self._watch_recall:
            self._admit(context, Action.PUBLISH, topic=check_topic(topic))
            route = (await self._routing.route(topic)).route
            check_recall(recall_handle, route, check_types=self._limits.check_message_types)
            message_id = await self._broker.recall(context, topic, recall_handle)
        self._observer.recalled(topic)
        return message_id

    async def end_transaction(
        self, context: Context, end: EndTransaction, *, trace_context: str = ""
    ) -> None:
        """Commit or roll back, and tell the truth about it. Never tried again by the gateway.

        `trace_context`: of the end itself, as the producer tells it; the message keeps its own.
        Raises IllegalTopic, IllegalTransactionId, and what the broker raises.
        """
        began = self._clock.monotonic()
        with self._watch_end:
            if end.topic or end.place is None:
                self._admit(context, Action.PUBLISH, topic=check_topic(end.topic))
            check_end(end)
            await self._broker.end_transaction(context, end)
        self._observer.ended(end.topic, end.resolution, self._clock.monotonic() - began)

    def push(self, context: Context, request: Receive, *, window: int) -> PushSession:
        """A pop loop with a window, for doors that hand out messages unasked. Its owner stops it."""
        forever = replace(context, deadline=None, allowance=None)
        return PushSession(
            request,
            window=window,
            receive=lambda turn: self._receive(forever, turn),
            give_back=lambda rest: self.give_back(forever, request.topic, request.group, rest),
            backoff=self._policies.backoff,
            clock=self._clock,
        )

    def goodbye(self, context: Context, group: str = "") -> ClientHandle | None:
        """The client ends: forget it, and free what it held where that is safe. What it was, if known.

        `group`: of which it says it is. Raises IllegalGroup, and BadRequest for one that it is not known of.
        """
        handle = self.clients.get(context.client_id)
        check_goodbye(handle, group)
        if handle is not None:
            self.renewing.seen(context)
            self.clients.unregister(context.client_id)
        else:
            self.lite.left(context.client_id, said_so=True)
        return handle

    def _left(self, handle: ClientHandle, said_so: bool) -> None:
        """A client said good-bye, or its stream ended. The `Clients.on_leave` listener."""
        self.renewing.releasing.left(handle, said_so)
        self.lite.left(handle.client_id, said_so=said_so)
        self._registering.left(handle)
        self.mapping.left(handle.key, said_so=said_so)

    def _arm_sweep(self) -> None:
        self._sweep = self._clock.call_later(_SWEEP_S, self._swept)

    def _swept(self) -> None:
        self._arm_sweep()  # first: whatever fails below, the next one comes
        now = self._clock.monotonic()
        self.clients.expire(now)
        self._routing.expire(now)
        self.renewing.holdings.sweep(self.clients.get)
        self.broadcasting.sweep_when_due()
