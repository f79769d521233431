"""protocols.remoting.consume.pending_commits: a query for a position waits for the commits before it."""

from __future__ import annotations

import asyncio

import pytest

from popgate.wire.frames.codes import RequestCode
from popgate.wire.frames.remoting import Command
from protocols.remoting.consume.pending_commits import PendingCommits
from tests.support.waiting import until


class Under:
    """A commit that is under way, and what was done in which order."""

    def __init__(self) -> None:
        self.pending = PendingCommits()
        self.stored = asyncio.Event()
        self.done: list[str] = []

    async def _commit(self) -> Command | None:
        self.done.append("began")
        await self.stored.wait()
        self.done.append("stored")
        return None

    async def _query(self) -> Command | None:
        self.done.append("asked")
        return None

    def commit(self) -> asyncio.Task[Command | None]:
        return asyncio.ensure_future(
            self.pending.serve(told(RequestCode.UPDATE_CONSUMER_OFFSET), self._commit())
        )

    def query(self, topic: str = "orders") -> asyncio.Task[Command | None]:
        asked = told(RequestCode.QUERY_CONSUMER_OFFSET, topic)
        return asyncio.ensure_future(self.pending.serve(asked, self._query()))


def told(code: RequestCode, topic: str = "orders") -> Command:
    return Command(code, fields={"consumerGroup": "billing", "topic": topic})


async def test_a_query_waits_for_the_commit_before_it() -> None:
    under = Under()
    commit, query = under.commit(), under.query()
    await under.query("parcels")
    assert under.done == ["began", "asked"]
    under.stored.set()
    await asyncio.gather(commit, query)
    assert under.done == ["began", "asked", "stored", "asked"]
    assert repr(under.pending) == "<PendingCommits 0>"


async def test_a_query_that_is_cut_off_while_it_waits_never_begins() -> None:
    """Its coroutine is closed: one that is left would be a warning, which is an error here."""
    under = Under()
    commit, query = under.commit(), under.query()
    await until(lambda: under.done == ["began"])
    query.cancel()
    with pytest.raises(asyncio.CancelledError):
        await query
    under.stored.set()
    await commit
    assert under.done == ["began", "stored"]
