"""The one door to meaning: what every protocol asks for, in the words of the domain.

Every method is the same five steps in the same order, written down in each and hidden by no
chain: admit (permission, rate) → check → route → ask the broker → observe. `with self._watch_…`
reports a request that fails in any of them. What becomes of deliveries is in `processors.settling`,
topics, groups, positions and look-ups are in `processors.directing`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from brokers.port import Broker
from popgate.clock import Clock, Timer
from popgate.context import Context
from popgate.errors import (
    Forbidden,
    GatewayError,
    GroupNotFound,
    IllegalFilter,
    NotFound,
    TopicNotFound,
)
from popgate.kinds import Action
from popgate.lite import takes_lite_topics
from popgate.model import EndTransaction, GroupConfig, Message, MessageType, Queue, Route, Sent, StoredMessage
from popgate.naming import check_group, check_topic
from processors.announcing import Announcing
from processors.asking import Asking
from processors.checking import Checking
from processors.clients import ClientHandle
from processors.consuming import pop_of, surely_held_until
from processors.explaining import Explaining
from processors.limits import Limits
from processors.lite import LiteSubscribing
from processors.observing import NullObserver, Observer, Watch
from processors.policies.picking import GroupsThenTurns
from processors.policies.registry import Policies
from processors.producing import check_message, finish_message, topic_of
from processors.pushing import PushSession
from processors.registering import Registering
from processors.requests import Assignments, Receive, Taken
from processors.routing import place
from processors.transacting import check_end, check_recall

_SWEEP_S = 10.0


class MessagingProcessor(Explaining):
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
        self.checking = Checking(self.clients, observer)
        self.asking = Asking(broker, self.clients, clock, self._admit)
        self._registering = Registering(broker, self.clients, self.asking)
        self._announcing = Announcing(self.clients, clock)
        self.lite = LiteSubscribing(broker, self._routing, self.clients, limits, self._admit, observer)
        self.clients.on_leave = self._left
        self._topic_changed = self._announcing.topic_changed
        self._group_changed = self._announcing.group_changed
        self._sweep: Timer | None = None
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
        self.lite.start()
        self._arm_sweep()

    def drain(self) -> int:
        """Told before the doors end their streams: the clients are alive and take along what they hold.

        They are told to connect anew, which is elsewhere; how many were.
        """
        self.renewing.releasing.drain()
        return sum([client.reconnect() for client in self.clients.all() if client.alive])

    async def stop(self) -> None:
        """Let what is under way end. The broker is stopped afterwards, by whoever opened it."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._announcing.stop()
        await self.renewing.stop()
        await self.broadcasting.stop()
        while self._returns:
            await asyncio.wait(self._returns)

    def figures(self) -> dict[str, float]:
        """Gauges for the metrics: plain names, no labels, cheap to read."""
        return {
            "clients": len(self.clients),
            "waiting_receives": self._waiting,
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

    async def send(self, context: Context, messages: Sequence[Message]) -> list[Sent | GatewayError]:
        """Store messages of one topic; one result each, in order.

        Raises the first fault of the first bad message (protocol facts 2.2), and then nothing is
        stored; TopicNotFound, Forbidden, and what the broker raises.
        """
        clock, limits = self._clock, self._limits
        began = clock.monotonic()
        try:
            topic = topic_of(messages, limits)
            self._admit(context, Action.PUBLISH, topic=topic, amount=len(messages))
            now_ms = clock.now_ms()
            max_delay_ms = min(limits.max_delay_ms, self._broker.traits.max_delay_ms)
            for message in messages:
                check_message(message, limits, now_ms=now_ms, max_delay_ms=max_delay_ms)
            route = await self._routing.route(topic)
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
        stored = len(results)
        for result in results:
            if isinstance(result, GatewayError):
                stored -= 1
                self._observer.failed("send", result.fault)
        self._observer.sent(topic, stored, size, clock.monotonic() - began)
        return results

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
                raise Forbidden(f"topic {topic} has no readable queue")
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
                context, topic, pop.group, messages, hold_ms=pop.invisible_ms, until=until
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

    async def end_transaction(self, context: Context, end: EndTransaction) -> None:
        """Commit or roll back, and tell the truth about it. Never tried again by the gateway.

        Raises IllegalTopic, IllegalTransactionId, and what the broker raises.
        """
        began = self._clock.monotonic()
        with self._watch_end:
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

    def goodbye(self, context: Context) -> ClientHandle | None:
        """The client ends: forget it, and free what it held where that is safe. What it was, if known."""
        handle = self.clients.get(context.client_id)
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

    def _arm_sweep(self) -> None:
        self._sweep = self._clock.call_later(_SWEEP_S, self._swept)

    def _swept(self) -> None:
        self._arm_sweep()  # first: whatever fails below, the next one comes
        now = self._clock.monotonic()
        self.clients.expire(now)
        self._routing.expire(now)
        self.renewing.holdings.sweep(self.clients.get)
        self.broadcasting.sweep_when_due()
