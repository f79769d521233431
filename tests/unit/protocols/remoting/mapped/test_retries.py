"""`%RETRY%group` of a mapped group where it cannot be popped: one member reads it, and another after it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from popgate.context import Context
from popgate.model import TopicConfig
from popgate.naming import retry_topic
from popgate.wire.frames.codes import ResponseCode
from protocols.remoting.mapped.offsets import VIRTUAL
from tests.unit.protocols.remoting.conftest import Stage
from tests.unit.protocols.remoting.mapped.conftest import (
    BROKER,
    GROUP,
    Door,
    Member,
    behind,
    bodies,
    records,
    send,
)

RETRIES = retry_topic(GROUP)


@pytest.fixture
async def door(stage: Stage) -> Door:
    await stage.topic("orders", queues=1)
    await stage.group(GROUP)
    await stage.broker.create_topic(TopicConfig(RETRIES, read_queues=1, write_queues=1))
    return Door(stage)


@pytest.fixture(autouse=True)
def as_a_rocketmq(stage: Stage) -> Iterator[None]:
    """Before a RocketMQ `%RETRY%group` cannot be popped."""
    kept = stage.broker.traits
    stage.broker.traits = replace(kept, pops_group_retries=False)
    yield
    stage.broker.traits = kept


async def kept(stage: Stage) -> int | None:
    return await stage.processor.offsets.committed(Context(), GROUP, RETRIES, BROKER, 0)


async def test_one_member_reads_them_by_their_real_offsets(stage: Stage, member: Member) -> None:
    other = await member.door.member(2)
    await send(stage, b"one", b"two", topic=RETRIES)
    answer = await member.pull(0, wait=False, topic=RETRIES)
    assert answer.code == ResponseCode.SUCCESS
    first, second = records(answer)
    assert (bodies([first, second]), [first.offset, second.offset]) == ([b"one", b"two"], [0, 1])
    assert behind(answer) == 2
    for _ in range(3):
        assert (await other.pull(0, wait=False, topic=RETRIES)).code == ResponseCode.PULL_NOT_FOUND
        await stage.pass_s(30)
        await member.pull(2, wait=False, topic=RETRIES)


async def test_the_next_reader_goes_on_where_the_first_one_had_finished(stage: Stage, member: Member) -> None:
    other = await member.door.member(2)
    await send(stage, b"one", b"two", topic=RETRIES)
    await member.pull(0, wait=False, topic=RETRIES)
    await member.update(1, topic=RETRIES)
    assert await kept(stage) == 1
    member.peer.close()
    await stage.pass_s(30)
    answer = await other.pull(0, wait=False, topic=RETRIES)
    assert bodies(records(answer)) == [b"two"]
    assert behind(answer) == 2


@pytest.mark.parametrize("way", ["breaks off", "leaves"])
async def test_one_that_goes_while_it_asks_for_the_lease_keeps_it_from_nobody(
    stage: Stage, member: Member, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    other = await member.door.member(2)
    await send(stage, b"one", topic=RETRIES)
    lock, asked, go_on = stage.broker.lock, asyncio.Event(), asyncio.Event()

    async def slow(context: Context, group: str, owner: str, queues: Any) -> Any:
        locked = await lock(context, group, owner, queues)
        asked.set()
        await go_on.wait()
        return locked

    monkeypatch.setattr(stage.broker, "lock", slow)
    pull = asyncio.ensure_future(member.pull(0, wait=False, topic=RETRIES))
    await asked.wait()
    if way == "breaks off":
        # As its connection does it when it is over.
        pull.cancel()
        member.peer.close()
    else:
        await member.leave()
        await stage.pass_s(2)
    go_on.set()
    await asyncio.wait([pull])
    monkeypatch.undo()
    await stage.pass_s(0)
    assert bodies(records(await other.pull(0, wait=False, topic=RETRIES))) == [b"one"]


async def test_a_reader_that_says_nothing_any_more_is_followed_when_its_lease_is_over(
    stage: Stage, member: Member
) -> None:
    other = await member.door.member(2)
    await send(stage, b"one", topic=RETRIES)
    await member.pull(0, wait=False, topic=RETRIES)
    await stage.pass_s(61)
    assert bodies(records(await other.pull(0, wait=False, topic=RETRIES))) == [b"one"]
    # Nothing that the first one says counts from then on.
    await member.update(1, topic=RETRIES)
    assert await kept(stage) is None
    await other.update(1, topic=RETRIES)
    assert await kept(stage) == 1


async def test_who_does_not_read_them_sets_no_position(stage: Stage, member: Member) -> None:
    other = await member.door.member(2)
    await send(stage, b"one", b"two", topic=RETRIES)
    await member.pull(0, wait=False, topic=RETRIES)
    await other.pull(0, wait=False, topic=RETRIES)
    await other.update(2, topic=RETRIES)
    assert await kept(stage) is None
    await member.pull(2, wait=False, topic=RETRIES, commit=2)
    assert await kept(stage) == 2
    # It may have heard of it late.
    await member.update(1, topic=RETRIES)
    assert await kept(stage) == 2


async def test_a_number_begins_anew(stage: Stage, member: Member) -> None:
    await send(stage, b"one", topic=RETRIES)
    answer = await member.pull(VIRTUAL + 5, wait=False, topic=RETRIES)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert behind(answer) == 0


async def test_a_pull_that_waits_is_answered_when_something_comes(stage: Stage, member: Member) -> None:
    pull = await member.start(0, topic=RETRIES)
    await send(stage, b"one", topic=RETRIES)
    await stage.until(lambda: asyncio.sleep(0, pull.done()))
    assert bodies(records(await pull)) == [b"one"]


async def test_a_drain_answers_those_that_wait(stage: Stage, member: Member) -> None:
    other = await member.door.member(2)
    pulls = [await member.start(0, topic=RETRIES), await other.start(0, topic=RETRIES)]
    member.door.drain()
    await stage.until(lambda: asyncio.sleep(0, all(one.done() for one in pulls)))
    assert {(await one).code for one in pulls} == {ResponseCode.PULL_NOT_FOUND}


async def test_of_queues_that_are_not_there_nothing_is_kept(stage: Stage, member: Member) -> None:
    await member.pull(0, wait=False, topic=RETRIES)
    for queue_id in (-1, 1, (1 << 31) - 1):
        answer = await member.pull(0, wait=False, topic=RETRIES, queue_id=queue_id)
        assert answer.code == ResponseCode.SYSTEM_ERROR
    (connection,) = member.door.mapped._connections.values()
    assert {key.queue_id for key in (*connection.retries._asked, *connection.retries._leased)} == {0}
