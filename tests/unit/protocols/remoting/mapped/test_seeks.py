"""Positions that members of mapped groups set by themselves, and those that they commit in normal work."""

from __future__ import annotations

import pytest

from popgate.context import Context
from popgate.model import Reading, StartFrom
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.messages.records import Record
from protocols.remoting.clients.remoting_client import consumer_key
from protocols.remoting.mapped.offsets import VIRTUAL, QueueKey
from protocols.remoting.mapped.seeks import SOUGHT_S
from tests.unit.protocols.remoting.conftest import Caller, FakePeer, Stage
from tests.unit.protocols.remoting.mapped.conftest import (
    BROKER,
    GROUP,
    TOPIC,
    Door,
    Member,
    behind,
    bodies,
    records,
    send,
)

BEGINNING = 0


async def done(stage: Stage) -> int | None:
    """Below this the group has finished everything."""
    return await stage.processor.offsets.committed(Context(), GROUP, TOPIC, BROKER, 0)


async def search(caller: Caller, time_ms: int = 0) -> int:
    """The first offset of the queue at a time."""
    fields = {"topic": TOPIC, "queueId": 0, "timestamp": time_ms, "bname": BROKER}
    return int((await caller.ok(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)).fields["offset"])


async def finish(member: Member, *texts: bytes) -> None:
    """The member gets these messages, and finishes them."""
    await send(member.door.stage, *texts)
    taken = await member.take()
    assert bodies(taken) == list(texts)
    await member.update(taken[-1].offset + 1)


async def reset_and_take(stage: Stage, member: Member) -> list[Record]:
    """The member finishes three messages, is reset to the first one, goes there, and gets them again."""
    await finish(member, b"one", b"two", b"three")
    await stage.processor.offsets.reset(Context(), GROUP, TOPIC, StartFrom.FIRST)
    await stage.pass_s(10)
    await member.update(BEGINNING)
    return await member.take()


def is_mapped(stage: Stage) -> bool:
    return stage.processor.mapped_groups.is_mapped(GROUP)


class TestSet:
    async def test_a_reset_by_time_is_done_on_true_pull(self, stage: Stage, member: Member) -> None:
        """As Java's resetOffsetByTimeStamp: it looks, rests for 10 s, commits, and asks."""
        await finish(member, b"one", b"two", b"three")
        assert await search(member) == BEGINNING
        await stage.pass_s(10)
        await member.update(BEGINNING)
        assert not is_mapped(stage)
        assert await member.query() == BEGINNING
        found = records(await member.pull(BEGINNING, wait=False))
        assert [(one.offset, bytes(one.body)) for one in found] == [(0, b"one"), (1, b"two"), (2, b"three")]
        await member.update(2)
        assert await done(stage) == 2

    async def test_the_group_stays_on_true_pull_while_it_is_there(self, stage: Stage, member: Member) -> None:
        await finish(member, b"one", b"two")
        other = await member.door.member(2, proven=False)
        await search(member)
        await member.update(BEGINNING)
        for _ in range(4):
            await stage.pass_s(5)
            await other.query()
            await other.pull(0, wait=False)
        assert not is_mapped(stage)
        assert "sets positions" in stage.processor.mapped_groups.choice(GROUP).why
        await member.leave()
        await member.door.until_mapped()

    @pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "at another listener"])
    async def test_others_go_where_it_set_the_group(
        self, stage: Stage, member: Member, elsewhere: bool
    ) -> None:
        await finish(member, b"one", b"two", b"three")
        other = await (Door(stage) if elsewhere else member.door).member(2, proven=False)
        await send(stage, b"four")
        (four,) = await other.take()
        await search(member)
        await member.update(BEGINNING)
        answer = await other.pull(four.offset + 1, wait=False)
        assert (answer.code, behind(answer)) == (ResponseCode.PULL_OFFSET_MOVED, BEGINNING)
        # What it tells late is where it was before.
        await other.update(3)
        assert await done(stage) == BEGINNING
        assert await other.query() == BEGINNING
        found = records(await other.pull(BEGINNING, wait=False))
        assert bodies(found)[:3] == [b"one", b"two", b"three"]
        await other.update(3)
        assert await done(stage) == 3

    async def test_forwards_too(self, stage: Stage, member: Member) -> None:
        await send(stage, b"one", b"two", b"three")
        await member.take()
        end = await search(member, stage.clock.now_ms() + 1)
        assert end == 3
        await member.update(end)
        assert not is_mapped(stage)
        assert await member.query() == end

    async def test_a_reset_that_nobody_has_read_from_does_not_refuse_it(
        self, stage: Stage, member: Member
    ) -> None:
        """Members of a mapped group pop: no reader has begun from the reset."""
        taken = await reset_and_take(stage, member)
        await member.update(taken[-1].offset + 1)
        assert await done(stage) == 3
        assert await search(member) == BEGINNING
        await stage.pass_s(10)
        await member.update(BEGINNING)
        assert not is_mapped(stage)
        assert await done(stage) == BEGINNING
        assert await member.query() == BEGINNING
        await member.update(2)
        assert await done(stage) == 2

    async def test_a_member_that_goes_on_by_true_pull_after_a_reset_is_not_sent_back(
        self, stage: Stage, member: Member
    ) -> None:
        """Its next pull has a number of before: with the answer to it, it has begun to read."""
        taken = await reset_and_take(stage, member)
        await member.update(taken[1].offset)
        await member.door.member(2, proven=False)
        stage.processor.mapped_groups.told(consumer_key("client@2", GROUP), Reading.TRUE_PULL)
        await member.door.until_mapped(False)
        answer = await member.pull(taken[-1].offset + 1, wait=False)
        # What it holds comes by the retries of its group.
        assert (answer.code, behind(answer)) == (ResponseCode.PULL_OFFSET_MOVED, 3)
        await send(stage, b"four")
        assert bodies(records(await member.pull(3, wait=False))) == [b"four"]
        await member.update(4)
        assert await done(stage) == 4

    async def test_a_position_that_nobody_told_it(self, stage: Stage, member: Member) -> None:
        """As Java's updateConsumeOffset of a queue that rests."""
        await finish(member, b"one", b"two", b"three")
        await stage.pass_s(10)
        await member.update(1)
        assert not is_mapped(stage)
        assert await member.query() == 1

    async def test_one_out_of_bounds_counts_as_the_nearest(self, stage: Stage, member: Member) -> None:
        await finish(member, b"one", b"two")
        await stage.pass_s(10)
        other = await member.door.member(2, proven=False)
        await member.update(99)
        assert not is_mapped(stage)
        assert await member.query() == 2
        answer = await other.pull(VIRTUAL + 700, wait=False)
        assert (answer.code, behind(answer)) == (ResponseCode.PULL_OFFSET_MOVED, 2)


class TestNotSet:
    async def test_what_it_found_by_time_long_ago(self, stage: Stage, member: Member) -> None:
        await finish(member, b"one", b"two", b"three")
        assert await search(member) == BEGINNING
        await stage.pass_s(SOUGHT_S + 1)
        await member.update(BEGINNING)
        assert is_mapped(stage)
        assert await done(stage) == 3

    async def test_what_it_found_by_time_before_it_read_on(self, stage: Stage, member: Member) -> None:
        other = await member.door.member(2, proven=False, model="BROADCASTING")
        await member.door.until_mapped(False)
        await send(stage, b"one", b"two")
        assert await member.query() == 0
        end = await search(member, stage.clock.now_ms() + 1)
        assert len(records(await member.pull(0, wait=False))) == 2
        assert not member.door.mapped.sets_position(member.peer, QueueKey(GROUP, TOPIC, BROKER, 0), end)
        await member.update(end)
        await other.leave()
        await member.door.until_mapped()
        assert await done(stage) == 2

    async def test_what_it_was_told_it_tells_over_and_over(self, stage: Stage, member: Member) -> None:
        await finish(member, b"one", b"two")
        await send(stage, b"three")
        (three,) = await member.take()
        for position in (2, -1, 0, 2, -(1 << 40)):
            await stage.pass_s(10)
            await member.update(position)
            await member.pull(three.offset + 1, commit=position, wait=False)
        assert is_mapped(stage)
        assert await done(stage) == 2

    async def test_also_late_when_it_has_finished_something(self, stage: Stage, member: Member) -> None:
        await finish(member, b"one", b"two")
        await stage.pass_s(20)
        await member.update(BEGINNING)
        assert is_mapped(stage)
        assert await done(stage) == 2

    async def test_what_it_still_had_when_it_took_the_queue(self, stage: Stage, member: Member) -> None:
        await finish(member, b"one", b"two", b"three")
        await member.query()
        await stage.pass_s(9)
        await member.update(1)
        assert is_mapped(stage)
        assert await done(stage) == 3

    async def test_what_it_read_by_true_pull_on_this_connection(self, stage: Stage, member: Member) -> None:
        other = await member.door.member(2, proven=False, model="BROADCASTING")
        await member.door.until_mapped(False)
        await send(stage, b"one", b"two", b"three")
        assert await member.query() == 0
        assert len(records(await member.pull(0, wait=False))) == 3
        await other.leave()
        await member.door.until_mapped()
        await stage.pass_s(20)
        await member.update(2)
        assert is_mapped(stage)
        assert await done(stage) == 0

    async def test_what_it_read_through_another_gateway(self, stage: Stage, member: Member) -> None:
        await finish(member, b"one", b"two", b"three")
        member.peer.close()
        again = await member.door.member(1, proven=False)
        await again.pull(VIRTUAL + 700, wait=False)
        await member.door.until_mapped()
        await stage.pass_s(20)
        for position in (1, 2, 3):
            await again.update(position)
        assert is_mapped(stage)
        assert await done(stage) == 3

    async def test_where_it_began_by_time(self, stage: Stage, door: Door) -> None:
        """As CONSUME_FROM_TIMESTAMP: there is no position, so it looks for one; some commit it at once."""
        await stage.topic("old", queues=1)
        await send(stage, b"one", b"two", topic="old")
        await stage.pass_s(7200)
        member = await door.member()
        fields = {**member._queue(0, "old"), "setZeroIfNotFound": False}
        refused = await member.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        assert refused.code == ResponseCode.QUERY_NOT_FOUND
        looked = {"topic": "old", "queueId": 0, "timestamp": 0, "bname": BROKER}
        await member.ok(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, looked)
        await member.pull(0, wait=False, topic="old")
        await stage.pass_s(20)
        await member.update(0, topic="old")
        assert is_mapped(stage)

    async def test_what_a_tool_looks_for_and_sets(self, stage: Stage, member: Member) -> None:
        await finish(member, b"one", b"two", b"three")
        await stage.pass_s(20)
        tool = Caller(*member.door.rooms, peer=FakePeer("10.9.9.9:1"), client_id="tool")
        await search(tool)
        fields = {**member._queue(0, TOPIC), "commitOffset": 1}
        await tool.ok(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        assert is_mapped(stage)
        # It is the group's from then on: what is below is finished, and the rest comes again.
        assert bodies(await member.take()) == [b"two", b"three"]

    async def test_where_an_operator_sent_it(self, stage: Stage, member: Member) -> None:
        await finish(member, b"one", b"two", b"three")
        await stage.pass_s(20)
        await stage.processor.offsets.reset(Context(), GROUP, TOPIC, StartFrom.FIRST)
        for _ in range(3):
            await stage.pass_s(10)
            await member.update(BEGINNING)
        assert is_mapped(stage)
        assert bodies(await member.take()) == [b"one", b"two", b"three"]


@pytest.mark.parametrize("offset", [-1, 0])
async def test_nothing_is_known_of_a_client_that_did_not_ask(
    stage: Stage, member: Member, offset: int
) -> None:
    await finish(member, b"one", b"two")
    other = await member.door.member(2, proven=False)
    await stage.pass_s(20)
    await search(other)
    await other.update(offset)
    assert is_mapped(stage)
    assert await done(stage) == 2
