"""One task shared by several waiting callers."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from popgate.errors import BrokerUnavailable

Value = TypeVar("Value")


async def shared(task: asyncio.Task[Value]) -> Value:
    """The outcome of a task that goes on when this caller is cancelled.

    If the task itself is cancelled because the gateway stops, this raises BrokerUnavailable: its callers
    were not cancelled.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if task.cancelled() and caller is not None and not caller.cancelling():
            raise BrokerUnavailable("the gateway stops") from None
        raise
