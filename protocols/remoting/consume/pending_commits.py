"""Commits of positions in progress, and queries that wait for them.

Clients commit one-way and wait for no response. So a client that takes a queue over may ask for its position
while its predecessor's last commit is still on its way to a broker: behind a gateway that takes longer than
at a broker itself, which only stores it in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command

ORDERED: Final = frozenset({RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET})

_Names = tuple[str, str]
"""A group and a topic."""


class PendingCommits:
    """Makes a query for a position wait for the commits that came before it."""

    def __init__(self) -> None:
        self._under_way: dict[_Names, dict[asyncio.Future[None], None]] = {}

    def __repr__(self) -> str:
        return f"<PendingCommits {sum(map(len, self._under_way.values()))}>"

    async def serve(self, command: Command, serving: Coroutine[Any, Any, Command | None]) -> Command | None:
        """The response to one of `ORDERED`: a query of a position starts after earlier commits of it."""
        names = command.fields.get("consumerGroup", ""), command.fields.get("topic", "")
        if command.code == RequestCode.QUERY_CONSUMER_OFFSET:
            if before := self._under_way.get(names):
                try:
                    await asyncio.wait(list(before))
                except BaseException:
                    serving.close()  # it never begins; one that is over cannot be closed in the compiled form
                    raise
            return await serving
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        its = self._under_way.setdefault(names, {})
        its[done] = None
        try:
            return await serving
        finally:
            done.set_result(None)
            del its[done]
            if not its:
                del self._under_way[names]
