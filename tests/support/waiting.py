"""Waiting for a condition: one helper for all tests, and one patience.

The patience is 120 s, times `TEST_PATIENCE` (a factor, 1 unless set), times what the machine shows: a fixed
piece of work is timed once per run, and a machine that is slow or busy at that moment gets up to four times
as much. The measured scale is kept in the environment, so that workers of xdist and other child processes do
not measure again.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import time
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any, TypeVar, overload

T = TypeVar("T")

BASE_S = 120.0
"""Long enough that a machine that stood still for 10 s has not used up all of it."""
FACTOR = "TEST_PATIENCE"
MEASURED_SCALE = "TEST_PATIENCE_MEASURED"
"""Written by the first process of a run, read by all others."""
MAX_SCALE = 4.0
_WORK_ROUNDS = 700_000
_WORK_S = 0.05
"""What `_WORK_ROUNDS` take on the machine of two cores that the tests were written on, when it is quiet."""
_MAX_PAUSE_S = 0.05
_MIN_PAUSE_S = 0.002
"""Enough for what follows from one fact in the next turns of the loop: a test seldom sees half of it."""
_PAUSE_SHARE = 0.1
"""A pause lasts a tenth of the time waited so far: short waits end soon, long ones take no processor time."""


def time_work() -> float:
    """The seconds that a fixed piece of work takes now."""
    start, value = time.perf_counter(), 0
    for number in range(_WORK_ROUNDS):
        value = (value * 31 + number) & 0xFFFFFFFF
    return time.perf_counter() - start


def scale_of(work_s: float) -> float:
    """The scale for a machine on which the work took so long: at least 1, at most `MAX_SCALE`."""
    return min(max(work_s / _WORK_S, 1.0), MAX_SCALE)


def patience_of(environment: MutableMapping[str, str], measure: Callable[[], float] = time_work) -> float:
    """The patience in seconds; measures if no other process of the run has, and notes it in `environment`.

    Raises ValueError if the factor is not a positive number.
    """
    factor = float(environment.get(FACTOR) or 1.0)
    if not 0 < factor < math.inf:
        raise ValueError(f"{FACTOR} is a factor above 0, not {factor}")
    if not environment.get(MEASURED_SCALE):
        environment[MEASURED_SCALE] = f"{scale_of(measure()):.2f}"
    return BASE_S * factor * float(environment[MEASURED_SCALE])


PATIENCE_S = patience_of(os.environ)
"""How long a test waits for what must happen, in seconds of the real clock: only a test that fails does."""


class NotInTimeError(AssertionError):
    """A condition did not become true; says which, and what was seen last."""


@overload
async def until(
    condition: Callable[[], Coroutine[Any, Any, T]],
    within: float = ...,
    *,
    what: str = ...,
    seen: Callable[[], object] | None = ...,
    turn: Callable[[], object] | None = ...,
    pause_s: float | None = ...,
) -> T: ...
@overload
async def until(
    condition: Callable[[], T],
    within: float = ...,
    *,
    what: str = ...,
    seen: Callable[[], object] | None = ...,
    turn: Callable[[], object] | None = ...,
    pause_s: float | None = ...,
) -> T: ...
async def until(
    condition: Callable[[], Any],
    within: float = PATIENCE_S,
    *,
    what: str = "",
    seen: Callable[[], object] | None = None,
    turn: Callable[[], object] | None = None,
    pause_s: float | None = None,
) -> Any:
    """Evaluate `condition` again and again; return its first true value. It may be a coroutine function, like
    `turn` and `seen`.

    `turn` is called between two evaluations, before the pause: it moves a clock, or lets the loop work.
    Pauses grow from 2 to 50 ms; `pause_s` is a fixed one instead, 0 for nothing but a turn of the loop.
    `what` names the condition if the test fails, `seen` returns what is shown instead of the last value.
    Raises NotInTimeError after `within` seconds.
    """
    start = time.monotonic()
    while not (value := await _result(condition)):
        waited = time.monotonic() - start
        if waited >= within:
            last = value if seen is None else await _result(seen)
            raise NotInTimeError(_failure(condition, within, what, last))
        if turn is not None:
            await _result(turn)
        await asyncio.sleep(_pause(waited) if pause_s is None else pause_s)
    return value


def wait_until(
    condition: Callable[[], T],
    within: float = PATIENCE_S,
    *,
    what: str = "",
    seen: Callable[[], object] | None = None,
    turn: Callable[[], object] | None = None,
    pause_s: float | None = None,
) -> T:
    """As `until`, where there is no event loop."""
    start = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - start
        if waited >= within:
            raise NotInTimeError(_failure(condition, within, what, value if seen is None else seen()))
        if turn is not None:
            turn()
        time.sleep(_pause(waited) if pause_s is None else pause_s)
    return value


async def _result(function: Callable[[], object]) -> object:
    value = function()
    return await value if asyncio.iscoroutine(value) else value


def _pause(waited: float) -> float:
    return min(max(waited * _PAUSE_SHARE, _MIN_PAUSE_S), _MAX_PAUSE_S)


def _failure(condition: Callable[[], object], within: float, what: str, last: object) -> str:
    return f"not within {within:g} s: {what or _description(condition)}; last seen: {last!r}"


def _description(condition: Callable[[], object]) -> str:
    """The name of a function; of a lambda, which has none, its line of source."""
    name = getattr(condition, "__qualname__", repr(condition))
    if "<lambda>" not in name:
        return name
    try:
        return inspect.getsource(condition).partition("\n")[0].strip()
    except OSError:
        return name
