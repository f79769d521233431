"""Groups that a broker refuses to serve, though it may have messages for them: those messages wait.

Other brokers serve these groups meanwhile, so no client sees an error; operators must still be informed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from popgate.clock import Clock

_log = logging.getLogger(__name__)

_MOST = 1_024
_FRESH_S = 300.0
"""Present consumers pop repeatedly: a refusal that was not repeated within this time is obsolete."""


class UnservedGroups:
    """Reasons by group and broker; soft state, bounded: the next pop reports it again."""

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
            if len(self._told) >= _MOST:
                del self._told[next(iter(self._told))]
            _log.warning("broker %s gives group %s nothing, what it has waits: %s", broker, group, why)
        self._told[key] = self._clock.monotonic(), why

    def served(self, group: str, broker: str) -> None:
        """A broker answered a pop of a group."""
        if self._told:
            self._told.pop((group, broker), None)
