"""Clients that an operator's reset sent to another position, until they have gone there.

A Java push consumer that receives a reset drops its queues, pauses for 10 s, commits the new position
and asks for its position again. Meanwhile its timer commits the old one, every 5 s: a broker
accepts no such position until the group has read from the new one. The same is done here for each notified
client. Sources: protocol facts 5.13 and 7.8 (reset pending); RocketMQ's MQClientInstance.resetOffset,
ConsumerManageProcessor.updateConsumerOffset, PullMessageProcessor.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

from popgate.clock import Clock
from protocols.remoting.mapped.offsets import QueueKey
from protocols.remoting.requests import Peer

OBEYS_S: Final = 30.0
"""Within which a client that heard of a reset pulls from there. One that pulls elsewhere later did not
hear, or does not obey, and is answered that its offset is illegal, as a broker answers it."""
_MOST: Final = 16_384
"""Queues of one connection."""

STRANGER_S: Final = 60.0
"""Heartbeats come every 30 s: a connection that has sent none for so long is no member's."""

_Read = tuple[str, str]
"""Group and topic."""


@dataclass(slots=True)
class _Told:
    """Where a client was sent, and when. `until`: to that loop time its pulls are not redirected."""

    offset: int
    at: float
    until: float


class _Known:
    """What is known of one connection."""

    __slots__ = ("stranger_since", "told", "unread")

    def __init__(self) -> None:
        self.told: dict[QueueKey, _Told] = {}
        self.unread: dict[QueueKey, int] = {}
        """Where it began to read, while its broker could not be asked to end a pending reset."""
        self.stranger_since: float | None = None
        """When a position that it committed before any heartbeat was not kept for the first time."""


class Resets:
    """Positions that members were sent to, by connection and queue, and resets in progress."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._peers: dict[Peer, _Known] = {}
        self._told = 0
        """Entries of all connections."""
        self._under_way: dict[_Read, int] = {}
        self._writing: dict[_Read, int] = {}
        self._watchers: dict[_Read, list[asyncio.Future[None]]] = {}

    def __repr__(self) -> str:
        return f"<Resets under way {len(self._under_way)} members {self._told}>"

    # -- a reset and commits that cross it ------------------------------------------------------------

    @asynccontextmanager
    async def under_way(self, group: str, topic: str) -> AsyncIterator[None]:
        """While a reset is made: no position of a member is kept, and none is written when it begins."""
        key = group, topic
        with self.held(group, topic):
            while self._writing.get(key):
                over = asyncio.get_running_loop().create_future()
                self._watchers.setdefault(key, []).append(over)
                await over
            yield

    @contextmanager
    def writing(self, group: str, topic: str) -> Iterator[None]:
        """While a member's position is written. Enter it before `accepts` is asked."""
        key = group, topic
        self._writing[key] = self._writing.get(key, 0) + 1
        try:
            yield
        finally:
            if _count_down(self._writing, key):
                for over in self._watchers.pop(key, ()):
                    if not over.done():
                        over.set_result(None)

    @contextmanager
    def held(self, group: str, topic: str) -> Iterator[None]:
        """As `under_way`, for who writes a position itself."""
        key = group, topic
        self._under_way[key] = self._under_way.get(key, 0) + 1
        try:
            yield
        finally:
            _count_down(self._under_way, key)

    def is_under_way(self, group: str, topic: str) -> bool:
        return (group, topic) in self._under_way

    # -- where members are sent -----------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no member has been sent to another position, so that checks can be skipped."""
        return not self._told

    def sent(self, peer: Peer, key: QueueKey, offset: int, *, heard: bool = True) -> None:
        """A member is to continue at an offset. `heard`: the notice was written, so it should obey soon."""
        known = self._known(peer)
        if known is None:
            return
        entries = known.told
        if key not in entries:
            if len(entries) >= _MOST:
                del entries[next(iter(entries))]
                self._told -= 1
            self._told += 1
        now = self._clock.monotonic()
        entries[key] = _Told(offset, now, now + (OBEYS_S if heard else 0.0))
        known.unread.pop(key, None)

    def accepts(self, peer: Peer, key: QueueKey) -> bool:
        """Whether a position that a member commits is kept.

        Not during a reset, nor until the member is where a reset has sent it.
        """
        if (key.group, key.topic) in self._under_way:
            return False
        return not self._told or self._entry(peer, key) is None

    def is_of_before(self, peer: Peer, key: QueueKey, offset: int) -> bool:
        """Whether a member commits an offset on a queue that it was sent away from, and has not left yet.

        An empty broker is any.
        """
        known = self._peers.get(peer) if self._told else None
        if known is None:
            return False
        if key.broker:
            entry = known.told.get(key)
            return entry is not None and entry.offset != offset
        return any(
            entry.offset != offset
            for place, entry in known.told.items()
            if (place.group, place.topic, place.queue_id) == (key.group, key.topic, key.queue_id)
        )

    def arrived(self, peer: Peer, key: QueueKey) -> None:
        """The member asks for its position, or continues where it was sent."""
        known = self._peers.get(peer)
        if known is not None and known.told.pop(key, None) is not None:
            self._told -= 1

    def target(self, peer: Peer, key: QueueKey, *, within_s: float = inf) -> int | None:
        """Where a member was sent, within so many seconds, until it is there."""
        entry = self._entry(peer, key)
        if entry is None or self._clock.monotonic() - entry.at > within_s:
            return None
        return entry.offset

    def redirect(self, peer: Peer, key: QueueKey) -> int | None:
        """Where a pull of another offset is to be sent; None: the member may still go there by itself."""
        entry = self._entry(peer, key)
        return entry.offset if entry is not None and self._clock.monotonic() >= entry.until else None

    # -- what could not be done at once ---------------------------------------------------------------

    def not_read(self, peer: Peer, key: QueueKey, offset: int) -> None:
        """A member began to read at an offset, and its broker could not be asked to end a pending reset."""
        known = self._known(peer)
        if known is not None and len(known.unread) < _MOST:
            known.unread[key] = offset

    def take_unread(self, peer: Peer, key: QueueKey) -> int | None:
        """The offset of `not_read`, once."""
        known = self._peers.get(peer)
        return known.unread.pop(key, None) if known is not None else None

    def is_stranger(self, peer: Peer) -> bool:
        """Whether a connection without any heartbeat has had its time; from the first call on it runs."""
        known, now = self._known(peer), self._clock.monotonic()
        if known is None:
            return False
        if known.stranger_since is None:
            known.stranger_since = now
        return now - known.stranger_since >= STRANGER_S

    def _known(self, peer: Peer) -> _Known | None:
        """None: the connection is over."""
        known = self._peers.get(peer)
        if known is None:
            known = self._peers[peer] = _Known()
            peer.on_gone(partial(self._gone, peer))
            return self._peers.get(peer)
        return known

    def _entry(self, peer: Peer, key: QueueKey) -> _Told | None:
        known = self._peers.get(peer)
        return known.told.get(key) if known is not None else None

    def _gone(self, peer: Peer) -> None:
        known = self._peers.pop(peer, None)
        if known is not None:
            self._told -= len(known.told)


def _count_down(counts: dict[_Read, int], key: _Read) -> bool:
    """Whether that was the last one."""
    left = counts[key] - 1
    if left:
        counts[key] = left
    else:
        del counts[key]
    return not left
