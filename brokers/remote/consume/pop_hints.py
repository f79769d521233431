"""Results of recent pops: which brokers had messages, how large these are, and which groups were refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from popgate.clock import Clock

_log = logging.getLogger(__name__)

_LATELY_S: Final = 2.0
_AGAIN_S: Final = 1.0
"""A broker that had nothing is asked so often while others have something: what comes there must not wait
until they are empty."""
_AFTER_FAILURE_S: Final = 10.0
"""Likewise one that failed, or has yet to answer: each time may cost a receive the time of a request."""
_MOST: Final = 8_192
_FIRST_SIZE: Final = 1_024.0
_WEIGHT: Final = 0.2
_MOST_REFUSALS: Final = 1_024
_FRESH_S: Final = 300.0
"""Present consumers pop repeatedly: a refusal that was not repeated within this time is obsolete."""


class PopHints:
    """Bounded and soft: it only says whom to ask first, and for how much."""

    __slots__ = ("_clock", "_due", "_found", "_sizes")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[tuple[str, str, str], float] = {}
        self._due: dict[tuple[str, str, str], float] = {}
        self._sizes: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<PopHints {len(self._found)}>"

    def had(self, shelf: tuple[str, str], broker: str) -> bool:
        """Whether the broker had something for this topic and group a moment ago."""
        at = self._found.get((*shelf, broker))
        return at is not None and self._clock.monotonic() - at < _LATELY_S

    def told(self, shelf: tuple[str, str], broker: str, *, with_messages: bool) -> None:
        key = *shelf, broker
        if key in self._due:
            self._due[key] = self._clock.monotonic() + _AGAIN_S
        if not with_messages:
            self._found.pop(key, None)
            return
        if len(self._found) >= _MOST and key not in self._found:
            self._found.clear()
        self._found[key] = self._clock.monotonic()

    def is_due(self, shelf: tuple[str, str], broker: str) -> bool:
        """Whether a broker that had nothing lately is to be asked again; it is taken as asked then."""
        due = self._due.get((*shelf, broker))
        if due is not None and self._clock.monotonic() < due:
            return False
        self._not_before(shelf, broker)
        return True

    def failed(self, shelf: tuple[str, str], broker: str) -> None:
        self.told(shelf, broker, with_messages=False)
        self._not_before(shelf, broker)

    def _not_before(self, shelf: tuple[str, str], broker: str) -> None:
        key = *shelf, broker
        if len(self._due) >= _MOST and key not in self._due:
            self._due.clear()
        self._due[key] = self._clock.monotonic() + _AFTER_FAILURE_S

    def size_of(self, topic: str) -> float:
        """About how many bytes a message of the topic has, at least 1."""
        return self._sizes.get(topic, _FIRST_SIZE)

    def sized(self, topic: str, size: float) -> None:
        """Messages of the topic had so many bytes on average."""
        known = self._sizes.get(topic)
        if known is None and len(self._sizes) >= _MOST:
            self._sizes.clear()
        mean = size if known is None else known + (size - known) * _WEIGHT
        self._sizes[topic] = max(mean, 1.0)

    def too_large(self, topic: str, size: float) -> None:
        """So large were messages of which there were too many in an answer."""
        self.sized(topic, size)
        self._sizes[topic] = max(self._sizes[topic], size)


class UnservedGroups:
    """Groups that a broker refuses to serve, though it may have messages for them: those messages wait.

    Other brokers serve these groups meanwhile, so no client sees an error; operators must still be informed.
    Reasons by group and broker; soft state, bounded: the next pop reports it again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[tuple[str, str], tuple[float, str]] = {}

    def __repr__(self) -> str:
        return f"<UnservedGroups {len(self._told)}>"

    def now(self) -> Mapping[tuple[str, str], str]:
        """(group, broker) to the broker's remark, for groups that popped recently."""
        oldest = self._clock.monotonic() - _FRESH_S
        self._told = {key: entry for key, entry in self._told.items() if entry[0] >= oldest}
        return {key: why for key, (_, why) in self._told.items()}

    def refused(self, group: str, broker: str, why: str) -> None:
        """A broker refused to give a group anything."""
        key = group, broker
        if key not in self._told:
            if len(self._told) >= _MOST_REFUSALS:
                del self._told[next(iter(self._told))]
            _log.warning("broker %s gives group %s nothing, what it has waits: %s", broker, group, why)
        self._told[key] = self._clock.monotonic(), why

    def served(self, group: str, broker: str) -> None:
        """A broker answered a pop of a group."""
        if self._told:
            self._told.pop((group, broker), None)
