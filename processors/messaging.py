"""The entry point of all protocols into the domain: one method per operation.

Every method has the same five steps in the same order, written out in each of them: admit
(permission, rate) → check → route → ask the broker → observe. `with self._watch_…`
reports a request that fails in any of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any

from brokers.port import Broker
from popgate.clock import Clock, Timer
from popgate.context import Context
from popgate.errors import GatewayError
from popgate.kinds import Action
from popgate.messages.packed_messages import PackedMessages
from popgate.model import EndTransaction, GroupConfig, Message, Pulled, Route, Sent, StoredMessage
from popgate.naming import check_group, check_topic
from processors.admin.lookup import MessageLookup
from processors.admin.metadata import Metadata
from processors.admin.query_reports import QueryReports
from processors.admin.redrive import DeadLetters
from processors.admin.stuck import StuckGroups
from processors.budgets import Budgets
from processors.classic.classic import ClassicRequests
from processors.classic.queue_numbers import QueueNumbering
from processors.classic.relay import CommandRelay
from processors.classic.retry_reclaim import RetryReclaimer
from processors.clients.check_router import CheckRouter
from processors.clients.client_queries import ClientQueries
from processors.clients.client_registry import ClientHandle, ClientRegistry
from processors.clients.settings_push import SettingsPush
from processors.consume.arrivals import ArrivalNotices
from processors.consume.lite import LiteSubscriptions
from processors.consume.offsets import GroupOffsets
from processors.consume.pull import Puller
from processors.consume.receive import Receiver
from processors.consume.receive_rules import check_goodbye
from processors.consume.settlement import Settlement
from processors.core import ProcessorCore
from processors.deliveries.auto_renewal import AutoRenewal
from processors.limits import Limits
from processors.members.broadcast import BroadcastGroups
from processors.members.cluster_registration import ClusterRegistration
from processors.members.group_members import GroupMembers
from processors.members.mapped_groups import MappedGroups
from processors.members.mapping_rules import NamedGroups
from processors.members.queue_assignment import QueueAssignment
from processors.observer import DoorSums, NullObserver, Observer, Watch
from processors.policies.registry import Policies
from processors.produce.batch_forwarder import BatchForwarder
from processors.produce.handle_checks import check_end, check_recall
from processors.produce.send import Sender
from processors.requests import NOTHING_SAID, Assignments, Pull, Receive, Said

_SWEEP_S = 10.0


class MessagingProcessor:
    """The interface that all doors call; it serves one broker.

    Operations outside the path of a message belong to its parts: `metadata` (topics and groups), `offsets`,
    `lookup` (messages by id, key and place), `group_members`, `classic` (locks, retries sent back, replies),
    `stuck`.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        clock: Clock,
        limits: Limits | None = None,
        policies: Policies | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._limits = limits = limits if limits is not None else Limits()
        self._observer = observer = observer if observer is not None else NullObserver()
        self._policies = policies if policies is not None else Policies()
        core = ProcessorCore(broker, clock, limits, self._policies, observer)
        self._core = core
        self._admit, self._routing = core.admit, core.routing
        self.budgets = Budgets(
            process_bytes=limits.process_bytes,
            group_bytes=limits.group_bytes,
            connection_bytes=limits.connection_bytes,
        )
        self.clients = ClientRegistry(
            clock,
            max_clients=limits.max_clients,
            max_topics=limits.max_topics_per_client,
            expiry_s=limits.client_expiry_s,
        )
        self.broadcast_groups = BroadcastGroups(
            broker,
            self._routing,
            clock,
            expiry_s=limits.broadcast_expiry_s,
            max_members=limits.max_broadcast_members,
        )
        self.auto_renewal = AutoRenewal(broker, self.clients, clock, limits, observer)
        self.batches = BatchForwarder(broker, self._routing, clock, limits, observer, self._admit)
        self.check_router = CheckRouter(self.clients, observer, core.permit)
        self.client_queries = ClientQueries(broker, self.clients, clock, self._admit)
        self.group_members = GroupMembers(core, self.clients)
        self.queue_assignment = QueueAssignment(
            broker, self._routing, self._admit, self.group_members.sharers
        )
        self.arrival_notices = ArrivalNotices(broker, self._routing, clock, limits, self._admit)
        self.mapped_groups = MappedGroups(
            broker,
            self.clients,
            clock,
            NamedGroups(limits.mapped_groups, limits.pulled_groups),
            lambda group: self._routing.settings(group, make=False),
            self._admit,
        )
        self.retry_reclaimer = RetryReclaimer(broker, self.clients, clock, self.mapped_groups)
        self.command_relay = CommandRelay(broker, self._admit)
        self.queue_numbering = QueueNumbering(broker, clock, self._admit)
        self.classic = ClassicRequests(core)
        self.lite = LiteSubscriptions(broker, self._routing, self.clients, limits, self._admit, observer)
        self.dead_letters = DeadLetters(broker, self._admit, observer)
        self.query_reports = QueryReports(clock, self._admit)
        self.metadata = Metadata(core, self.broadcast_groups)
        self.lookup = MessageLookup(core)
        self.offsets = GroupOffsets(core, self.broadcast_groups, self.retry_reclaimer)
        self.stuck = StuckGroups(core, self.broadcast_groups, self.clients, self.auto_renewal)
        self._sender = Sender(core, self.clients)
        self._receiver = Receiver(core, self.broadcast_groups, self.clients, self.auto_renewal, self.lite)
        self._puller = Puller(core)
        self.settlement = Settlement(core, self.broadcast_groups, self.clients, self.auto_renewal)
        self._registration = ClusterRegistration(
            broker, self.clients, self.client_queries, self.mapped_groups
        )
        self._settings_push = SettingsPush(self.clients, clock)
        self.clients.on_leave = self._left
        self.metadata.topic_changed = self._settings_push.topic_changed
        self.metadata.group_changed = self._settings_push.group_changed
        self._sweep: Timer | None = None
        self.door_figures = DoorSums()
        self._watch_route = Watch(observer, "route")
        self._watch_recall = Watch(observer, "recall")
        self._watch_end = Watch(observer, "end_transaction")

    def __repr__(self) -> str:
        soft = f"{self.clients!r} {self.auto_renewal!r}"
        return f"<MessagingProcessor {self._broker.name} waiting {self._core.polls.count} {soft}>"

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def tells_deliveries(self) -> bool:
        """Whether the broker reports held messages: otherwise those figures are meaningless and not shown."""
        return self._broker.traits.tells_deliveries

    @property
    def broker_name(self) -> str:
        return self._broker.name

    async def start(self) -> None:
        """Start the processor. The caller has started the broker."""
        self._broker.on_check(self.check_router.ask)
        self._registration.start()
        self.mapped_groups.start()
        self.retry_reclaimer.start()
        self.group_members.start()
        self.classic.start()
        self.lite.start()
        self._arm_sweep()

    def drain(self) -> int:
        """Called before the doors end their streams: the clients are alive and keep what they hold.

        Tells them to reconnect, which leads elsewhere; returns how many were told, each counted once.
        """
        self.auto_renewal.releasing.drain()
        return self.client_queries.move_all()

    async def stop(self) -> None:
        """Wait for operations in progress. The caller stops the broker afterwards."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._settings_push.stop()
        await self.queue_numbering.stop()
        await self.retry_reclaimer.stop()
        await self.mapped_groups.stop()
        await self.auto_renewal.stop()
        await self.broadcast_groups.stop()
        await self.settlement.stop()

    def figures(self) -> dict[str, float]:
        """Gauges for the metrics: plain names, no labels, cheap to read."""
        return {
            **self.door_figures.figures(),
            "clients": len(self.clients),
            "waiting_receives": self._core.polls.count,
            **self.mapped_groups.figures(),
            **self.retry_reclaimer.figures(),
            "bytes_under_way": self.budgets.used,
            "known_holders": self.auto_renewal.holdings.holders,
            "known_routes": len(self._routing),
            "held_deliveries": self.auto_renewal.holdings.held,
            "longest_held_ms": self.auto_renewal.holdings.longest_held_ms(self.auto_renewal.now_ms()),
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
        """The settings of a consumer's group; the defaults if it does not exist and is not created."""
        with self._watch_route:
            self._admit(context, Action.SUBSCRIBE, group=check_group(group))
            return await self._routing.settings(group, make=make)

    # Those of every message hand on a coroutine: one of their own would be run for nothing.

    def send(
        self, context: Context, messages: Sequence[Message], *, system: bool = False
    ) -> Coroutine[Any, Any, list[Sent | GatewayError]]:
        """Store messages of one topic; one result each, in order.

        `system`: the topic may belong to the system, as that of classic clients' traces does.
        Raises the first fault of the first bad message (protocol facts 2.2), and then nothing is
        stored; TopicNotFound, Forbidden, and what the broker raises.
        """
        return self._sender.send(context, messages, system=system)

    def check_all(
        self, context: Context, messages: Sequence[Message], *, system: bool = False
    ) -> Coroutine[Any, Any, None]:
        """Raises what `send` would raise of messages that go in parts, before the first one goes."""
        return self._sender.check_all(context, messages, system=system)

    def takes_packed(self, count: int) -> bool:
        """Whether so many go to the broker as they are, packed: whoever chooses queues would unpack them."""
        return self._sender.takes_packed(count)

    @property
    def takes_blocks(self) -> bool:
        """Whether a message may come with its block of properties, and without what it was made of."""
        return self._sender.takes_blocks

    def send_packed(
        self, context: Context, packed: PackedMessages
    ) -> Coroutine[Any, Any, Sequence[Sent | GatewayError]]:
        """As `send`, of messages whose door has found that nothing is wrong with them."""
        return self._sender.send_packed(context, packed)

    def receive(self, context: Context, request: Receive) -> Coroutine[Any, Any, list[StoredMessage]]:
        """Take messages; empty when none came in time, a margin before the request's deadline.

        Cancelled, it holds nothing. What could not be handed to the client goes to `give_back`.
        Raises IllegalTopic, IllegalGroup, TopicNotFound, GroupNotFound, Forbidden, IllegalFilter,
        BadRequest (ILLEGAL_INVISIBLE_TIME, ILLEGAL_POLLING_TIME), TooManyRequests.
        """
        return self._receiver.receive(context, request)

    def pull(self, context: Context, request: Pull) -> Coroutine[Any, Any, Pulled]:
        return self._puller.pull(context, request)

    def ack(
        self,
        context: Context,
        topic: str,
        group: str,
        receipts: Sequence[str],
        *,
        said: Said = NOTHING_SAID,
    ) -> Coroutine[Any, Any, list[GatewayError | None]]:
        return self.settlement.ack(context, topic, group, receipts, said=said)

    async def change_invisible(
        self,
        context: Context,
        topic: str,
        group: str,
        receipt: str,
        invisible_ms: int,
        *,
        said: Said = NOTHING_SAID,
        suspend: bool = False,
    ) -> str:
        return await self.settlement.change_invisible(
            context, topic, group, receipt, invisible_ms, said=said, suspend=suspend
        )

    async def dead_letter(
        self, context: Context, topic: str, group: str, receipt: str, *, said: Said = NOTHING_SAID
    ) -> None:
        await self.settlement.dead_letter(context, topic, group, receipt, said=said)

    async def give_back(
        self,
        context: Context,
        topic: str,
        group: str,
        messages: Sequence[StoredMessage],
        written: Sequence[StoredMessage] = (),
    ) -> None:
        await self.settlement.give_back(context, topic, group, messages, written)

    async def not_taken(self, context: Context, topic: str, group: str, message: StoredMessage) -> None:
        """A message of a `receive` is one that its client cannot take: this attempt failed.

        It is hidden as the group's policy says, and becomes a dead letter when its attempts are used up.
        If it were returned, it would be redelivered at once, endlessly, and block others.
        Continues when its caller is cancelled. Failures are not reported: then it is redelivered when its
        invisible time expires.
        """
        task = asyncio.get_running_loop().create_task(self._not_taken(context, topic, group, message))
        self.settlement.finishes(task)
        await asyncio.shield(task)

    async def _not_taken(self, context: Context, topic: str, group: str, message: StoredMessage) -> None:
        with contextlib.suppress(GatewayError):
            config = await self._routing.settings(group)
            rest_ms = min(config.retry.delay_ms(max(message.attempt, 1)), self._limits.max_invisible_ms)
            await self.change_invisible(context, topic, group, message.receipt, rest_ms)

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
        """Commit or roll back, and report the outcome. Never retried by the gateway.

        `trace_context`: that of the end itself, as the producer sends it; the message keeps its own.
        Raises IllegalTopic, IllegalTransactionId, and what the broker raises.
        """
        began = self._clock.monotonic()
        with self._watch_end:
            if end.topic or end.place is None:
                self._admit(context, Action.PUBLISH, topic=check_topic(end.topic))
            check_end(end)
            await self._broker.end_transaction(context, end)
        self._observer.ended(end.topic, end.resolution, self._clock.monotonic() - began)

    def goodbye(self, context: Context, group: str = "") -> ClientHandle | None:
        """The client ends: remove it, and free what it held where that is safe. Returns it, if known.

        `group`: the group that it names. Raises IllegalGroup, and BadRequest if it is in another.
        """
        client_key = context.client_key
        handle = self.clients.get(client_key)
        check_goodbye(handle, group)
        if handle is not None:
            self.auto_renewal.seen(context)
            self.clients.unregister(client_key)
        else:
            self.lite.left(client_key, said_so=True)
        return handle

    def _left(self, handle: ClientHandle, said_so: bool) -> None:
        """A client announced its end, or its stream ended. The `ClientRegistry.on_leave` listener."""
        self.auto_renewal.releasing.left(handle, said_so)
        self.lite.left(handle.key, said_so=said_so)
        self._registration.left(handle)
        self.mapped_groups.left(handle.key, said_so=said_so)

    def _arm_sweep(self) -> None:
        self._sweep = self._clock.call_later(_SWEEP_S, self._swept)

    def _swept(self) -> None:
        self._arm_sweep()  # first: whatever fails below, the next one comes
        now = self._clock.monotonic()
        self.clients.expire(now)
        self._routing.expire(now)
        self.auto_renewal.holdings.sweep(self.clients.get)
        self.broadcast_groups.sweep_when_due()
