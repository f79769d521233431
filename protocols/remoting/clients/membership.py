"""Derives the memberships of a connection from its heartbeats.

Sources: protocol facts 5.5 (34), 5.9 and 7.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from popgate.context import Context
from popgate.errors import BadRequest, Fault, PeerWireError, TooManyRequests, shown
from popgate.model import Reading
from popgate.wire.bodies.heartbeats import ConsumerData, HeartbeatData, SubscriptionData
from protocols.remoting.clients.remoting_client import RemotingClient, consumer_key

LARGEST_HEARTBEAT: Final = 1024 * 1024
"""Bytes of a heartbeat, and of all that is kept of the memberships of one connection."""
MOST_GROUPS: Final = 1024
"""Memberships of one connection, of all its clients together."""
_LONGEST_NAME: Final = 255
"""Characters of a client id, or of a producer group."""


@dataclass(slots=True)
class Member:
    """One group of one client. `size`: bytes that are kept of it."""

    handle: RemotingClient
    seen: float
    size: int
    prepared: bool = False
    without: bool = False
    """Whether the client never told this connection what it subscribes to."""
    context: Context | None = None
    """Of the heartbeat that told of a producer last: what it may do."""


class Memberships:
    """The memberships of one connection, by key."""

    __slots__ = ("gone", "members", "size")

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.size = 0
        self.gone = False

    def subscription(self, client_id: str, group: str, topic: str) -> SubscriptionData | None:
        """The subscription of a client of the connection to a topic; preferably that of this client id."""
        # Nearly all connections are of one client.
        first = self.members.get(consumer_key(client_id, group))
        if first is not None and topic in first.handle.told:
            return first.handle.told[topic]
        for member in self.members.values():
            if member.handle.group == group and topic in member.handle.told:
                return member.handle.told[topic]
        return None

    def push_member(self, client_id: str, group: str) -> RemotingClient | None:
        """The clustering push consumer of the group on the connection; preferably that of this client id.

        Broadcasting consumers, pull consumers and those in pop mode do not count.
        """
        first = self.members.get(consumer_key(client_id, group))
        if first is not None:
            return first.handle if first.handle.reading is Reading.UNKNOWN else None
        for member in self.members.values():
            handle = member.handle
            if handle.group == group and handle.reading is Reading.UNKNOWN:
                return handle
        return None


def heartbeat_in(body: bytes) -> HeartbeatData:
    """Raises BadRequest."""
    if len(body) > LARGEST_HEARTBEAT:
        raise BadRequest(f"the heartbeat has {len(body)} bytes, the limit is {LARGEST_HEARTBEAT}")
    try:
        heartbeat = HeartbeatData.decode(body)
    except PeerWireError as error:
        raise BadRequest(f"the heartbeat cannot be read: {error}") from error
    if not heartbeat.client_id.strip():
        raise BadRequest("the heartbeat names no client id", Fault.CLIENT_ID_REQUIRED)
    for subject, names in (
        ("client id", (heartbeat.client_id,)),
        ("producer group", heartbeat.producer_groups),
    ):
        for name in names:
            if not name or len(name) > _LONGEST_NAME or not name.isprintable():
                raise BadRequest(
                    f"the {subject} {shown(name)} is none: it has 1 to {_LONGEST_NAME} printable characters"
                )
    return heartbeat


def too_many() -> TooManyRequests:
    return TooManyRequests(f"one connection is a member of at most {MOST_GROUPS} groups")


def size_of(consumer: ConsumerData) -> int:
    """About so many bytes are kept of it."""
    return sum(map(len, _texts(consumer)))


def _texts(consumer: ConsumerData) -> Iterator[str]:
    yield from (consumer.group, consumer.consume_type, consumer.model, consumer.start_from)
    for subscription in consumer.subscriptions:
        yield subscription.topic
        yield subscription.expression
        yield subscription.kind
        yield from subscription.tags
        yield from ("00000000" for _ in subscription.codes)
