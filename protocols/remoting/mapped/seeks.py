"""Distinguishes positions that push consumers set themselves from those that they commit in normal operation.

A commit does not say why it is made. A member of a mapped group commits numbers; it knows a real position
only from the gateway (the response to its query, an illegal offset), or from earlier, when it read by true
pull, here or through another gateway, and it may commit that late, and repeatedly until it has finished
a message. So a position that was set is recognised by its origin: the client looked it up by time on this
connection while it read the queue (`resetOffsetByTimeStamp`), or the client cannot have it otherwise,
because everything that it knows of the queue it learned here (`updateConsumeOffset`).
Sources: protocol facts 5.13; RocketMQ's DefaultMQPushConsumerImpl, RemoteBrokerOffsetStore.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from popgate.clock import Clock
from protocols.remoting.mapped.offsets import QueueKey
from protocols.remoting.requests import Peer

SOUGHT_S: Final = 60.0
"""Within which a client commits an offset that it looked for by time, to set it: Java rests for 10 s."""
SETTLED_S: Final = 10.0
"""For which a client that took a queue may still tell positions of before: it connects for 3 s at most."""
_MOST: Final = 16_384
"""Queues of one connection."""


@dataclass(slots=True)
class _Seen:
    """What a client knows of a queue. `at`: since when, in loop seconds.

    `told`: the last position that it received. `numbered`: it has committed a number since. `clean`: it knows
    no other real position. `searched`: the offset that it looked up by time since then, and when.
    """

    told: int | None
    at: float
    clean: bool
    numbered: bool = False
    searched: tuple[int, float] | None = None


class Seeks:
    """By connection and queue. Only of groups that may be mapped."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[Peer, dict[QueueKey, _Seen]] = {}

    def __repr__(self) -> str:
        return f"<Seeks connections {len(self._seen)}>"

    def told(self, peer: Peer, key: QueueKey, offset: int | None, *, clean: bool) -> None:
        """A client received its position, or that there is none. `clean`: it asked, and knows no other."""
        known = self._seen.get(peer)
        if known is None:
            known = self._seen[peer] = {}
            peer.on_gone(partial(self._gone, peer))
        if key not in known and len(known) >= _MOST:
            del known[next(iter(known))]
        known[key] = _Seen(offset, self._clock.monotonic(), clean and offset is not None)

    def searched(self, peer: Peer, topic: str, broker: str, queue_id: int, offset: int) -> None:
        """A client received an offset by time.

        A client that starts by time asks in the same way, where its group has no position: that is no seek.
        """
        for key, seen in self._seen.get(peer, {}).items():
            if key[1:] == (topic, broker, queue_id) and (seen.told is not None or seen.numbered):
                seen.searched = offset, self._clock.monotonic()

    def pulls(self, peer: Peer, key: QueueKey) -> None:
        """A client reads the queue by true pull: it has positions of its own from then on."""
        seen = self._seen.get(peer, {}).get(key)
        if seen is not None:
            seen.clean, seen.searched = False, None

    def numbers(self, peer: Peer, key: QueueKey) -> None:
        """A client commits a number: from then on it has no real position by itself."""
        seen = self._seen.get(peer, {}).get(key)
        if seen is not None:
            seen.numbered = True

    def sets(self, peer: Peer, key: QueueKey, offset: int) -> bool:
        """Whether a client that commits a real position has set it by itself."""
        seen = self._seen.get(peer, {}).get(key)
        if seen is None or offset < 0 or (offset == seen.told and not seen.numbered):
            return False
        now = self._clock.monotonic()
        if seen.searched is not None and offset == seen.searched[0] and now - seen.searched[1] <= SOUGHT_S:
            return True
        # It may tell what it was told once more, late; 0 is what some clients commit for nothing.
        settled = now - seen.at >= SETTLED_S
        return seen.clean and settled and offset not in (0, seen.told)

    def _gone(self, peer: Peer) -> None:
        self._seen.pop(peer, None)
