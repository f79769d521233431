"""Evicts unused group topics from memory; their state is in the store and is loaded again on demand.

A timed machine: every interval a round over all group topics, cut into ticks of bounded work. One is evicted
if it was not used since the last round, has no held or resting message, and no consumer waits for it.
"""

from __future__ import annotations

from brokers.embedded.groups.group_topic import GroupTopic
from brokers.embedded.groups.group_topic_index import GroupTopicIndex
from brokers.embedded.groups.wait_queue import WaitQueue
from brokers.embedded.settings import EmbeddedSettings
from popgate.clock import Clock

_LOOKED_AT = 512
"""Group topics per tick."""


class Eviction:
    """Works on the index of group topics that it was created with."""

    def __init__(
        self, shares: GroupTopicIndex, waiting: WaitQueue, clock: Clock, settings: EmbeddedSettings
    ) -> None:
        self._shares = shares
        self._waiting = waiting
        self._clock = clock
        self._interval_ms = settings.forget_after_ms
        self._left: list[GroupTopic] = []
        self._next_ms = clock.now_ms() + self._interval_ms

    def __repr__(self) -> str:
        return f"<Eviction left {len(self._left)} next {self._next_ms}>"

    def deadline(self) -> int | None:
        """Wall time in ms of the next tick. A clock set back delays nothing."""
        return min(self._next_ms, self._clock.now_ms() + self._interval_ms)

    def tick(self, now_ms: int) -> None:
        """Check a bounded number of group topics."""
        if not self._left:
            self._left = list(self._shares)
        for _ in range(min(_LOOKED_AT, len(self._left))):
            self._look_at(self._left.pop())
        self._next_ms = now_ms if self._left else now_ms + self._interval_ms

    def _look_at(self, share: GroupTopic) -> None:
        if share.touched:
            share.touched = False
            if share.retries is not None:
                share.retries.touched = False
        elif not self._waiting.anybody(share.topic.id, share.group.id):
            self._shares.forget(share)
