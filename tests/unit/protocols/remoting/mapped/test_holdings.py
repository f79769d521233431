"""protocols.remoting.mapped.holdings: a connection that reads as many queues as it may."""

from __future__ import annotations

from typing import Any

import pytest

from popgate.context import Context
from protocols.remoting.mapped import holdings
from protocols.remoting.mapped.offsets import QueueKey
from tests.unit.protocols.remoting.conftest import Stage
from tests.unit.protocols.remoting.mapped.conftest import BROKER, GROUP, TOPIC, Member, records, send


async def test_room_that_is_made_during_a_pull_loses_nothing_that_it_takes(
    stage: Stage, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it takes something a pull may wait for a broker."""
    await send(stage, b"one", b"two")
    begins, mapped = await member.query(), member.door.mapped
    origin = mapped._brokers.origin

    async def meanwhile(context: Context) -> Any:
        (connection,) = mapped._connections.values()
        assert connection.queue(QueueKey(GROUP, TOPIC, BROKER, 7)) is not None
        return await origin(context)

    with monkeypatch.context() as patched:
        patched.setattr(holdings, "MOST_QUEUES", 1)
        patched.setattr(mapped._brokers, "origin", meanwhile)
        taken = records(await member.pull(begins, wait=False))
    assert [bytes(record.body) for record in taken] == [b"one", b"two"]
    await member.update(taken[1].offset + 1)

    async def done() -> bool:
        return await stage.processor.offsets.committed(Context(), GROUP, TOPIC, BROKER, 0) == 2

    await stage.until(done)
    assert mapped.figures()["mapped_held"] == 0
