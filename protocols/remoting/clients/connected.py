"""The clients that are connected to this gateway, through any door, in RocketMQ's form.

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
    """Clients of other doors have no address here, and their versions are not numbers."""
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
        if isinstance(handle, RemotingClient) and (consumer := handle.consumer) is not None:
            return ConsumerConnection(
                connections, subscriptions, consumer.consume_type, consumer.model, consumer.start_from
            )
    pushed = handles[0].kind is ClientKind.PUSH_CONSUMER
    return ConsumerConnection(connections, subscriptions, PASSIVELY if pushed else ACTIVELY)


def merged(reports: Sequence[ConsumerConnection]) -> ConsumerConnection:
    """Merges several lists of a group's members; where they differ, the first one is used."""
    subscriptions: dict[str, SubscriptionData] = {}
    for each in reversed(reports):
        subscriptions.update(each.subscriptions)
    return replace(reports[0] if reports else ConsumerConnection(()), subscriptions=subscriptions)


def merged_alike(reports: Sequence[ConsumerConnection]) -> ConsumerConnection:
    """The same in any order: classic clients say more than others of how a group reads, and count."""
    subscriptions: dict[str, SubscriptionData] = {}
    for each in reports:
        for topic, subscription in each.subscriptions.items():
            known = subscriptions.get(topic)
            if known is None or _age(subscription) > _age(known):
                subscriptions[topic] = subscription
    first = max(reports, key=_said_much, default=ConsumerConnection(()))
    return replace(first, subscriptions=dict(sorted(subscriptions.items())))


def _age(subscription: SubscriptionData) -> tuple[int, str, str]:
    return subscription.version, subscription.kind, subscription.expression


def _said_much(report: ConsumerConnection) -> tuple[bool, bool, str, str, str]:
    """Clients of other doors have no address here."""
    classic = any(each.address for each in report.connections)
    plain = report.model == CLUSTERING and report.start_from == FROM_LAST
    return classic, not plain, report.consume_type, report.model, report.start_from


def producers_of(clients: ClientRegistry, group: str) -> list[Connection]:
    """Those of a producer group; over gRPC the group of a producer is each of its topics."""
    here = {handle.key: handle for handle in (*clients.producers_in(group), *clients.producers_of(group))}
    return list(map(connection_of, here.values()))


def all_producers(
    clients: ClientRegistry, clock: Clock, most: int | None = None
) -> dict[str, list[tuple[Connection, int]]]:
    """By group, with the time of the last sign of life (wall time in ms).

    `most`: the maximum number; a producer of several groups counts once for each.
    """
    now_s, now_ms = clock.monotonic(), clock.now_ms()
    producers: dict[str, list[tuple[Connection, int]]] = {}
    entries = (
        (group, client)
        for client in clients.all()
        if not client.group
        for group in ((client.producer_group,) if client.producer_group else sorted(client.topics))
    )
    for group, client in islice(entries, most):
        seen_ms = now_ms - round(max(now_s - clients.last_seen(client.key), 0) * 1000)
        producers.setdefault(group, []).append((connection_of(client), seen_ms))
    return producers


def _subscriptions_of(handle: ClientHandle) -> dict[str, SubscriptionData]:
    if isinstance(handle, RemotingClient):
        return dict(handle.told)
    return {
        topic: SubscriptionData(topic, expression, kind.value if kind else FilterKind.TAG.value)
        for topic, (kind, expression) in handle.subscriptions.items()
    }
