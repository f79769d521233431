"""The deadline of a stopping gateway, and the share of the remaining time that each part gets."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from popgate.clock import Clock
from proxy.lifetime.end_signals import ended_in
from proxy.logs import logger

_log = logger("popgate.app")
_CLOSING_PART = 0.1
_CLOSING_S = 1.0
"""The share of the drain time for closing after the doors, and its maximum in seconds."""
_LAME_PART = 0.5
"""Of the time to end in, the most that is served on as before."""
DOORS_PART = 0.4
"""The share of the time after the doors are closed in which calls that were cut off return their messages."""


def closing_s(drain_s: float) -> float:
    """Of the seconds to end in, those that no client is served any more."""
    return min(drain_s * _CLOSING_PART, _CLOSING_S)


def lame_duck_s(wanted_s: float, drain_s: float) -> float:
    """For how long all is served on before the doors take no more, of the seconds to end in."""
    return min(wanted_s, drain_s * _LAME_PART)


async def all_drained(*draining: Coroutine[Any, Any, None]) -> None:
    """See listeners drained. One that fails is logged and holds up nothing: it is stopped with the others."""
    for outcome in await asyncio.gather(*draining, return_exceptions=True):
        if isinstance(outcome, Exception):
            _log.error("a listener could not be drained", exc_info=outcome)


class Deadline:
    """One for all parts of a gateway; nothing is bounded until `begin`. `ends`: seconds of the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ends: float | None = None

    def __repr__(self) -> str:
        return f"<Deadline {self.ends}>"

    def begin(self, ends: float) -> None:
        self.ends = ends

    def left(self) -> float | None:
        """Seconds; None: as many as it takes."""
        return None if self.ends is None else max(self.ends - self._clock.monotonic(), 0.0)

    def after(self, part: float) -> float | None:
        """The time at which that share of the remaining time is over."""
        left = self.left()
        return None if left is None else self._clock.monotonic() + left * part

    async def close(
        self, resource: object, closing: Coroutine[Any, Any, None], part: float = 1.0, least_s: float = 0.0
    ) -> None:
        """See one part of the gateway closed, within `part` of the time that is left, `least_s` at the least.

        One that fails is logged and holds up nothing; one that takes longer is logged and left alone.
        """
        left = self.left()
        try:
            if not await ended_in(closing, None if left is None else max(left * part, least_s), self._clock):
                _log.warning("not closed in time, and left alone", what=repr(resource))
        except Exception:
            _log.exception("could not be closed", what=repr(resource))
