"""Retries of requests that a busy broker refused; pauses use the injected `Clock`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from popgate.clock import Clock, pause
from popgate.wire.frames.codes import ResponseCode
from popgate.wire.frames.remoting import Command

_FIRST_REST_S = 0.1
_LONGEST_REST_S = 1.0


async def when_not_busy(clock: Clock, patience_s: float, ask: Callable[[], Awaitable[Command]]) -> Command:
    """The response of a broker; the request is retried for up to `patience_s` while the broker is busy.

    A busy broker has not processed the request, so any request may be repeated.
    """
    until = clock.monotonic() + patience_s
    rest = _FIRST_REST_S
    while True:
        answer = await ask()
        if answer.code != ResponseCode.SYSTEM_BUSY or clock.monotonic() + rest > until:
            return answer
        await pause(clock, rest)
        rest = min(rest * 2, _LONGEST_REST_S)
