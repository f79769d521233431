"""Heartbeats that register a client at brokers: its groups, its subscriptions, its language and version.

Sources: protocol facts 5.3 (names and numbers), 5.9 (heartbeat), 1.7 (kinds of gRPC consumers).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from brokers.channel import Speaker
from brokers.client_registration import ConnectedClient
from brokers.remote.clients.link_slots import Membership, Role
from popgate.ids.hashes import java_hash
from popgate.model import FilterKind, Reading
from popgate.wire.bodies.heartbeats import (
    ACTIVELY,
    BROADCASTING,
    CLUSTERING,
    PASSIVELY,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
)
from popgate.wire.frames.headers import LANGUAGES, OTHER
from popgate.wire.frames.remoting import VERSION

MEMBER_VERSION: Final = 0x506F7000
"""A version that no library has: of clients that come through a gateway. Tools show HIGHER_VERSION."""
_READINGS: Final = (Reading.NEUTRAL, Reading.UNKNOWN, Reading.CONCURRENT, Reading.TRUE_PULL)
"""In the order of their numbers, which gateways of all releases must have alike."""
_V5_0_0 = 413
_PER_RELEASE = 2
"""RocketMQ counts a snapshot and a release of each number."""
_LANGUAGE_NAMES = {
    "GOLANG": "GO",
    "DOT_NET": "DOTNET",
    "CSHARP": "DOTNET",
    "C#": "DOTNET",
    "C++": "CPP",
    "NODEJS": "NODE_JS",
    "NODE.JS": "NODE_JS",
    "KOTLIN": "JAVA",
}
_RELEASE = re.compile(r"v?([45])\.([0-9])\.([0-9])(?![0-9])", re.ASCII)
_GROUPS_OF_ONE = 100
"""Producer groups in one heartbeat, as the Java proxy does it (protocol facts 7.4)."""


def speaker_of(client: ConnectedClient) -> Speaker:
    """A client's language and version as a header can carry them; an unknown version is sent as our own.

    The version of a consumer whose group may be mapped says how it reads: brokers return it with a group's
    connections, which other gateways request (`reading_in`).
    """
    language = client.language.upper()
    language = _LANGUAGE_NAMES.get(language, language)
    if client.may_map:
        return language if language in LANGUAGES else OTHER, MEMBER_VERSION + _READINGS.index(client.reading)
    if client.version.isascii() and client.version.isdigit() and len(client.version) < 6:
        return language if language in LANGUAGES else OTHER, int(client.version)
    match = _RELEASE.match(client.version)
    version = VERSION
    if match is not None:
        major, minor, patch = (int(part) for part in match.groups())
        version = _V5_0_0 + _PER_RELEASE * ((major - 5) * 100 + minor * 10 + patch)
    return language if language in LANGUAGES else OTHER, version


def reading_in(version: int) -> Reading | None:
    """How a gateway's client reads, by the version that its broker returns; None: no gateway's client."""
    place = version - MEMBER_VERSION
    return _READINGS[place] if 0 <= place < len(_READINGS) else None


def memberships_of(client: ConnectedClient) -> list[Membership]:
    """The groups that brokers are to know the client in. A gRPC producer's groups are its topics."""
    if client.group:
        return [Membership(Role.CONSUMER, client.group)]
    return [Membership(Role.PRODUCER, group) for group in sorted(client.topics | client.producer_groups)]


def heartbeats_of(client: ConnectedClient, memberships: Iterable[Membership], since_ms: int) -> list[bytes]:
    """Heartbeat bodies of a client as a member of these groups. `since_ms`: when it sent its filters."""
    producers = [membership.group for membership in memberships if membership.role is Role.PRODUCER]
    if client.group:
        consumer = ConsumerData(
            client.group,
            subscriptions_of(client.subscriptions, since_ms),
            consume_type_of(client),
            BROADCASTING if client.broadcast else CLUSTERING,
        )
        return [HeartbeatData(client.client_id, consumers=(consumer,)).encode()]
    return [
        HeartbeatData(client.client_id, tuple(producers[at : at + _GROUPS_OF_ONE])).encode()
        for at in range(0, len(producers), _GROUPS_OF_ONE)
    ]


def consume_type_of(client: ConnectedClient) -> str:
    return PASSIVELY if client.pushed else ACTIVELY


def subscriptions_of(
    filters: Mapping[str, tuple[FilterKind, str]], since_ms: int
) -> tuple[SubscriptionData, ...]:
    """A consumer's filters, as brokers keep them."""
    subscriptions = []
    for topic, (kind, expression) in sorted(filters.items()):
        trimmed = expression.strip() or "*"
        tags: tuple[str, ...] = ()
        if kind is FilterKind.TAG and trimmed != "*":
            tags = tuple(sorted({tag.strip() for tag in trimmed.split("||")} - {""}))
        codes = tuple(java_hash(tag) for tag in tags)
        subscriptions.append(SubscriptionData(topic, trimmed, kind.value, tags, codes, since_ms))
    return tuple(subscriptions)
