"""Pulls, commits and send-backs of mapped groups: what a client gets, finishes, loses and sends back."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import pytest

from popgate.context import Context
from popgate.errors import BrokerBusy, BrokerUnavailable
from popgate.kinds import Principal
from popgate.model import Queue, TopicConfig
from popgate.naming import retry_topic
from popgate.wire.bodies.consumer_info import encode_offsets
from popgate.wire.bodies.heartbeats import ACTIVELY
from popgate.wire.bodies.small_bodies import MessageQueue, QueueLocks
from popgate.wire.frames.codes import RequestCode, ResponseCode
from popgate.wire.frames.remoting import Command
from popgate.wire.json_syntax import fastjson
from popgate.wire.messages.hosts import host_text
from processors.policies.rate import PerClient
from processors.policies.registry import Policies
from protocols.remoting.mapped.offsets import END, VIRTUAL, Held, is_virtual
from tests.unit.protocols.remoting.conftest import ADDRESS, Caller, FakePeer, Refusing, Stage
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

FOUND, NOTHING = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND
AGAIN, MOVED = ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED


async def done(stage: Stage) -> int | None:
    """Below this the group has finished everything."""
    return await stage.processor.offsets.committed(Context(), GROUP, TOPIC, BROKER, 0)


async def until_done(stage: Stage, position: int) -> None:
    async def there() -> bool:
        return await done(stage) == position

    await stage.until(there)


async def test_a_group_is_mapped_when_a_concurrent_member_pulls(stage: Stage, door: Door) -> None:
    member = await door.member(proven=False)
    assert not stage.processor.mapped_groups.is_mapped(GROUP)
    await member.query()
    await member.pull(0, wait=False)
    await door.until_mapped()


class TestOfAnotherAccount:
    @pytest.fixture
    def policies(self) -> Policies:
        return Policies(authorizer=Refusing("stranger"))

    async def test_who_may_not_pop_says_nothing_of_a_member(
        self, stage: Stage, door: Door, member: Member
    ) -> None:
        stranger = Member(door, FakePeer("10.1.1.2:2"), member.client_id)
        stranger.context.principal = Principal("stranger")
        stranger.peer.client_id = member.client_id
        pop = {"consumerGroup": GROUP, "topic": TOPIC, "maxMsgNums": 1, "invisibleTime": 60_000}
        refused = await stranger.ask(RequestCode.POP_MESSAGE, {**pop, "pollTime": 0})
        assert refused.code == ResponseCode.NO_PERMISSION
        await stage.processor.mapped_groups.judge(Context(), GROUP)
        assert stage.processor.mapped_groups.is_mapped(GROUP)


async def test_who_pulls_for_long_without_a_lock_is_concurrent(stage: Stage, door: Door) -> None:
    member = await door.member(proven=False)
    await member.pull(0, wait=False)
    for _ in range(4):
        await stage.pass_s(16)
        assert not stage.processor.mapped_groups.is_mapped(GROUP)
        await member.pull(0, wait=False)
    await door.until_mapped()


async def test_a_pull_takes_messages_and_numbers_them(stage: Stage, member: Member) -> None:
    await send(stage, b"one", b"two")
    answer = await member.pull(await member.query(), wait=False)
    assert (answer.code, answer.remark) == (FOUND, "FOUND")
    first, second = records(answer)
    assert bodies([first, second]) == [b"one", b"two"]
    assert is_virtual(first.offset)
    assert second.offset == first.offset + 1
    assert behind(answer) == second.offset + 1
    assert int(answer.fields["minOffset"]) == first.offset
    assert int(answer.fields["maxOffset"]) == second.offset + 1
    assert (first.topic, first.queue_id, first.reconsume_times) == (TOPIC, 0, 0)
    assert host_text(first.store_host) == ADDRESS
    # Nobody else gets them meanwhile.
    other = await member.door.member(2, proven=False)
    assert (await other.pull(await other.query(), wait=False)).code == NOTHING


async def test_a_commit_finishes_what_is_below_it(stage: Stage, member: Member) -> None:
    await send(stage, b"one", b"two", b"three")
    first, second, third = await member.take()
    await member.update(second.offset)
    assert await done(stage) == 1
    await member.update(third.offset + 1)
    assert await done(stage) == 3
    assert first.offset < second.offset


async def test_what_is_finished_is_kept_by_nobody(stage: Stage, member: Member) -> None:
    await send(stage, b"one", b"two")
    taken = await member.take()
    (connection,) = member.door.mapped._connections.values()
    (queue,) = connection.queues.values()

    def kept() -> int:
        gc.collect()
        return sum(isinstance(one, Held) and one.queue is queue for one in gc.get_objects())

    assert kept() == 2
    await member.update(taken[1].offset + 1)
    await member.pull(taken[1].offset + 1, wait=False)

    async def gone() -> bool:
        return kept() == 0

    await stage.until(gone)


async def test_a_commit_comes_along_with_a_pull(stage: Stage, member: Member) -> None:
    await send(stage, b"one", b"two")
    _, second = await member.take()
    answer = await member.pull(second.offset + 1, commit=second.offset, wait=False)
    assert answer.code == NOTHING
    await until_done(stage, 1)
    assert behind(answer) == second.offset + 1


async def test_a_commit_of_a_number_that_was_never_given_says_nothing(stage: Stage, member: Member) -> None:
    await send(stage, b"one", b"two")
    await member.take()
    for number in (VIRTUAL, VIRTUAL + 5, END - 1, END, (1 << 63) - 1):
        await member.update(number)
    await stage.pass_s(1)
    assert await done(stage) == 0


async def test_a_real_position_of_a_member_sets_nothing(stage: Stage, member: Member) -> None:
    await send(stage, b"one", b"two", b"three")
    taken = await member.take()
    await member.update(taken[2].offset)
    assert await done(stage) == 2
    await member.update(0)
    await member.update(3)
    await member.pull(taken[2].offset + 1, commit=1, wait=False)
    await stage.pass_s(2)
    assert await done(stage) == 2


async def test_a_pull_that_is_repeated_gets_its_messages_under_new_numbers(
    stage: Stage, member: Member
) -> None:
    await send(stage, b"one", b"two")
    answer = await member.pull(await member.query(), wait=False)
    lost = records(answer)
    waiting = await member.start(lost[0].offset)
    await stage.until(waiting.done)
    again = records(waiting.result())
    assert bodies(again) == [b"one", b"two"]
    assert again[0].offset > lost[-1].offset
    # What it says of the old numbers finishes nothing.
    await member.update(lost[-1].offset + 1)
    assert await done(stage) == 0
    await member.update(again[-1].offset + 1)
    assert await done(stage) == 2


async def test_what_a_pull_asks_for_it_has_not_finished(stage: Stage, member: Member) -> None:
    await send(stage, b"one", b"two", b"three")
    taken = await member.take()
    waiting = await member.start(taken[1].offset, commit=taken[2].offset + 1)
    await stage.until(waiting.done)
    assert bodies(records(waiting.result())) == [b"two", b"three"]
    await until_done(stage, 1)


async def test_a_queue_that_is_taken_anew_gives_back_what_was_held(stage: Stage, member: Member) -> None:
    await send(stage, b"one", b"two", b"three")
    taken = await member.take()
    await member.update(taken[1].offset)
    position = await member.query()
    assert position == 1
    waiting = await member.start(position)
    await stage.until(waiting.done)
    assert bodies(records(waiting.result())) == [b"two", b"three"]


async def test_the_last_of_two_pulls_gets_the_messages(stage: Stage, member: Member) -> None:
    position = await member.query()
    first = await member.start(position)
    second = await member.start(position)
    await stage.until(first.done)
    assert first.result().code == NOTHING
    assert not second.done()
    await send(stage, b"one")
    await stage.until(second.done)
    assert bodies(records(second.result())) == [b"one"]


async def test_a_connection_that_ends_gives_back_what_its_client_held(stage: Stage, member: Member) -> None:
    await send(stage, b"one", b"two", b"three")
    taken = await member.take()
    await member.update(taken[1].offset)
    other = await member.door.member(2, proven=False)
    waiting = await other.start(await other.query())
    member.peer.close()
    await stage.until(waiting.done)
    assert bodies(records(waiting.result())) == [b"two", b"three"]
    assert records(waiting.result())[0].reconsume_times == 0


async def test_a_member_that_leaves_gives_back_what_it_held(stage: Stage, member: Member) -> None:
    await send(stage, b"one")
    other = await member.door.member(2, proven=False)
    await member.take()
    waiting = await other.start(await other.query())
    await member.leave()
    await stage.pass_s(0.9)
    assert not waiting.done()
    await stage.pass_s(0.2)
    await stage.until(waiting.done)
    assert bodies(records(waiting.result())) == [b"one"]


async def test_positions_that_follow_a_good_bye_count(stage: Stage, member: Member) -> None:
    """So a Java client 5.5.0 may end; nothing of what it finished comes again."""
    await send(stage, b"one", b"two", b"three")
    _, _, third = await member.take()
    other = await member.door.member(2, proven=False)
    waiting = await other.start(await other.query())
    await member.leave()
    await stage.pass_s(0.5)
    await member.update(third.offset)
    await until_done(stage, 2)
    member.peer.close()
    await stage.until(waiting.done)
    assert bodies(records(waiting.result())) == [b"three"]


async def test_a_client_goes_on_at_another_connection(stage: Stage, member: Member) -> None:
    await send(stage, b"one", b"two")
    first, second = await member.take()
    member.peer.close()
    again = await member.door.member(1, proven=False)
    waiting = await again.start(second.offset + 1, commit=second.offset)
    await stage.until(waiting.done)
    found = records(waiting.result())
    # Both, under numbers of their own: whatever it still says of the old ones is about nothing.
    assert bodies(found) == [b"one", b"two"]
    assert found[0].offset == second.offset + 1
    await again.update(found[0].offset)
    assert await done(stage) == 0
    await again.update(found[1].offset)
    assert await done(stage) == 1
    assert first.offset < second.offset


async def test_who_has_yet_to_say_who_it_is_asks_again(stage: Stage, member: Member) -> None:
    await send(stage, b"one", b"two")
    _, second = await member.take()
    again = Member(member.door, FakePeer("10.1.1.1:50002"), "client@1")
    for offset in (second.offset + 1, 0):
        answer = await again.pull(offset, sysFlag=2, commit=0)
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    # What it tells meanwhile sets nothing; a tool waits for its answer.
    await member.update(second.offset)
    fields = {**again._queue(0, TOPIC), "commitOffset": 0}
    await again.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields, oneway=True)
    assert await done(stage) == 1
    await again.ok(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    assert await done(stage) == 0


async def test_who_pulls_by_itself_commits_without_an_answer(stage: Stage, door: Door) -> None:
    """As RocketMQ's lite pull consumer does; its group may be mapped by its name."""
    puller = await door.member(proven=False, consume_type=ACTIVELY)
    await send(stage, b"one", b"two")
    fields = {**puller._queue(0, TOPIC), "commitOffset": 1}
    await puller.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields, oneway=True)
    assert await done(stage) == 1


async def test_a_gateway_that_does_not_know_yet_asks(stage: Stage, door: Door) -> None:
    member = await door.member(proven=False)
    await send(stage, b"one")
    # Its number shows that it was mapped elsewhere.
    answer = await member.pull(VIRTUAL + 700, wait=False)
    (one,) = records(answer)
    assert one.offset == VIRTUAL + 700


async def test_tools_are_told_positions_and_no_numbers(stage: Stage, member: Member) -> None:
    await send(stage, b"one", b"two")
    _, second = await member.take()
    await member.update(second.offset)
    queue = MessageQueue(TOPIC, BROKER, 0)
    told = Command(0, body=encode_offsets({queue: second.offset}, "messageQueueTable"))
    member.peer.answers = lambda *_: told
    tool = Caller(*member.door.rooms, peer=FakePeer("10.9.9.9:1"), client_id="tool")
    ask = {"topic": TOPIC, "group": GROUP, "clientAddr": ""}
    answer = await tool.ok(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ask)
    (positions,) = fastjson.loads(answer.body)["consumerTable"].values()
    assert list(positions.values()) == [1]


@pytest.mark.parametrize("named", [True, False])
async def test_what_was_said_before_a_good_bye_counts(stage: Stage, member: Member, named: bool) -> None:
    await send(stage, b"one", b"two")
    _, second = await member.take()
    stage.clock.advance(2)  # nothing of the route is known any more
    fields = {**member._queue(0, TOPIC), "commitOffset": second.offset}
    if not named:
        del fields["bname"]
    saying = asyncio.ensure_future(member.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields, oneway=True))
    await asyncio.sleep(0)
    await member.leave()
    await saying
    await until_done(stage, 1)
    await stage.pass_s(1)
    other = await member.door.member(2)
    waiting = await other.start(await other.query())
    await stage.until(waiting.done)
    assert bodies(records(waiting.result())) == [b"two"]


@pytest.mark.parametrize("end", ["good-bye behind it", "good-bye before it", "lost connection"])
async def test_a_position_told_with_a_good_bye_counts_on_true_pull(
    stage: Stage, door: Door, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Else the members that stay get again what was finished."""
    member = await door.member(proven=False)
    await send(stage, b"one", b"two")
    await member.pull(0, wait=False)
    fields = {**member._queue(0, TOPIC), "commitOffset": 1}
    asked, told = asyncio.Event(), asyncio.Event()
    queues = stage.processor.metadata.queues

    async def patient_queues(context: Context, topic: str) -> Sequence[Queue]:
        asked.set()
        await told.wait()
        return await queues(context, topic)

    monkeypatch.setattr(stage.processor.metadata, "queues", patient_queues)
    if end == "good-bye before it":
        await member.leave()
    saying = asyncio.ensure_future(member.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields, oneway=True))
    await asked.wait()
    if end == "good-bye behind it":
        await member.leave()
    member.peer.close()
    told.set()
    await saying
    assert await done(stage) == 1


async def test_a_position_told_behind_a_good_bye_is_none_of_a_mapped_group(
    stage: Stage, member: Member
) -> None:
    """It was told this position when it began, and commits numbers since."""
    await send(stage, b"one", b"two")
    _, second = await member.take()
    await member.update(second.offset)
    fields = {**member._queue(0, TOPIC), "commitOffset": 0}
    await member.leave()
    await member.door.until_mapped(False)
    await member.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields, oneway=True)
    assert await done(stage) == 1


async def test_an_answer_that_is_never_written_is_taken_back(stage: Stage, member: Member) -> None:
    await send(stage, b"one")
    position = await member.query()
    request = member.request(
        11, {**member._queue(0, TOPIC), "queueOffset": position, "maxMsgNums": 32, "sysFlag": 4}
    )
    answer = await member.handlers[11](request)
    assert answer is not None
    assert bodies(records(answer)) == [b"one"]
    assert request.unwritten is not None
    request.unwritten()
    other = await member.door.member(2, proven=False)
    waiting = await other.start(await other.query())
    await stage.until(waiting.done)
    assert bodies(records(waiting.result())) == [b"one"]


async def test_where_a_group_begins_its_first_pull_says(stage: Stage, member: Member) -> None:
    await stage.topic("news", queues=1)
    await send(stage, b"old", b"new", topic="news")
    answer = await member.pull(1, wait=False, topic="news")
    assert bodies(records(answer)) == [b"new"]
    # From then on the group's position counts.
    waiting = await member.start(0, topic="news")
    await stage.until(waiting.done)
    assert bodies(records(waiting.result())) == [b"new"]


async def test_where_another_gateway_sets_the_beginning_nothing_is_taken_before(
    stage: Stage, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.topic("news", queues=1)
    await send(stage, b"old", b"new", topic="news")

    async def leased(*_: object) -> list[object]:
        return []  # another gateway has it

    async def pull(offset: int) -> Command:
        asked = await member.start(offset, topic="news", wait=False)

        async def over() -> bool:
            await stage.pass_s(0.1)  # between two looks whether it is set
            return asked.done()

        await stage.until(over)
        return asked.result()

    with monkeypatch.context() as patched:
        patched.setattr(stage.processor.classic, "lease", leased)
        answer = await pull(1)
    assert (answer.code, behind(answer)) == (NOTHING, 1)
    assert bodies(records(await pull(behind(answer)))) == [b"new"]


@pytest.mark.parametrize("offset", [-1, -(1 << 40), 99, VIRTUAL - 1])
async def test_odd_positions_begin_where_they_can(stage: Stage, member: Member, offset: int) -> None:
    await stage.topic("news", queues=1)
    await send(stage, b"one", topic="news")
    answer = await member.pull(offset, wait=False, topic="news")
    assert bodies(records(answer)) == ([b"one"] if offset < 0 else [])


@pytest.mark.parametrize("offset", [END, END - 1, (1 << 63) - 1])
async def test_a_number_beyond_all_begins_anew(stage: Stage, member: Member, offset: int) -> None:
    await send(stage, b"one")
    answer = await member.pull(offset, wait=False)
    assert (answer.code, behind(answer)) == (MOVED, 0)


class TestSendingBack:
    async def test_it_comes_again_after_the_delay(self, stage: Stage, member: Member) -> None:
        await send(stage, b"one", b"two")
        first, second = await member.take()
        assert (await member.send_back(first.commit_offset, level=3)).code == 0
        # Its number counts as finished.
        await member.update(second.offset + 1)
        await stage.pass_s(9)
        assert records(await member.pull(second.offset + 1, wait=False)) == []
        waiting = await member.start(second.offset + 1)
        await stage.pass_s(2)
        await stage.until(waiting.done)
        (again,) = records(waiting.result())
        assert (bytes(again.body), again.reconsume_times) == (b"one", 1)
        assert again.offset == second.offset + 1
        await member.update(again.offset + 1)
        assert await done(stage) == 2

    async def test_without_a_level_the_delay_grows(self, stage: Stage, member: Member) -> None:
        await send(stage, b"one")
        (one,) = await member.take()
        for delay_s in (10, 30, 60):
            assert (await member.send_back(one.commit_offset)).code == 0
            waiting = await member.start(one.offset + 1, commit=one.offset + 1)
            await stage.pass_s(0.5)
            for _ in range(delay_s // 5 - 1):
                await stage.pass_s(5)
                await member.beat()
                if waiting.done():
                    assert records(waiting.result()) == []
                    waiting = await member.start(one.offset + 1)
            await stage.pass_s(6)
            await stage.until(waiting.done)
            (one,) = records(waiting.result())
        assert one.reconsume_times == 3

    @pytest.mark.parametrize("more", [{"level": -1}, {"level": 3, "maxReconsumeTimes": 0}])
    async def test_it_becomes_a_dead_letter(self, stage: Stage, member: Member, more: dict[str, int]) -> None:
        await send(stage, b"one")
        (one,) = await member.take()
        assert (await member.send_back(one.commit_offset, **more)).code == 0
        bounds = await stage.processor.offsets.bounds(Context(), f"%DLQ%{GROUP}", BROKER, 0)
        assert bounds.maximum == 1
        assert await done(stage) == 1

    async def test_an_older_client_names_no_broker(self, stage: Stage, member: Member) -> None:
        await send(stage, b"one")
        (one,) = await member.take()
        assert (await member.send_back(one.commit_offset, bname=None)).code == 0
        assert await done(stage) == 0

    async def test_by_another_connection_it_is_found_too(self, stage: Stage, member: Member) -> None:
        await send(stage, b"one")
        (one,) = await member.take()
        other = await member.door.member(2, proven=False)
        assert (await other.send_back(one.commit_offset, level=-1)).code == 0
        assert await done(stage) == 1

    async def test_what_is_not_held_any_more_is_sent_back_truly(self, stage: Stage, member: Member) -> None:
        await send(stage, b"one")
        (one,) = await member.take()
        member.peer.alive = False  # it hangs, and says nothing
        await stage.pass_s(61)
        await stage.pass_s(5)
        assert (await member.send_back(one.commit_offset, level=1)).code == 0

        async def copied() -> bool:
            bounds = await stage.processor.offsets.bounds(Context(), f"%RETRY%{GROUP}", BROKER, 0)
            stage.clock.advance(1)
            return bounds.maximum == 1

        await stage.until(copied)


class TestRenewing:
    async def test_what_a_client_works_on_stays_its_own(self, stage: Stage, member: Member) -> None:
        await send(stage, b"one")
        (one,) = await member.take()
        other = await member.door.member(2, proven=False)
        for _ in range(40):
            await stage.pass_s(10)
            await stage.until(lambda: not member.door.mapped._renewing._tasks)
            await member.update(one.offset)
            await other.beat()
        assert (await other.pull(await other.query(), wait=False)).code == NOTHING
        await member.update(one.offset + 1)
        assert await done(stage) == 1
        assert member.door.mapped.figures()["mapped_renewed_total"] >= 6

    async def test_what_hangs_comes_again_elsewhere(self, stage: Stage, member: Member) -> None:
        await send(stage, b"one")
        (one,) = await member.take()
        other = await member.door.member(2, proven=False)
        for _ in range(13):
            await stage.pass_s(10)
            await stage.until(lambda: not member.door.mapped._renewing._tasks)
            # It lives, but reads the queue no more.
            await member.beat()
            await other.beat()
        waiting = await other.start(await other.query())
        await stage.until(waiting.done)
        (again,) = records(waiting.result())
        assert bytes(again.body) == b"one"
        # Late, it finishes nothing.
        await member.update(one.offset + 1)
        assert await done(stage) == 0

    async def test_a_try_again_is_for_what_was_not_renewed(
        self, stage: Stage, member: Member, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await send(stage, *[b"x"] * 32)
        taken = await member.take()
        change, left = stage.broker.change_invisible, 0

        async def few(*given: Any, **how: Any) -> str:
            nonlocal left
            if not left:
                raise BrokerBusy("it takes four in a second")
            left -= 1
            return await change(*given, **how)

        monkeypatch.setattr(stage.broker, "change_invisible", few)
        other = await member.door.member(2, proven=False)
        for _ in range(62):
            left = 4
            await stage.pass_s(1)
            await stage.until(lambda: not member.door.mapped._renewing._tasks)
            await member.update(taken[0].offset)
        assert (await other.pull(await other.query(), wait=False)).code == NOTHING

    async def test_not_for_ever(self, stage: Stage, member: Member) -> None:
        await send(stage, b"one")
        (one,) = await member.take()
        other = await member.door.member(2, proven=False)
        for _ in range(3 * 360 + 12):
            await stage.pass_s(10)
            await stage.until(lambda: not member.door.mapped._renewing._tasks)
            await member.update(one.offset)
            await other.beat()
        waiting = await other.start(await other.query())
        await stage.until(waiting.done)
        assert bodies(records(waiting.result())) == [b"one"]


class TestOfALimitedClient:
    @pytest.fixture
    def policies(self) -> Policies:
        return Policies(rate=PerClient(rate=0.2, burst=20))

    async def test_what_the_gateway_renews_is_no_request_of_the_client(
        self, stage: Stage, member: Member
    ) -> None:
        await send(stage, *[b"x"] * 32)
        taken = await member.take()
        other = await member.door.member(2, proven=False)
        for _ in range(13):
            await stage.pass_s(5)
            await stage.until(lambda: not member.door.mapped._renewing._tasks)
            await member.update(taken[0].offset)
        assert (await other.pull(await other.query(), wait=False)).code == NOTHING


class TestWindow:
    async def test_who_finishes_nothing_gets_no_more_than_a_few(self, stage: Stage, member: Member) -> None:
        await send(stage, *[b"%d" % n for n in range(100)])
        taken = await member.take()
        assert len(taken) == 32
        waiting = await member.start(taken[-1].offset + 1)
        await stage.pass_s(0.01)
        assert not waiting.done()
        await stage.pass_s(0.02)
        await stage.until(waiting.done)
        assert (waiting.result().code, behind(waiting.result())) == (AGAIN, taken[-1].offset + 1)
        assert member.door.mapped.figures()["mapped_window_pauses_total"] == 1
        # Others get the rest.
        other = await member.door.member(2, proven=False)
        assert bodies(await other.take()) == [b"%d" % n for n in range(32, 64)]

    async def test_pauses_grow_while_nothing_moves(self, stage: Stage, member: Member) -> None:
        await send(stage, *[b"x"] * 40)
        taken = await member.take()
        for _ in range(8):
            waiting = await member.start(taken[-1].offset + 1)
            await stage.pass_s(1)
            await stage.until(waiting.done)
        waiting = await member.start(taken[-1].offset + 1)
        await stage.pass_s(0.9)
        assert not waiting.done()
        await stage.pass_s(0.1)
        await stage.until(waiting.done)

    async def test_who_finishes_much_may_hold_much(self, stage: Stage, member: Member) -> None:
        await send(stage, *[b"x"] * 300)
        taken = await member.take()
        held = len(taken)
        while len(taken) < 160:
            answer = await member.pull(taken[-1].offset + 1, commit=taken[-1].offset + 1, wait=False)
            taken += records(answer)
        last, held = taken[-1].offset, 32
        while found := records(await member.pull(last + 1, wait=False)):
            held += len(found)
            last = found[-1].offset
        assert held == 172

    async def test_a_commit_makes_room(self, stage: Stage, member: Member) -> None:
        await send(stage, *[b"x"] * 40)
        taken = await member.take()
        answer = await member.pull(taken[-1].offset + 1, commit=taken[-1].offset + 1, wait=False)
        assert len(records(answer)) == 8


class TestSwitching:
    async def test_on_true_pull_a_number_begins_anew(self, stage: Stage, member: Member) -> None:
        await send(stage, b"one", b"two", b"three")
        taken = await member.take()
        await member.update(taken[1].offset)
        waiting = await member.start(taken[2].offset + 1)
        await member.door.member(2, proven=False, model="BROADCASTING")
        await member.door.until_mapped(False)
        await stage.until(waiting.done)
        assert waiting.result().code == NOTHING
        answer = await member.pull(taken[2].offset + 1)
        # What the group had not finished comes by its retries, and nothing that it had once more.
        assert (answer.code, behind(answer)) == (MOVED, 3)
        # What it tells of numbers sets nothing.
        await member.update(taken[0].offset)
        assert await done(stage) == 3
        await send(stage, b"four")
        found = records(await member.pull(3, wait=False))
        assert bodies(found) == [b"four"]
        assert found[0].offset == 3
        again = records(await member.pull(0, topic=f"%RETRY%{GROUP}", wait=False))
        assert sorted(bodies(again)) == [b"three", b"two"]

    async def test_a_true_pull_that_waits_delivers_nothing_once_mapped(
        self, stage: Stage, door: Door
    ) -> None:
        member = await door.member(proven=False)
        # It has not asked for the position, so nothing is proven by this.
        waiting = await member.start(0)
        other = await door.member(2)
        assert not waiting.done()
        taking = await other.start(await other.query())
        await send(stage, b"one")
        await stage.until(waiting.done)
        await stage.until(taking.done)
        assert records(waiting.result()) == []
        assert behind(waiting.result()) == 0
        assert bodies(records(taking.result())) == [b"one"]

    async def test_a_group_begins_where_it_was_truly_pulled_first(self, stage: Stage, door: Door) -> None:
        """Whoever joins later may ask for the end, as it was then: what came before is not skipped."""
        await send(stage, b"old")
        member = await door.member(proven=False)
        assert (await member.pull(1, wait=False)).code == NOTHING
        await send(stage, b"new")
        (held,) = records(await member.pull(1, wait=False))
        assert bytes(held.body) == b"new"
        assert await done(stage) == 1
        other = await door.member(2, proven=False)
        await other.query()
        taken = records(await other.pull(2, wait=False))
        await door.until_mapped()
        taken += records(await other.pull(2, wait=False))
        assert bodies(taken) == [b"new"]
        # What was truly pulled and not finished comes again, and what is told of it sets nothing.
        await member.update(2)
        assert await done(stage) == 1

    async def test_an_orderly_consumer_begins_with_its_first_pull(self, stage: Stage, door: Door) -> None:
        """Its lock keeps nobody from setting where the group begins, least of all itself."""
        await send(stage, b"one")
        member = await door.member(proven=False)
        locks = QueueLocks(GROUP, member.client_id, (MessageQueue(TOPIC, BROKER, 0),))
        await member.ok(RequestCode.LOCK_BATCH_MQ, body=locks.encode())
        pull = await member.start(await member.query(), wait=False)
        while not pull.done():
            await stage.pass_s(0.1)
        assert bodies(records(await pull)) == [b"one"]

    async def test_where_a_group_begins_is_leased_and_not_locked(self, stage: Stage, door: Door) -> None:
        """What a group sends to its retries itself becomes a dead letter while the group holds locks."""
        retries = retry_topic(GROUP)
        await stage.broker.create_topic(TopicConfig(retries, read_queues=1, write_queues=1))
        classic = stage.processor.classic
        queues = [(TOPIC, BROKER, 0)]
        assert await classic.lease(Context(), GROUP, "one", queues) == queues
        assert await classic.lease(Context(), GROUP, "two", queues) == []
        await send(stage, b"again", topic=retries, attempt=1)
        assert (await stage.processor.offsets.bounds(Context(), retries, BROKER, 0)).maximum == 1
        await classic.end_lease(Context(), GROUP, "one", queues)
        assert await classic.lease(Context(), GROUP, "two", queues) == queues

    async def test_a_draining_gateway_takes_nothing_and_lets_finish(
        self, stage: Stage, member: Member
    ) -> None:
        await send(stage, b"one", b"two")
        first, second = await member.take()
        waiting = await member.start(second.offset + 1)
        member.door.drain()
        await stage.pass_s(0)
        await stage.pass_s(1)
        await stage.until(waiting.done)
        assert waiting.result().code == NOTHING
        await member.update(second.offset)
        assert await done(stage) == 1
        assert first.offset < second.offset


class TestTrouble:
    async def test_what_could_not_be_acknowledged_is_tried_again(
        self, stage: Stage, member: Member, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await send(stage, b"one")
        (one,) = await member.take()
        real = stage.processor.ack

        async def refuse(*_: object) -> None:
            raise BrokerUnavailable("away")

        monkeypatch.setattr(stage.processor, "ack", refuse)
        fields = {**member._queue(0, TOPIC), "commitOffset": one.offset + 1}
        assert (await member.ask(15, fields)).code == ResponseCode.SYSTEM_ERROR
        monkeypatch.setattr(stage.processor, "ack", real)
        await stage.pass_s(1)
        await until_done(stage, 1)

    async def test_what_is_not_renewed_in_time_is_forgotten(
        self, stage: Stage, member: Member, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await send(stage, b"one")
        await member.take()

        async def refuse(*_: object) -> str:
            raise BrokerUnavailable("away")

        monkeypatch.setattr(stage.processor.settlement, "renew", refuse)
        for _ in range(70):
            await stage.pass_s(1)
            await member.update(0)
        await stage.until(lambda: member.door.mapped.figures()["mapped_held"] == 0)
