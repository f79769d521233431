"""The start position of a group on a queue that it never read: the one that its first client requests.

A position must not be set twice: the second one might skip what was read since the first. So of all clients
that start at the same time, through any gateway, the one that holds a lease sets it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import uuid4

from popgate.clock import pause
from popgate.context import Context
from popgate.errors import IllegalOffset
from processors.requests import Pull
from protocols.remoting.requests import DoorContext, Peer

_TRIES: Final = 20
_PAUSE_S: Final = 0.1
_MOST_KNOWN: Final = 16_384
"""Queues of one connection."""


class Beginnings:
    """Sets first positions."""

    def __init__(self, door_context: DoorContext) -> None:
        self._processor = door_context.processor
        self._clock = door_context.clock
        self._under_way: dict[tuple[str, str, str, int], asyncio.Task[bool]] = {}
        self._known: dict[Peer, set[tuple[str, str, str, int]]] = {}
        """Queues that clients of a connection read by true pull, on which their groups have begun."""

    def __repr__(self) -> str:
        return f"<Beginnings {len(self._under_way)}>"

    async def begun_before(self, peer: Peer, context: Context, asked: Pull) -> bool:
        """As `begun`, called before every true pull: once the group is mapped, others would start where they
        ask, and skip what this client has not finished, and newer messages."""
        key = asked.group or "", asked.topic, asked.broker, asked.queue_id
        known = self._known.get(peer)
        if known is None:
            known = self._known[peer] = set()
            peer.on_gone(partial(self._forget, peer))
        if key not in known:
            if not await self.begun(context, asked):
                return False
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known.add(key)
        return True

    def _forget(self, peer: Peer) -> None:
        self._known.pop(peer, None)

    async def begun(self, context: Context, asked: Pull) -> bool:
        """Set the group's start position on the queue; False: another client holds the lease for very long.

        Raises what `MessagingProcessor.committed` and `commit` raise.
        """
        group = asked.group or ""
        place = asked.topic, asked.broker, asked.queue_id
        if await self._processor.offsets.committed(context, group, *place) is not None:
            return True
        key = (group, *place)
        task = self._under_way.get(key)
        if task is None:
            alone = replace(context, allowance=None)
            task = asyncio.get_running_loop().create_task(self._begin(alone, group, asked))
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._over(key, done))
        return await asyncio.shield(task)

    async def _begin(self, context: Context, group: str, asked: Pull) -> bool:
        processor = self._processor
        place = asked.topic, asked.broker, asked.queue_id
        owner = f"popgate-begins-{uuid4()}"
        for _ in range(_TRIES):
            if await processor.classic.lease(context, group, owner, [place]):
                try:
                    if await processor.offsets.committed(context, group, *place) is None:
                        await self._set(context, group, asked)
                finally:
                    await processor.classic.end_lease(context, group, owner, [place])
                return True
            await pause(self._clock, _PAUSE_S)
            if await processor.offsets.committed(context, group, *place) is not None:
                return True
        return False

    def _over(self, key: tuple[str, str, str, int], task: asyncio.Task[bool]) -> None:
        self._under_way.pop(key, None)
        if not task.cancelled():
            task.exception()  # all who waited may be gone

    async def _set(self, context: Context, group: str, asked: Pull) -> None:
        place = asked.topic, asked.broker, asked.queue_id
        try:
            await self._processor.offsets.commit(context, group, *place, max(asked.offset, 0))
        except IllegalOffset as error:
            await self._processor.offsets.commit(context, group, *place, error.nearest)
