"""Resets of groups whose push consumers run: what comes again, what is skipped, and what commits undo."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from popgate.context import Context
from popgate.errors import BrokerUnavailable
from popgate.model import Queue, QueueOffsets, StartFrom
from popgate.wire.bodies.consumer_info import decode_offsets
from popgate.wire.bodies.heartbeats import ACTIVELY
from popgate.wire.bodies.small_bodies import MessageQueue
from popgate.wire.frames.codes import RequestCode, ResponseCode
from processors.limits import Limits
from protocols.remoting.mapped.offsets import QueueKey
from protocols.remoting.mapped.resets import OBEYS_S, STRANGER_S
from protocols.remoting.members.members import RESTS_S
from tests.support.waiting import until
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

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
WAS_RESET = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
MOVED, NOTHING = ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND


async def done(stage: Stage) -> int | None:
    """Below this the group has finished everything."""
    return await stage.processor.offsets.committed(Context(), GROUP, TOPIC, BROKER, 0)


async def reset(stage: Stage, to: StartFrom) -> None:
    await stage.processor.offsets.reset(Context(), GROUP, TOPIC, to)


def told(member: Member) -> list[dict[MessageQueue, int]]:
    """Where the client was sent, each time."""
    return [decode_offsets(body) for code, _, body in member.peer.told if code == WAS_RESET]


async def by_tool(door: Door, **more: Any) -> None:
    tool = Caller(*door.rooms, peer=FakePeer("10.9.9.9:1"), client_id="tool")
    await tool.ok(RESET, {"topic": TOPIC, "group": GROUP, "timestamp": 0, **more})


class TestMapped:
    async def test_back(self, stage: Stage, member: Member) -> None:
        await send(stage, b"one", b"two", b"three")
        taken = await member.take()
        await member.update(taken[-1].offset + 1)
        await by_tool(member.door)
        assert told(member) == [{MessageQueue(TOPIC, BROKER, 0): 0}]
        # A Java client drops its queues, tells numbers of before for a while, and where it was sent.
        await stage.pass_s(5)
        await member.update(taken[-1].offset + 1)
        await stage.pass_s(5)
        await member.update(0)
        again = await member.take()
        assert bodies(again) == [b"one", b"two", b"three"]
        assert stage.processor.mapped_groups.is_mapped(GROUP)
        await member.update(again[-1].offset + 1)
        assert await done(stage) == 3

    async def test_others_may_have_read_on_meanwhile(self, stage: Stage, member: Member) -> None:
        await send(stage, b"one", b"two")
        taken = await member.take()
        await member.update(taken[-1].offset + 1)
        other = await member.door.member(2, proven=False)
        await reset(stage, StartFrom.FIRST)
        again = await other.take()
        assert bodies(again) == [b"one", b"two"]
        await other.update(again[-1].offset + 1)
        await member.update(0)
        assert await done(stage) == 2
        assert await member.take() == []

    async def test_forwards_skips_also_what_is_held(self, stage: Stage, member: Member) -> None:
        await send(stage, b"one", b"two", b"three")
        taken = await member.take()
        await member.update(taken[0].offset + 1)
        await reset(stage, StartFrom.LAST)
        assert told(member) == [{MessageQueue(TOPIC, BROKER, 0): 3}]
        assert member.door.mapped.figures()["mapped_held"] == 0
        other = await member.door.member(2, proven=False)
        member.peer.close()
        assert await other.take() == []
        assert await done(stage) == 3
        await send(stage, b"four")
        assert bodies(await other.take()) == [b"four"]

    async def test_what_a_broker_does_not_forget_is_finished(
        self, stage: Stage, member: Member, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A RocketMQ holds what was popped before a reset: it would come besides, or though it is skipped."""
        await send(stage, b"one", b"two")
        await member.take()

        async def nothing(*_: object) -> QueueOffsets:
            """It is held on."""
            return {(BROKER, 0): 2}

        monkeypatch.setattr(stage.broker, "reset", nothing)
        await reset(stage, StartFrom.LAST)

        async def finished() -> bool:
            return await done(stage) == 2

        await stage.until(finished)

    async def test_a_reset_that_fails_leaves_what_is_held(
        self, stage: Stage, member: Member, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await send(stage, b"one")
        (one,) = await member.take()

        async def refuse(*_: object) -> None:
            raise BrokerUnavailable("away")

        monkeypatch.setattr(stage.broker, "reset", refuse)
        with pytest.raises(BrokerUnavailable):
            await reset(stage, StartFrom.LAST)
        assert member.door.mapped.figures()["mapped_held"] == 1
        await member.update(one.offset + 1)
        assert await done(stage) == 1

    async def test_one_queue_to_an_offset(self, stage: Stage, member: Member) -> None:
        await send(stage, b"one", b"two", b"three")
        taken = await member.take()
        await member.update(taken[-1].offset + 1)
        await by_tool(member.door, queueId=0, offset=1)
        assert told(member) == [{MessageQueue(TOPIC, BROKER, 0): 1}]
        await stage.pass_s(20)
        await member.update(1)
        assert bodies(await member.take()) == [b"two", b"three"]
        assert stage.processor.mapped_groups.is_mapped(GROUP)

    @pytest.mark.parametrize(
        "fields", [{"queueId": 0, "offset": 2}, {"isForce": False, "timestamp": 1}], ids=["queue", "back"]
    )
    async def test_what_is_held_of_a_queue_that_is_set_is_over(
        self, stage: Stage, member: Member, monkeypatch: pytest.MonkeyPatch, fields: dict[str, object]
    ) -> None:
        """Where its broker does not forget it, it would come besides."""
        await send(stage, b"one", b"two", b"three")
        taken = await member.take()
        await member.update(taken[1].offset)

        async def nothing(*_: object) -> None:
            """It is held on."""

        async def position(*_: object) -> int:
            return 3

        monkeypatch.setattr(stage.broker, "reset_queue", nothing)
        monkeypatch.setattr(stage.processor.offsets, "committed", position)
        await by_tool(member.door, **fields)
        monkeypatch.undo()
        assert member.door.mapped.figures()["mapped_held"] == 0

        async def finished() -> bool:
            return await done(stage) == 3

        await stage.until(finished)

    async def test_what_is_held_of_other_queues_stays(self, stage: Stage, member: Member) -> None:
        await send(stage, b"one")
        await member.take()
        async with member.door.mapped.resetting(GROUP, TOPIC, {(BROKER, 1)}):
            pass
        assert member.door.mapped.figures()["mapped_held"] == 1

    @pytest.mark.parametrize("at", [0, 1])
    @pytest.mark.parametrize(
        "fields", [{"timestamp": -1}, {"queueId": 0, "offset": 2}], ids=["whole", "queue"]
    )
    async def test_members_of_all_listeners_take_part(
        self, stage: Stage, door: Door, member: Member, at: int, fields: dict[str, object]
    ) -> None:
        other = await Door(stage).member(2, proven=False)
        members = member, other
        await send(stage, b"one")
        (one,) = await member.take()
        await send(stage, b"two")
        (two,) = await other.take()
        await by_tool(members[at].door, **fields)
        for each in members:
            assert told(each) == [{MessageQueue(TOPIC, BROKER, 0): 2}]
            assert each.door.mapped.figures()["mapped_held"] == 0
        await member.update(one.offset + 1)
        await other.update(two.offset + 1)
        assert await done(stage) == 2
        await send(stage, b"three")
        assert bodies(await other.take()) == [b"three"]


class TestPulled:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits()

    @pytest.fixture
    async def reader(self, stage: Stage, door: Door) -> Member:
        """A member that has read three messages and told so."""
        member = await door.member(proven=False)
        await send(stage, b"one", b"two", b"three")
        assert len(records(await member.pull(await member.query(), wait=False))) == 3
        await member.update(3)
        assert await done(stage) == 3
        return member

    async def test_back_whatever_is_told_of_before(self, stage: Stage, reader: Member) -> None:
        await by_tool(reader.door)
        assert told(reader) == [{MessageQueue(TOPIC, BROKER, 0): 0}]
        await stage.pass_s(5)
        await reader.update(3)
        await reader.pull(3, commit=3, wait=False)
        assert await done(stage) == 0
        await stage.pass_s(5)
        await reader.update(0)
        assert await reader.query() == 0
        assert bodies(records(await reader.pull(0, wait=False))) == [b"one", b"two", b"three"]
        await reader.update(2)
        assert await done(stage) == 2

    async def test_forwards(self, stage: Stage, reader: Member) -> None:
        await send(stage, b"four", b"five")
        await reset(stage, StartFrom.LAST)
        await reader.update(4)
        assert await done(stage) == 5
        await reader.update(5)
        assert await reader.query() == 5
        await send(stage, b"six")
        assert bodies(records(await reader.pull(5, wait=False))) == [b"six"]

    async def test_where_it_was_sent_is_not_set_again(self, stage: Stage, reader: Member) -> None:
        """The queue went to another member meanwhile, which has read on."""
        other = await reader.door.member(2, proven=False)
        await reset(stage, StartFrom.FIRST)
        assert await other.query() == 0
        await other.pull(0, wait=False)
        await other.update(2)
        await reader.update(3)
        await reader.update(0)
        assert await done(stage) == 2
        assert await reader.query() == 2

    async def test_a_pull_may_commit_where_it_was_sent(
        self, stage: Stage, reader: Member, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun: list[int] = []
        real = stage.processor.offsets.begin_read

        async def begin_read(*words: Any) -> int:
            begun.append(words[-1])
            return await real(*words)

        monkeypatch.setattr(stage.processor.offsets, "begin_read", begin_read)
        await reset(stage, StartFrom.FIRST)
        assert len(records(await reader.pull(0, commit=0, wait=False))) == 3
        assert begun == [0]
        await reader.update(2)
        assert await done(stage) == 2

    async def test_a_read_that_its_broker_was_not_told_of_is_told_with_the_next_commit(
        self, stage: Stage, reader: Member, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun: list[int] = []
        answers: list[int | None] = [None, None, 0, None, 1]
        real = stage.processor.offsets.begin_read

        async def begin_read(*words: Any) -> int:
            begun.append(words[-1])
            answer = answers.pop(0)
            if answer is None:
                raise BrokerUnavailable("away")
            assert await real(*words) == words[-1]
            return answer

        monkeypatch.setattr(stage.processor.offsets, "begin_read", begin_read)
        await reset(stage, StartFrom.FIRST)
        assert await reader.query() == 0
        fields = {**reader._queue(0, TOPIC), "commitOffset": 1}
        refused = await reader.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        assert refused.code != ResponseCode.SUCCESS
        await reader.update(1)
        await reader.update(2)
        assert (begun, await done(stage)) == ([0, 0, 0], 2)
        # It may learn so that it was sent elsewhere meanwhile.
        assert await reader.query() == 2
        await reader.update(3)
        assert begun == [0, 0, 0, 2, 2]
        assert await done(stage) == 2
        assert reader.door.mapped.resets.target(reader.peer, QueueKey(GROUP, TOPIC, BROKER, 0)) == 1

    async def test_connections_that_are_over_leave_nothing(self, stage: Stage, reader: Member) -> None:
        for to in (StartFrom.FIRST, StartFrom.LAST) * 3:
            await reset(stage, to)
            assert await reader.query() == (0 if to is StartFrom.FIRST else 3)
        assert len(reader.peer._gone) == len(set(reader.peer._gone))
        await reset(stage, StartFrom.FIRST)
        resets = reader.door.mapped.resets
        assert not resets.idle
        reader.peer.close()
        assert resets.idle
        resets.sent(reader.peer, QueueKey(GROUP, TOPIC, BROKER, 0), 0)
        assert resets.idle

    async def test_a_tools_slow_commit_holds_no_reset(
        self, stage: Stage, reader: Member, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, go_on = stage.processor.offsets.commit, asyncio.Event()

        async def slow(*words: Any) -> None:
            await go_on.wait()
            await real(*words)

        monkeypatch.setattr(stage.processor.offsets, "commit", slow)
        tool = Caller(*reader.door.rooms, peer=FakePeer("10.9.9.9:1"), client_id="tool")
        fields = {**reader._queue(0, TOPIC), "commitOffset": 1}
        setting = asyncio.ensure_future(tool.ok(RequestCode.UPDATE_CONSUMER_OFFSET, fields))
        await stage.pass_s(0)
        await reset(stage, StartFrom.FIRST)
        go_on.set()
        await setting
        assert await done(stage) == 1

    async def test_who_does_not_obey_is_led_there(self, stage: Stage, reader: Member) -> None:
        await reset(stage, StartFrom.FIRST)
        assert (await reader.pull(3, wait=False)).code == NOTHING
        await stage.pass_s(OBEYS_S)
        for _ in range(2):
            answer = await reader.pull(3, commit=3, wait=False)
            assert (answer.code, behind(answer)) == (MOVED, 0)
        assert await done(stage) == 0
        assert len(records(await reader.pull(0, wait=False))) == 3
        await reader.update(1)
        assert await done(stage) == 1

    async def test_who_could_not_be_told_is_led_there_at_once(self, stage: Stage, reader: Member) -> None:
        reader.peer.full = True
        await reset(stage, StartFrom.FIRST)
        answer = await reader.pull(3, wait=False)
        assert (answer.code, behind(answer)) == (MOVED, 0)

    async def test_a_commit_that_crosses_it_does_not_undo_it(
        self, stage: Stage, reader: Member, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, go_on = stage.processor.offsets.commit_read, asyncio.Event()

        async def slow(*words: Any) -> int | None:
            await go_on.wait()
            return await real(*words)

        monkeypatch.setattr(stage.processor.offsets, "commit_read", slow)
        fields = {**reader._queue(0, TOPIC), "commitOffset": 2}
        before = asyncio.ensure_future(reader.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields))
        await stage.pass_s(0)
        resetting = asyncio.ensure_future(reset(stage, StartFrom.LAST))
        await stage.pass_s(0)
        assert not resetting.done()
        # One that comes while it waits is of before, too.
        await reader.update(1)
        go_on.set()
        await before
        await resetting
        assert await done(stage) == 3

    async def test_what_tools_set_meanwhile_counts(self, stage: Stage, reader: Member) -> None:
        await reset(stage, StartFrom.FIRST)
        tool = Caller(*reader.door.rooms, peer=FakePeer("10.9.9.9:1"), client_id="tool")
        fields = {**reader._queue(0, TOPIC), "commitOffset": 1}
        await tool.ok(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        assert await done(stage) == 1

    async def test_who_pulls_by_itself_keeps_its_position(self, stage: Stage, door: Door) -> None:
        puller = await door.member(proven=False, consume_type=ACTIVELY)
        await send(stage, b"one", b"two")
        await reset(stage, StartFrom.FIRST)
        await puller.update(2)
        assert await done(stage) == 2

    @pytest.mark.parametrize("end", ["it stops", "it stops, of 4.9.4", "it reconnects twice"])
    async def test_what_waits_while_its_client_goes_is_of_before_it(
        self, stage: Stage, reader: Member, monkeypatch: pytest.MonkeyPatch, end: str
    ) -> None:
        """It rests, or does not know of the reset; the gateway asks its broker for the route first."""
        await reset(stage, StartFrom.FIRST)
        if end == "it reconnects twice":
            reader.peer.close()
            reader = await reader.door.member(proven=False)
        stage.clock.advance(2)  # nothing of the route is known any more
        fields = {**reader._queue(0, TOPIC), "commitOffset": 3}
        if end == "it stops, of 4.9.4":
            del fields["bname"]
        asked, answered = asyncio.Event(), asyncio.Event()
        queues = stage.processor.metadata.queues

        async def patient_queues(context: Context, topic: str) -> Sequence[Queue]:
            asked.set()
            await answered.wait()
            return await queues(context, topic)

        with monkeypatch.context() as patched:
            patched.setattr(stage.processor.metadata, "queues", patient_queues)
            saying = asyncio.ensure_future(
                reader.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields, oneway=True)
            )
            await until(lambda: asked.is_set() or saying.done())
        if end != "it reconnects twice":
            await reader.leave()
        reader.peer.close()
        if end != "it reconnects twice":
            other = await reader.door.member(2, proven=False)
            assert await other.query() == 0
        answered.set()
        await saying
        assert await done(stage) == 0

    async def test_another_connection_knows_nothing_of_it(self, stage: Stage, reader: Member) -> None:
        await reset(stage, StartFrom.FIRST)
        reader.peer.close()
        again = await reader.door.member(proven=False)
        assert await again.query() == 0
        await again.update(1)
        assert await done(stage) == 1
        assert reader.door.mapped.resets.idle

    async def test_one_that_was_made_through_another_gateway(
        self, stage: Stage, reader: Member, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The broker refuses what the member commits: so it is sent where the reset sends its group."""
        waits: int | None = 0
        begun: list[int] = []

        async def commit_read(*words: Any) -> int | None:
            return waits

        async def begin_read(*words: Any) -> int:
            begun.append(words[-1])
            return begun[-1]

        monkeypatch.setattr(stage.processor.offsets, "commit_read", commit_read)
        monkeypatch.setattr(stage.processor.offsets, "begin_read", begin_read)
        for _ in range(2):
            await reader.update(3)
            await reader.pull(3, commit=3, wait=False)
        assert told(reader) == []
        await stage.pass_s(0.5)
        assert told(reader) == [{MessageQueue(TOPIC, BROKER, 0): 0}]
        waits = None
        await reader.update(3)
        assert begun == []
        await reader.update(0)
        await reader.query()
        assert begun[0] == 0
        await reader.update(1)
        await stage.pass_s(1)
        assert len(told(reader)) == 1

    async def test_no_client_is_sent_elsewhere_while_it_rests(
        self, stage: Stage, reader: Member, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two resets at once take all threads of a Java client on two cores, and it stands still."""
        to = 0

        async def commit_read(*words: Any) -> int:
            return to

        monkeypatch.setattr(stage.processor.offsets, "commit_read", commit_read)
        await reader.update(3)
        await stage.pass_s(0.5)
        await reader.query()
        to = 1
        await reader.update(3)
        await stage.pass_s(RESTS_S - 1)
        assert told(reader) == [{MessageQueue(TOPIC, BROKER, 0): 0}]
        other = await reader.door.member(2, proven=False)
        await other.query()
        await other.update(3)
        await stage.pass_s(1)
        assert told(reader)[1:] == told(other) == [{MessageQueue(TOPIC, BROKER, 0): 1}]

    async def test_who_has_asked_meanwhile_need_not_be_sent(
        self, stage: Stage, reader: Member, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def commit_read(*words: Any) -> int:
            return 0

        monkeypatch.setattr(stage.processor.offsets, "commit_read", commit_read)
        await reader.update(3)
        await reader.query()
        await stage.pass_s(1)
        assert told(reader) == []

    @pytest.mark.parametrize("way", ["asks", "commits", "pulls"])
    async def test_a_newer_one_through_another_gateway_counts(
        self, stage: Stage, reader: Member, monkeypatch: pytest.MonkeyPatch, way: str
    ) -> None:
        async def begin_read(*words: Any) -> int:
            return 2

        await reset(stage, StartFrom.FIRST)
        monkeypatch.setattr(stage.processor.offsets, "begin_read", begin_read)
        if way == "asks":
            assert await reader.query() == 2
            return
        if way == "commits":
            await reader.update(0)
            await stage.pass_s(RESTS_S)
            assert told(reader)[1:] == [{MessageQueue(TOPIC, BROKER, 0): 2}]
        else:
            answer = await reader.pull(0, wait=False)
            assert (answer.code, behind(answer)) == (MOVED, 2)
        await reader.update(3)
        assert await done(stage) == 0

    @pytest.mark.parametrize("pulls", [False, True])
    @pytest.mark.parametrize(("heartbeat", "kept"), [(False, 0), (True, 2)])
    async def test_who_commits_before_its_heartbeat_may_not_have_heard_of_it(
        self,
        stage: Stage,
        reader: Member,
        monkeypatch: pytest.MonkeyPatch,
        heartbeat: bool,
        kept: int,
        pulls: bool,
    ) -> None:
        async def commit_read(*words: Any) -> int:
            return 0

        await reset(stage, StartFrom.FIRST)
        monkeypatch.setattr(stage.processor.offsets, "commit_read", commit_read)
        peer = FakePeer("10.9.9.9:1")
        peer.client_id = "puller" if heartbeat else ""
        caller = Caller(*reader.door.rooms, peer=peer)
        fields = {**reader._queue(0, TOPIC), "commitOffset": 2}
        for _ in range(2):
            if pulls:
                pull = {"queueOffset": 2, "maxMsgNums": 32, "sysFlag": 5, "subscription": "*"}
                await caller.ok(RequestCode.PULL_MESSAGE, {**fields, **pull})
            else:
                await caller.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields, oneway=True)
            assert await done(stage) == kept
            # One that has said nothing for a minute is no member.
            await stage.pass_s(STRANGER_S)
            kept = 2
