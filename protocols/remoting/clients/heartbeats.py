"""Identifies classic clients: heartbeats of both versions, unregistration, and checks of filters.

A client sends all its groups every 30 s, once for each broker name of its routes, which all lead to this
door: several times on one connection. Sources: protocol facts 5.5 (34, 35, 46), 5.9, 7.5, 7.8 and 9.5 (64).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from popgate.errors import (
    BadRequest,
    Forbidden,
    GatewayError,
    GroupNotFound,
    IllegalFilter,
    PeerWireError,
    TooManyRequests,
    shown,
)
from popgate.filters.compiled import compile_filter
from popgate.model import FilterKind, TransactionCheck
from popgate.wire.bodies.heartbeats import ClientCheck, ConsumerData, SubscriptionData
from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command
from processors.clients.client_registry import ClientKind, connection_of
from protocols.remoting.clients.membership import (
    LARGEST_HEARTBEAT,
    MOST_GROUPS,
    Member,
    Memberships,
    heartbeat_in,
    size_of,
    too_many,
)
from protocols.remoting.clients.remoting_client import (
    Checks,
    RemotingClient,
    consumer_key,
    filter_kind_of,
    kind_of,
    no_check,
    producer_key,
)
from protocols.remoting.codec.fields import text
from protocols.remoting.codec.marks import Origin
from protocols.remoting.requests import DoorContext, Handler, Peer, Request
from protocols.remoting.routing import Brokers

_EXPIRY_S: Final = 120.0
"""So long after a heartbeat told a membership last it is over. Source: protocol facts 7.5."""
_INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"
"""A producer group that every client is in, to send failed messages to retry topics; of no use to anybody."""
_YES, _NO = "true", "false"


def _nobody_minds(_peer: Peer, _group: str) -> None:
    """Nobody holds anything for clients."""


class Heartbeats:
    """Registers and unregisters clients.

    `checks`: sends a producer the check of a half message. `left` is called with the consumer group that a
    client of a connection has left, also when that ended.
    """

    def __init__(
        self,
        door_context: DoorContext,
        checks: Checks = no_check,
        left: Callable[[Peer, str], None] = _nobody_minds,
    ) -> None:
        self._left = left
        self._processor = door_context.processor
        self._clients = door_context.processor.clients
        self._clock = door_context.clock
        self._checks = checks
        self._brokers = Brokers(door_context)
        self._connections: dict[Peer, Memberships] = {}

    def __repr__(self) -> str:
        return f"<Heartbeats connections {len(self._connections)}>"

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.HEART_BEAT: self.heart_beat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.CHECK_CLIENT_CONFIG: self.check,
        }

    def drain(self) -> None:
        """Nothing waits here; clients of a draining gateway live on."""

    def subscriptions(self, group: str, topic: str, peer: Peer | None = None) -> SubscriptionData | None:
        """A group's subscription to a topic, from the client of `peer`, or from any classic client here."""
        known = self._connections.get(peer) if peer is not None else None
        if known is not None and peer is not None:
            cached = known.subscription(peer.client_id, group, topic)
            if cached is not None:
                return cached
        newest: SubscriptionData | None = None
        for handle in self._clients.consumers_of(group):
            subscription = handle.told.get(topic) if isinstance(handle, RemotingClient) else None
            if subscription is not None and (newest is None or subscription.version > newest.version):
                newest = subscription
        return newest

    def push_member(self, peer: Peer, group: str) -> RemotingClient | None:
        """The client of this connection that is a push consumer of the group and shares its messages."""
        known = self._connections.get(peer)
        return known.push_member(peer.client_id, group) if known is not None else None

    def shares(self, peer: Peer, group: str) -> bool:
        """Whether there is one."""
        return self.push_member(peer, group) is not None

    def has_heard(self, peer: Peer) -> bool:
        """Whether a connection is one of this listener, and a heartbeat came by it."""
        return peer in self._connections

    async def heart_beat(self, request: Request) -> Command:
        """Take in all groups that are right, and refuse the first that is not."""
        heartbeat = heartbeat_in(request.command.body)
        connection = self._connection(request.peer)
        request.peer.client_id = heartbeat.client_id
        wrong: list[GatewayError] = []
        unknown = False
        count = len(heartbeat.producer_groups) + len(heartbeat.consumers)
        if count > MOST_GROUPS:
            raise too_many()
        if len(connection.members) + count > MOST_GROUPS:
            self._expire(connection)
        for group in dict.fromkeys(heartbeat.producer_groups):
            if group != _INNER_PRODUCER:
                producer = self._producer(request, heartbeat.client_id, group)
                member = self._take(connection, producer, len(group), wrong)
                if member is not None:
                    member.context = replace(request.context, allowance=None)
        taken: list[Member] = []
        for consumer in heartbeat.consumers:
            key = consumer_key(heartbeat.client_id, consumer.group)
            known = connection.members.get(key)
            try:
                if known is None or not known.prepared:
                    # Before it is known: the id may be that of a member, in whose place it would be.
                    self._processor.classic.check_member(request.context, consumer.group)
            except GatewayError as error:
                self._leave(connection, key)
                wrong.append(error)
                continue
            if heartbeat.without_subscriptions:
                # What was told before still holds; without that the client is asked to tell it again.
                before = known.handle.consumer if known is not None else None
                unknown = unknown or known is None or known.without
                subscriptions = before.subscriptions if before is not None else ()
                consumer = ConsumerData(
                    consumer.group,
                    subscriptions,
                    consumer.consume_type,
                    consumer.model,
                    consumer.start_from,
                    consumer.unit_mode,
                )
            handle = self._consumer(request, heartbeat.client_id, consumer)
            member = self._take(connection, handle, size_of(consumer), wrong)
            if member is None:
                continue
            if not heartbeat.without_subscriptions:
                member.without = False
            elif known is None:
                member.without = True
            taken.append(member)
        for member in taken:
            # After all of them: who says good-bye meanwhile is not taken in again.
            if not member.prepared and connection.members.get(member.handle.key) is member:
                await self._prepare(request, connection, member, wrong)
        self._expire(connection)
        with suppress(GatewayError):  # no reason not to be a member
            # Who says that he is there may be asked about a transaction, by the place of its half message.
            await self._brokers.marks(request.context)
        if wrong:
            raise wrong[0]
        # Clients with heartbeats of the first kind look at neither.
        return request.answer({"IS_SUPPORT_HEART_BEAT_V2": _YES, "IS_SUB_CHANGE": _YES if unknown else _NO})

    async def unregister(self, request: Request) -> Command:
        """A client leaves groups; unknown ones are ignored."""
        fields = request.fields
        client_id = text(fields, "clientID")
        connection = self._connections.get(request.peer)
        if connection is not None:
            if group := fields.get("producerGroup"):
                self._leave(connection, producer_key(client_id, group))
            if group := fields.get("consumerGroup"):
                self._leave(connection, consumer_key(client_id, group))
        return request.answer()

    async def check(self, request: Request) -> Command:
        """Whether a subscription is understood. Raises IllegalFilter."""
        try:
            subscription = ClientCheck.decode(request.command.body).subscription
        except PeerWireError as error:
            raise BadRequest(f"the client to be checked cannot be read: {error}") from error
        kinds = {kind.value: kind for kind in FilterKind}
        kind = kinds.get(subscription.kind or FilterKind.TAG.value)
        if kind is None:
            raise IllegalFilter(
                subscription.expression, f"filters of the type {shown(subscription.kind)} are not known"
            )
        compile_filter(kind, subscription.expression)
        return request.answer()

    # -- inside -------------------------------------------------------------------------------

    def _connection(self, peer: Peer) -> Memberships:
        connection = self._connections.get(peer)
        if connection is None:
            connection = self._connections[peer] = Memberships()
            peer.on_gone(partial(self._gone, peer))
        return connection

    def _gone(self, peer: Peer) -> None:
        connection = self._connections.pop(peer, None)
        if connection is None:
            return
        connection.gone = True
        for member in connection.members.values():
            self._clients.lost(member.handle)
        left, connection.members = connection.members, {}
        for group in {member.handle.group for member in left.values()} - {""}:
            self._left(peer, group)

    def _take(
        self, connection: Memberships, handle: RemotingClient, size: int, wrong: list[GatewayError]
    ) -> Member | None:
        """Let a client be known as a member, or as it is now; None, and why, when it cannot be."""
        key = handle.key
        member = connection.members.get(key)
        grown = connection.size + size - (member.size if member is not None else 0)
        try:
            if connection.gone:
                # It ended while this heartbeat waited.
                return None
            if member is None and len(connection.members) >= MOST_GROUPS:
                raise too_many()
            if grown > LARGEST_HEARTBEAT:
                raise TooManyRequests(
                    f"what one connection subscribes to has at most {LARGEST_HEARTBEAT} bytes"
                )
            current = self._clients.get(key)
            same = member is not None and member.handle.same_as(handle)
            elsewhere = (
                isinstance(current, RemotingClient) and current.peer is not handle.peer and current.alive
            )
            if member is not None and same and (current is member.handle or elsewhere):
                # The one of its connections that came or changed last stands in the register.
                handle = member.handle
                if current is handle:
                    self._clients.touch(key, self._clock.monotonic())
            else:
                self._clients.register(handle)
        except GatewayError as error:
            wrong.append(error)
            return None
        now = self._clock.monotonic()
        if member is None:
            member = connection.members[key] = Member(handle, now, size)
        else:
            member.handle, member.seen, member.size = handle, now, size
        connection.size = grown
        return member

    async def _prepare(
        self, request: Request, connection: Memberships, member: Member, wrong: list[GatewayError]
    ) -> None:
        """The group, and its retry topic: consumers ask for its route when they start."""
        group = member.handle.group
        try:
            await self._processor.classic.prepare_group(request.context, group)
        except (GroupNotFound, Forbidden, BadRequest) as error:
            self._leave(connection, member.handle.key)
            wrong.append(error)
        except GatewayError as error:
            # It is a member all the same, and this is tried again with its next heartbeat.
            wrong.append(error)
        else:
            member.prepared = True

    def _leave(self, connection: Memberships, key: str) -> None:
        member = connection.members.pop(key, None)
        if member is not None:
            connection.size -= member.size
            self._clients.unregister(key, member.handle)
            if member.handle.group:
                self._left(member.handle.peer, member.handle.group)

    def _expire(self, connection: Memberships) -> None:
        """Groups that a client does not name any more: it left them without a word."""
        oldest = self._clock.monotonic() - _EXPIRY_S
        for key in [key for key, member in connection.members.items() if member.seen <= oldest]:
            self._leave(connection, key)

    def _origin(self, request: Request) -> Callable[[], Origin]:
        return partial(self._brokers.origin_at, self._brokers.door(request.context))

    def _producer(self, request: Request, client_id: str, group: str) -> RemotingClient:
        peer = request.peer
        return RemotingClient(
            client_id,
            producer_key(client_id, group),
            peer,
            ClientKind.PRODUCER,
            peer.language,
            str(peer.version),
            connection_of(request.context),
            producer_group=group,
            checks=partial(self._check, producer_key(client_id, group)),
            origin=self._origin(request),
        )

    def _check(self, key: str, peer: Peer, check: TransactionCheck, origin: Origin) -> bool:
        """`Checks` of a producer.

        Its id is only what a heartbeat says: where this account may not be asked, the client that said the
        same id over another connection may be.
        """
        own = self._connections.get(peer)
        if own is not None and self._may_answer(own, key, check):
            return self._checks(peer, check, origin)
        for other, connection in self._connections.items():
            if other is not peer and other.alive and self._may_answer(connection, key, check):
                return self._checks(other, check, connection.members[key].handle.origin())
        return False

    def _may_answer(self, connection: Memberships, key: str, check: TransactionCheck) -> bool:
        member = connection.members.get(key)
        return (
            member is not None
            and member.context is not None
            and self._processor.check_router.may_answer(member.context, check.topic)
        )

    def _consumer(self, request: Request, client_id: str, consumer: ConsumerData) -> RemotingClient:
        peer = request.peer
        subscriptions = {subscription.topic: subscription for subscription in consumer.subscriptions}
        return RemotingClient(
            client_id,
            consumer_key(client_id, consumer.group),
            peer,
            kind_of(consumer),
            peer.language,
            str(peer.version),
            connection_of(request.context),
            group=consumer.group,
            consumer=consumer,
            told=subscriptions,
            subscriptions={
                topic: (filter_kind_of(subscription.kind), subscription.expression)
                for topic, subscription in subscriptions.items()
            },
            topics=frozenset(subscriptions),
            origin=self._origin(request),
        )
