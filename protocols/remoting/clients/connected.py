"""Who is connected to this gateway, by whatever door, in RocketMQ's words.

Source: protocol facts 5.5 and 5.14.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from popgate.clock import Clock
from popgate.model import FilterKind
from popgate.wire.bodies.heartbeats import (
    ACTIVELY,
    CLUSTERING,
    FROM_LAST,
    PASSIVELY,
    Connection,
    ConsumerConnection,
    SubscriptionData,
)
from processors.clients.client_registry import ClientHandle, ClientKind, ClientRegistry
from protocols.remoting.clients.remoting_client import RemotingClient


def connection_of(handle: ClientHandle) -> Connection:
    """Of clients of other doors the address is not told, and their versions are no numbers."""
    if isinstance(handle, RemotingClient):
        return Connection(handle.client_id, handle.peer.address, handle.language, handle.peer.version)
    return Connection(handle.client_id, language=handle.language)


def consumers_of(handles: Sequence[ClientHandle]) -> ConsumerConnection:
    """Members of a group that are here, at least one, and how they read: as a classic one says, if any is."""
    connections = tuple(map(connection_of, handles))
    subscriptions: dict[str, SubscriptionData] = {}
    for handle in handles:
        subscriptions.update(_subscriptions_of(handle))
    for handle in handles:
        if isinstance(handle, RemotingClient) and (told := handle.consumer) is not None:
            return ConsumerConnection(
                connections, subscriptions, told.consume_type, told.model, told.start_from
            )
    pushed = handles[0].kind is ClientKind.PUSH_CONSUMER
    return ConsumerConnection(connections, subscriptions, PASSIVELY if pushed else ACTIVELY)


def merged(told: Sequence[ConsumerConnection]) -> ConsumerConnection:
    """What several tell of a group, as one; where they differ the first counts."""
    subscriptions: dict[str, SubscriptionData] = {}
    for each in reversed(told):
        subscriptions.update(each.subscriptions)
    return replace(told[0] if told else ConsumerConnection(()), subscriptions=subscriptions)


def merged_alike(told: Sequence[ConsumerConnection]) -> ConsumerConnection:
    """The same in any order: classic clients say more than others of how a group reads, and count."""
    subscriptions: dict[str, SubscriptionData] = {}
    for each in told:
        for topic, one in each.subscriptions.items():
            known = subscriptions.get(topic)
            if known is None or _age(one) > _age(known):
                subscriptions[topic] = one
    first = max(told, key=_said_much, default=ConsumerConnection(()))
    return replace(first, subscriptions=dict(sorted(subscriptions.items())))


def _age(one: SubscriptionData) -> tuple[int, str, str]:
    return one.version, one.kind, one.expression


def _said_much(one: ConsumerConnection) -> tuple[bool, bool, str, str, str]:
    """Of clients of other doors the address is not told."""
    classic = any(each.address for each in one.connections)
    plain = one.model == CLUSTERING and one.start_from == FROM_LAST
    return classic, not plain, one.consume_type, one.model, one.start_from


def producers_of(clients: ClientRegistry, group: str) -> list[Connection]:
    """Those of a producer group; over gRPC the group of a producer is each of its topics."""
    here = {handle.key: handle for handle in (*clients.producers_in(group), *clients.producers_of(group))}
    return list(map(connection_of, here.values()))


def all_producers(
    clients: ClientRegistry, clock: Clock, most: int | None = None
) -> dict[str, list[tuple[Connection, int]]]:
    """By group, with when each was last heard of (wall time in ms).

    `most`: so many are told of, one in several groups in each of them.
    """
    now_s, now_ms = clock.monotonic(), clock.now_ms()
    found: dict[str, list[tuple[Connection, int]]] = {}
    told = (
        (group, one)
        for one in clients.all()
        if not one.group
        for group in ((one.producer_group,) if one.producer_group else sorted(one.topics))
    )
    for group, one in islice(told, most):
        seen_ms = now_ms - round(max(now_s - clients.last_seen(one.key), 0) * 1000)
        found.setdefault(group, []).append((connection_of(one), seen_ms))
    return found


def _subscriptions_of(handle: ClientHandle) -> dict[str, SubscriptionData]:
    if isinstance(handle, RemotingClient):
        return dict(handle.told)
    return {
        topic: SubscriptionData(topic, expression, kind.value if kind else FilterKind.TAG.value)
        for topic, (kind, expression) in handle.subscriptions.items()
    }
