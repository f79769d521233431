"""Resets of groups by operators, and the listeners that take part while they are made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from popgate.context import Context
from popgate.model import QueueOffsets


@dataclass(slots=True)
class Reset:
    """A group is set to other offsets of a topic.

    `queues`: the queues to reset, by broker name and queue id; None: all. `offsets`: where clients are to
    continue, added by the caller when the reset is done.
    """

    context: Context
    group: str
    topic: str
    queues: frozenset[tuple[str, int]] | None = None
    offsets: QueueOffsets = field(default_factory=dict)


ResetListener = Callable[[Reset], AbstractAsyncContextManager[None]]
"""Entered before a reset is made, left after it."""


class PositionKeeper(Protocol):
    """A door with members of groups that commit positions of their own."""

    def holding(self, group: str, topic: str) -> AbstractContextManager[None]:
        """While a client sets a position by itself: no position of a member is kept."""

    def go_on_at(
        self, group: str, topic: str, broker: str, queue_id: int, offset: int, *, besides: object
    ) -> None:
        """A client has set a group's position: members are to continue there. `besides`: its connection."""


class ResetListeners:
    """All doors with clients that keep positions or messages of their own: each looks after its clients."""

    def __init__(self) -> None:
        self._here: list[ResetListener] = []
        self._joining: list[Callable[[ResetListener], None]] = []
        """One for each reset that is being made."""

    def __repr__(self) -> str:
        return f"<ResetListeners {len(self._here)}>"

    def add(self, listener: ResetListener) -> Callable[[], None]:
        """Call the returned function once, when the listener ends.

        It takes part in resets that are being made: a door that a reload opens has no clients yet, but may
        have some before they are done.
        """
        self._here.append(listener)
        for join in self._joining:
            join(listener)
        return partial(self._here.remove, listener)

    @asynccontextmanager
    async def during(self, reset: Reset) -> AsyncIterator[None]:
        """Make the reset inside of this."""
        async with AsyncExitStack() as entered:
            late: list[asyncio.Task[None]] = []

            def join(listener: ResetListener) -> None:
                late.append(asyncio.create_task(entered.enter_async_context(listener(reset))))

            here = tuple(self._here)
            self._joining.append(join)
            try:
                for listener in here:
                    await entered.enter_async_context(listener(reset))
                yield
            finally:
                self._joining.remove(join)
                # All of them first: what is entered later would never be left.
                for outcome in await asyncio.gather(*late, return_exceptions=True):
                    if isinstance(outcome, BaseException):
                        raise outcome
