"""Cancel a call between any two callbacks of the event loop: a race is tried out, not waited for.

Together with connections in memory (`tests.support.memory_network`) every step of both sides is a callback of
the loop, and so each moment at which a cancellation can arrive has a number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def cancelled_before(number: int, call: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T | None:
    """Run a call and cancel it before callback `number` of the loop, counted from 0.

    None: it was cancelled. Otherwise its result: it was done before, or at this moment already.
    """
    loop = asyncio.get_running_loop()
    call_soon = loop.call_soon
    count = 0

    def counting(callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        def counted() -> None:
            nonlocal count
            if count == number:
                task.cancel()
            count += 1
            callback(*args)

        return call_soon(counted, context=context)

    loop.call_soon = counting  # type: ignore[assignment, method-assign]
    try:
        task = asyncio.ensure_future(call)
        await asyncio.wait((task,))
    finally:
        loop.call_soon = call_soon  # type: ignore[method-assign]
    return None if task.cancelled() else task.result()
