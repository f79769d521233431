"""The brokers at which a client is registered: those of the clusters of its topics and groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from brokers.client_registration import ConnectedClient
from brokers.remote.cluster.routes import Routes
from popgate.errors import BrokerUnavailable, TopicNotFound
from popgate.wire.bodies.routes import BrokerData

_MOST_LOOKED_UP = 16
"""Unknown topics of one client that are looked up for one heartbeat."""


async def addresses_of(
    client: ConnectedClient, brokers: Sequence[BrokerData], routes: Routes, registered: frozenset[str]
) -> frozenset[str]:
    """The masters of these clusters, of all where nothing is known of its topics.

    And those at which it is `registered`: one that hears no more of a client closes the connection after
    120 s, and every request on it is lost (`brokers.remote.clients.departures`).
    """
    clusters = {broker.cluster for broker in brokers}
    topics = client.topics or client.subscriptions
    if len(clusters) > 1 and topics:
        clusters = await _clusters_of(topics, routes) or clusters
    masters = ((routes.master(broker.name), broker.cluster in clusters) for broker in brokers)
    return frozenset(
        address for address, wanted in masters if address is not None and (wanted or address in registered)
    )


async def _clusters_of(topics: Iterable[str], routes: Routes) -> set[str]:
    """Those that have one of these topics; of many unknown ones some are looked up each time."""
    known = [topic for topic in topics if routes.age(topic) is not None]
    unknown = [topic for topic in topics if routes.age(topic) is None]
    clusters: set[str] = set()
    for topic in (*known, *unknown[:_MOST_LOOKED_UP]):
        try:
            clusters.update(broker.cluster for broker in (await routes.of(topic)).brokers)
        except (TopicNotFound, BrokerUnavailable):
            continue
    return clusters
