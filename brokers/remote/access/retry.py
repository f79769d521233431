"""Pauses, by the clock that everything else goes by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from popgate.clock import Clock, pause
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command

_FIRST_REST_S = 0.1
_LONGEST_REST_S = 1.0


async def when_not_busy(clock: Clock, patience_s: float, ask: Callable[[], Awaitable[Command]]) -> Command:
    """The answer of a broker, which is asked again while it says that it is busy, for so long.

    A busy broker has done nothing, so anything may be asked of it again.
    """
    until = clock.monotonic() + patience_s
    rest = _FIRST_REST_S
    while True:
        answer = await ask()
        if answer.code != ResponseCode.SYSTEM_BUSY or clock.monotonic() + rest > until:
            return answer
        await pause(clock, rest)
        rest = min(rest * 2, _LONGEST_REST_S)
