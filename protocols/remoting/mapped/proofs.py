"""Which push consumers are concurrent: orderly ones do not say so, but lock a queue before they read it.

A consumer that takes a queue asks for its position and pulls; an orderly one locks it before both, on the
same connection, and all its queues again every 20 s. So one that asked, or that pulled for long, without
ever locking is concurrent. A lock outweighs this and is reported by the handler of locks.
Source: protocol facts 7.8; RocketMQ's RebalanceImpl and ConsumeMessageOrderlyService.
"""

from __future__ import annotations

from typing import Final

from popgate.clock import Clock
from popgate.model import Reading
from processors.members.mapped_groups import MappedGroups
from protocols.remoting.clients.remoting_client import consumer_key
from protocols.remoting.mapped.offsets import QueueKey, is_virtual
from protocols.remoting.requests import Peer

LOCKING_S: Final = 60.0
"""Three times as often an orderly consumer renews its locks."""
_MOST_QUEUES: Final = 1024
_MOST_GROUPS: Final = 1024


class _Seen:
    """What a connection did: the queues whose position it asked for, since when it pulls, who is proven."""

    __slots__ = ("asked", "proven", "pulls")

    def __init__(self) -> None:
        self.asked: set[QueueKey] = set()
        self.pulls: dict[str, float] = {}
        self.proven: set[str] = set()


class Proofs:
    """Tells which members are concurrent, once each has shown it. Only groups that may be mapped matter."""

    def __init__(self, groups: MappedGroups, clock: Clock) -> None:
        self._groups = groups
        self._clock = clock
        self._seen: dict[Peer, _Seen] = {}

    def __repr__(self) -> str:
        return f"<Proofs connections {len(self._seen)}>"

    def asks_position(self, peer: Peer, key: QueueKey) -> None:
        """A client asked where its group is on a queue."""
        if self._groups.may_map(key.group):
            seen = self._of(peer)
            if key.group not in seen.proven and len(seen.asked) < _MOST_QUEUES:
                seen.asked.add(key)

    def pulls(self, peer: Peer, key: QueueKey, offset: int) -> None:
        """A push consumer that shares its group's messages pulls."""
        group = key.group
        if not self._groups.may_map(group):
            return
        seen = self._of(peer)
        if group in seen.proven:
            return
        now = self._clock.monotonic()
        if len(seen.pulls) >= _MOST_GROUPS:
            seen.pulls.clear()
        since = seen.pulls.setdefault(group, now)
        # Who has a number was mapped before, elsewhere.
        if key in seen.asked or is_virtual(offset) or now - since >= LOCKING_S:
            seen.proven.add(group)
            seen.pulls.pop(group, None)
            seen.asked = {asked_key for asked_key in seen.asked if asked_key.group != group}
            self._groups.told(consumer_key(peer.client_id, group), Reading.CONCURRENT)

    def left(self, peer: Peer, group: str) -> None:
        """A client of the connection left the group: the next one has to be proven again."""
        seen = self._seen.get(peer)
        if seen is not None:
            seen.proven.discard(group)
            seen.pulls.pop(group, None)

    def _of(self, peer: Peer) -> _Seen:
        seen = self._seen.get(peer)
        if seen is None:
            seen = self._seen[peer] = _Seen()
            peer.on_gone(lambda: self._gone(peer))
        return seen

    def _gone(self, peer: Peer) -> None:
        self._seen.pop(peer, None)
