"""The number of messages that a pull requests: as many as the broker returns at once.

RocketMQ returns 32, or 8 from disk, whatever is requested, and stops at some 256 KB; the embedded broker
returns up to 1,024, and stops at 4 MB.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_LEAST: Final = 8
_LOOKED_AT: Final = 8
"""The number of recent responses whose maximum is used: a single short one may end at a large message."""
_TRIES: Final = 32
"""One pull of so many asks for twice as much."""


class PullSize:
    """At most `most` messages in a pull: the option `pullBatchSize`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._given: deque[int] = deque(maxlen=_LOOKED_AT)
        self._asked = 0

    def next(self) -> int:
        """How many to ask for now."""
        self._asked += 1
        given = max(max(self._given, default=self._most), _LEAST)
        return min(given if self._asked % _TRIES else 2 * given, self._most)

    def learn(self, given: int) -> None:
        """Record the first response to a pull of `next`, not those to its remainder."""
        self._given.append(given)
